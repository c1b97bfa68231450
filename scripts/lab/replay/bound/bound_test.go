package bound_test

import (
	"math/bits"
	"math/rand/v2"
	"testing"

	"github.com/spliced-kv/spliced/scripts/lab/replay/bound"
)

type request struct{ input, output []uint32 }

func (r request) whole() []uint32 { return append(append([]uint32{}, r.input...), r.output...) }

// draw makes a few short requests that share prefixes.
func draw(rng *rand.Rand) []request {
	var all []request
	for range 3 + rng.IntN(3) {
		var r request
		if len(all) > 0 && rng.IntN(3) > 0 {
			old := all[rng.IntN(len(all))]
			whole := old.whole()
			r.input = append(r.input, whole[:rng.IntN(min(len(whole), 2)+1)]...)
		}
		for range rng.IntN(2) + 1 {
			r.input = append(r.input, rng.Uint32N(2))
		}
		for range rng.IntN(2) {
			r.output = append(r.output, rng.Uint32N(2))
		}
		all = append(all, r)
	}
	return all
}

// search finds the most tokens that any cache can serve, by trying after every
// request everything that it could keep of what it has or was just computed.
// A bit of a set stands for the rows of a prefix's last token or, further up, for
// the states at its end.
type search struct {
	requests     []request
	rows, states int
	capacity     int
	boundaries   bool
	prefixes     map[string]int
	known        map[[2]int]int // by request and what is held
}

func (s *search) run() int {
	s.prefixes, s.known = map[string]int{}, map[[2]int]int{}
	for _, r := range s.requests[1:] {
		for n := 1; n <= len(r.input); n++ {
			if _, ok := s.prefixes[name(r.input[:n])]; !ok {
				s.prefixes[name(r.input[:n])] = len(s.prefixes)
			}
		}
	}
	return s.most(0, 0)
}

func name(symbols []uint32) string {
	text := make([]byte, len(symbols))
	for i, x := range symbols {
		text[i] = byte(x)
	}
	return string(text)
}

// bits are the sets for the prefix of n symbols, zero when no later request could
// use it.
func (s *search) bits(symbols []uint32, n int) (rows, states int) {
	i, ok := s.prefixes[name(symbols[:n])]
	if !ok {
		return 0, 0
	}
	return 1 << i, 1 << (i + len(s.prefixes))
}

// most is what requests from r on can be served with a set held.
func (s *search) most(r, held int) int {
	if r == len(s.requests) {
		return 0
	}
	if best, ok := s.known[[2]int{r, held}]; ok {
		return best
	}
	input, hit, path := s.requests[r].input, 0, 0
	for n := 1; n <= len(input) && r > 0; n++ {
		rows, states := s.bits(input, n)
		path |= rows
		if held&path == path && held&states != 0 {
			hit = n
		}
	}
	have := held | s.computed(r)
	best := 0
	for keep := have; ; keep = (keep - 1) & have {
		if s.bytes(keep) <= s.capacity {
			best = max(best, s.most(r+1, keep))
		}
		if keep == 0 {
			break
		}
	}
	s.known[[2]int{r, held}] = hit + best
	return hit + best
}

// computed is what serving request r leaves.
func (s *search) computed(r int) int {
	whole := s.requests[r].whole()
	set := 0
	for n := 1; n <= len(whole); n++ {
		rows, states := s.bits(whole, n)
		set |= rows
		if !s.boundaries || s.boundary(r, n) {
			set |= states
		}
	}
	return set
}

// boundary reports whether a sequence up to request r ends at depth n of r's, or
// two part there.
func (s *search) boundary(r, n int) bool {
	prefix := name(s.requests[r].whole()[:n])
	after := map[uint32]bool{}
	for _, q := range s.requests[:r+1] {
		whole := q.whole()
		if len(whole) < n || name(whole[:n]) != prefix {
			continue
		}
		if len(whole) == n {
			return true
		}
		after[whole[n]] = true
	}
	return len(after) > 1
}

func (s *search) bytes(set int) int {
	n := len(s.prefixes)
	return bits.OnesCount(uint(set)&(1<<n-1))*s.rows + bits.OnesCount(uint(set)>>n)*s.states
}

func TestBoundIsNeverBelowTheBestThatExists(t *testing.T) {
	loose, cases := 0.0, 0
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 5))
		e := search{requests: draw(rng), rows: 1, states: rng.IntN(4), capacity: rng.IntN(10), boundaries: seed%2 == 0}
		trace := bound.New(bound.Options{StateBytes: float64(e.states), TokenBytes: float64(e.rows), Boundaries: e.boundaries})
		for _, r := range e.requests {
			trace.Add(r.input, r.output)
		}
		most := float64(e.run())
		got := trace.Tokens(float64(e.capacity))
		if got < most-1e-6 {
			t.Fatalf("seed %d: bound %v, but %v tokens can be served of %v with %d bytes", seed, got, most, e.requests, e.capacity)
		}
		if most > 0 {
			loose, cases = loose+got/most, cases+1
		}
	}
	// The relaxation mixes prefixes, so some distance is right; far off would mean
	// that prices are not found.
	if mean := loose / float64(cases); mean > 1.25 {
		t.Errorf("bounds are %.2f times what can be served on average of %d traces", mean, cases)
	} else {
		t.Logf("bounds are %.3f times what can be served, mean of %d traces", mean, cases)
	}
}

func TestBoundIsTightWhereOneHitFits(t *testing.T) {
	// Two prompts of 10 tokens come twice each, and only one of them fits.
	trace := bound.New(bound.Options{StateBytes: 5, TokenBytes: 1})
	a := []uint32{1, 1, 1, 1, 1, 1, 1, 1, 1, 1}
	b := []uint32{2, 2, 2, 2, 2, 2, 2, 2, 2, 2}
	for range 2 {
		trace.Add(a, nil)
		trace.Add(b, nil)
	}
	for _, c := range []struct{ capacity, low, high float64 }{
		{0, 0, 0.01}, {15, 10, 10.2}, {30, 20, 20}, {1e9, 20, 20},
	} {
		if got := trace.Tokens(c.capacity); got < c.low-1e-9 || got > c.high+1e-9 {
			t.Errorf("capacity %v: bound %v, want %v to %v", c.capacity, got, c.low, c.high)
		}
	}
	if got := trace.Rate(1e9); got != 0.5 {
		t.Errorf("rate %v, want 20 of 40 tokens", got)
	}
}

func TestUnitCountsTokensOfASymbol(t *testing.T) {
	trace := bound.New(bound.Options{TokenBytes: 2, Unit: 512})
	trace.Add([]uint32{1, 2, 3}, nil)
	trace.Add([]uint32{1, 2, 4}, nil)
	if got := trace.Tokens(2 * 1024); got != 1024 {
		t.Errorf("%v tokens, want two symbols of 512", got)
	}
	if got := trace.Tokens(1024); got > 520 || got < 512 {
		t.Errorf("%v tokens in half the room, want 512", got)
	}
	if got := trace.Rate(2 * 1024); got != 1024.0/(6*512) {
		t.Errorf("rate %v, want 1024 of 6 × 512 tokens", got)
	}
}

func TestNothingAddedBoundsNothing(t *testing.T) {
	trace := bound.New(bound.Options{StateBytes: 1})
	if got := trace.Rate(10); got != 0 {
		t.Errorf("rate %v of an empty trace", got)
	}
}
