// Package bound computes an upper bound of the hits that a cache of a given size can have on a
// given trace. The bound holds for any admission and eviction policy, even one that knows the
// future.
//
// # What a hit needs
//
// Requests are numbered in order. Slot j is the time between request j and request j+1. Let
// request r be served from a prefix of p tokens; p = 0 means without a prefix. Let since(r, i)
// be the last request before r whose sequence (input and output) had the same first i tokens.
// Then in every slot from since(r, i) up to r, the cache held
//
//   - the keys and values of token i, for each i ≤ p: request since(r, i) is the last request
//     that could have computed or loaded them;
//   - the recurrent states at p, in every slot from since(r, p): no later request passed p, so
//     none could have saved them.
//
// # The bound
//
// For one prefix of i tokens, the spans [since(r, i), r) of different requests do not overlap,
// because a span begins at the end of the previous span or later. The bytes that all hits need
// in slot j, added up, are therefore bytes that the cache held in slot j, and are at most its
// capacity C. For any prices λ(j) ≥ 0 of a byte in slot j, it follows that
//
//	hits ≤ Σ_r max_p [ p − Σ_{i≤p} token bytes·Λ(since(r,i), r) − state bytes·Λ(since(r,p), r) ] + C·Σ_j λ(j)
//
// with Λ(a, b) = λ(a)+…+λ(b−1). This holds because the maximum includes the choice of p that the
// cache made, and the price of all choices together is at most the price of C. Every λ gives a
// valid bound. Trace.Tokens searches for a low bound: it first finds the best single price for
// all slots (a knapsack over byte-time), and then takes steps along the subgradient, which is C
// minus the bytes in use. The bound is not tight, because the maximum may combine prefixes that
// do not fit into the cache together in one slot.
//
// With Options.Boundaries, p is limited to positions where a cache with Marconi's admission can
// have states: at ends of earlier sequences, and at branch points between them. A cache that has
// evicted sequences knows only a subset of these positions.
//
// A Trace is not safe for concurrent use.
package bound

import "math"

// Options describes the model and the limits of admission.
type Options struct {
	StateBytes float64 // recurrent states at one position; 0 = attention only
	TokenBytes float64 // keys and values of one token
	Unit       int     // tokens per symbol; 0 = 1
	Boundaries bool    // states only at ends of sequences and at branch points
	Steps      int     // number of subgradient steps; 0 = 400
}

// Trace records which prefixes each request could reuse. It uses 16 bytes for each edge of the
// prefix tree that a request passes, and memory for the tree of all sequences, which keeps the
// slices passed to Add.
type Trace struct {
	o     Options
	tree  tree
	spans []span // of all requests, in order
	first []int32
	input float64 // tokens
}

// span is a run of tokens of a request. since is the last earlier request that had these tokens;
// it is the same for all tokens of the span.
type span struct {
	since  int32
	tokens int32
	stop   bool // states can exist at the end of the span
}

// New returns an empty trace.
func New(o Options) *Trace {
	if o.Unit == 0 {
		o.Unit = 1
	}
	if o.Steps == 0 {
		o.Steps = 400
	}
	return &Trace{o: o, tree: newTree()}
}

// Add appends a request for input that was answered with output. Both slices are kept.
func (t *Trace) Add(input, output []uint32) {
	now := int32(len(t.first))
	t.first = append(t.first, int32(len(t.spans)))
	t.input += float64(len(input) * t.o.Unit)
	t.tree.pass(input, func(since int32, symbols int, end bool) {
		t.spans = append(t.spans, span{since, int32(symbols * t.o.Unit), end || !t.o.Boundaries})
	})
	t.tree.insert(input, output, now)
}

// Tokens returns an upper bound of the tokens that a cache of capacityBytes can serve over
// the whole trace.
func (t *Trace) Tokens(capacityBytes float64) float64 {
	s := solver{t: t, capacity: capacityBytes}
	s.flat()
	s.descend()
	return min(s.best, s.unlimited())
}

// Rate returns Tokens over all input tokens.
func (t *Trace) Rate(capacityBytes float64) float64 {
	if t.input == 0 {
		return 0
	}
	return t.Tokens(capacityBytes) / t.input
}

// solver searches for prices.
type solver struct {
	t        *Trace
	capacity float64
	price    []float64 // price of a byte in each slot, in tokens
	sum      []float64 // sum[j] = price[0]+...+price[j-1]
	use      []float64 // bytes in a slot under the choices of the last evaluation
	best     float64
	bestAt   []float64
}

// unlimited returns the tokens that an unlimited cache can serve.
func (s *solver) unlimited() float64 {
	total := 0.0
	for r := range s.t.first {
		p, best := 0.0, 0.0
		for _, x := range s.t.of(r) {
			p += float64(x.tokens)
			if x.stop {
				best = p
			}
		}
		total += best
	}
	return total
}

func (t *Trace) of(r int) []span {
	if r+1 < len(t.first) {
		return t.spans[t.first[r]:t.first[r+1]]
	}
	return t.spans[t.first[r]:]
}

// evaluate returns the bound at the current prices, and sets use.
func (s *solver) evaluate() float64 {
	n := len(s.price)
	s.sum[0] = 0
	for j, p := range s.price {
		s.sum[j+1] = s.sum[j] + p
	}
	clear(s.use)
	total := s.capacity * s.sum[n]
	for r := range s.t.first {
		total += s.choose(r)
	}
	// Until here, use has the differences between successive slots.
	for j := 1; j < n; j++ {
		s.use[j] += s.use[j-1]
	}
	if total < s.best {
		s.best = total
		copy(s.bestAt, s.price)
	}
	return total
}

// choose selects the best prefix of a request and records its bytes.
func (s *solver) choose(r int) float64 {
	o := &s.t.o
	spans := s.t.of(r)
	gain, best, stop := 0.0, 0.0, -1
	for i, x := range spans {
		rent := s.sum[r] - s.sum[x.since]
		gain += float64(x.tokens) * (1 - o.TokenBytes*rent)
		if worth := gain - o.StateBytes*rent; x.stop && worth > best {
			best, stop = worth, i
		}
	}
	for _, x := range spans[:stop+1] {
		bytes := float64(x.tokens) * o.TokenBytes
		s.use[x.since] += bytes
		s.use[r] -= bytes
	}
	if stop >= 0 {
		s.use[spans[stop].since] += o.StateBytes
		s.use[r] -= o.StateBytes
	}
	return best
}

// flat finds the best single price for all slots by golden-section search: the bound is a convex
// function of the price.
func (s *solver) flat() {
	n := len(s.t.first)
	s.price, s.sum = make([]float64, n), make([]float64, n+1)
	s.use, s.bestAt = make([]float64, n), make([]float64, n)
	s.best = math.Inf(1)
	at := func(logPrice float64) float64 {
		for j := range s.price {
			s.price[j] = math.Exp(logPrice)
		}
		return s.evaluate()
	}
	// The search range goes from a negligible price to a price at which a single token costs
	// more than it saves in one slot.
	low, high := -80.0, 1.0
	const golden = 0.6180339887498949
	a, b := high-golden*(high-low), low+golden*(high-low)
	fa, fb := at(a), at(b)
	for range 60 {
		if fa < fb {
			high, b, fb = b, a, fa
			a = high - golden*(high-low)
			fa = at(a)
		} else {
			low, a, fa = a, b, fb
			b = low + golden*(high-low)
			fb = at(b)
		}
	}
	copy(s.price, s.bestAt)
}

// descend improves the prices along the subgradient. A step aims at a target a little below the
// best bound so far (Polyak). When steps stop improving the bound, the target moves closer to
// the best bound.
func (s *solver) descend() {
	ambition := 0.1
	since, start := 0, s.best
	for range s.t.o.Steps {
		value := s.evaluate()
		norm := 0.0
		for j := range s.price {
			g := s.capacity - s.use[j]
			if s.price[j] <= 0 && g > 0 {
				continue
			}
			norm += g * g
		}
		if norm == 0 {
			return
		}
		step := (value - s.best*(1-ambition)) / norm
		for j := range s.price {
			s.price[j] = max(0, s.price[j]-step*(s.capacity-s.use[j]))
		}
		if since++; since == 10 {
			if s.best > start*(1-ambition/20) {
				ambition /= 2
				copy(s.price, s.bestAt)
			}
			since, start = 0, s.best
		}
	}
	s.evaluate()
}
