package cost

import "math"

var inf = math.Inf(1) // the time of an impossible way

// Request is a prompt and the cached objects for it.
type Request struct {
	Tokens    int    // tokens of the whole prompt
	Prefix    Prefix // longest checkpoint; the zero value = none
	Buffer    Buffer // longest prefix inside a buffer; the zero value = none
	Segments  []Segment
	ExactOnly bool // a spliced state is not accepted
}

// Prefix is a cached checkpoint with the rows before it.
type Prefix struct {
	Tokens int
	Bytes  int64
	Tier   Tier
	From   Link // link to load it over; zero = the link of Tier
}

// Buffer is a cached state with buffered rows after it, from which the state after the
// first Buffer.Tokens tokens of the prompt can be rebuilt.
type Buffer struct {
	Tokens       int   // tokens shared with the prompt, including those before the base state
	Bytes        int64 // bytes to load: base state, attention rows, buffered rows
	RebuildBytes int64 // the part of Bytes read to rebuild the state: base state and buffered rows
	Tier         Tier
}

// Segment is a segment of the prompt that is cached, or that will be captured. Begin and
// Tokens are its whole span, with seams.
type Segment struct {
	Begin, Tokens int
	SeamTokens    int // the part of Tokens that is computed again at the joins, half at either end
	StateBytes    int64
	RowBytes      int64
	Tier          Tier
	From          Link // as in Prefix
	Capture       bool // not cached but admitted: the engine captures it in isolation first
}

// Choice has the predicted milliseconds of every way and the best one.
type Choice struct {
	Best   Way
	Millis [Ways]float64 // index way-1; +Inf = not possible
	// Segments is the number of leading segments of the request that the splice uses.
	// Millis includes the capture of segments that are not cached. Best ignores these
	// captures: Admit has decided that later requests pay for them.
	Segments int
}

// Of returns the prediction for one way.
func (c Choice) Of(w Way) float64 {
	if w < 1 || w > Ways {
		return inf
	}
	return c.Millis[w-1]
}

// preference orders ways with equal times. A stored state comes before a rebuilt one, and
// exact ways come before the splice. Recomputing comes just before the splice, since a
// splice of the same time saves nothing.
var preference = [Ways]Way{WayPrefix, WayReplay, WayRecompute, WaySplice}

// Choose predicts the time of every way to serve the prompt and returns the fastest way.
// Ways whose times differ by less than a nanosecond are equal and chosen in this order:
// prefix, replay, recompute, splice.
//
// A hit never covers the last token, because its logits have to be computed: even a way
// that finds all tokens cached computes the last one.
func (m *Model) Choose(r Request) Choice {
	s := m.spliced(r)
	c := Choice{Best: WayRecompute, Segments: s.segments}
	c.Millis = [Ways]float64{m.recompute(r), m.prefixed(r), s.total, m.replayed(r)}
	best := inf
	for _, w := range preference {
		ms := c.Of(w)
		if w == WaySplice {
			ms = s.own()
		}
		if ms < best-1e-6 {
			c.Best, best = w, ms
		}
	}
	return c
}

func (m *Model) recompute(r Request) float64 { return m.Prefill().Millis(0, r.Tokens) }

func (m *Model) prefixed(r Request) float64 {
	if r.Prefix.Tokens <= 0 {
		return inf
	}
	load, ok := m.loadFrom(r.Prefix.Tier, r.Prefix.From, r.Prefix.Bytes)
	if !ok {
		return inf
	}
	return load + m.Prefill().Millis(r.from(r.Prefix.Tokens), r.Tokens)
}

func (m *Model) replayed(r Request) float64 {
	if r.Buffer.Tokens <= 0 {
		return inf
	}
	load, ok := m.LoadMillis(r.Buffer.Tier, r.Buffer.Bytes)
	if !ok {
		return inf
	}
	return load + m.Link(JobReplay).Millis(r.Buffer.RebuildBytes) + m.Prefill().Millis(r.from(r.Buffer.Tokens), r.Tokens)
}

// loadFrom returns the milliseconds to load an object over the link by. If this link is
// zero, loadFrom uses the link of tier t. It returns false if t is TierNone.
func (m *Model) loadFrom(t Tier, by Link, bytes int64) (float64, bool) {
	if t == TierNone || by == (Link{}) {
		return m.LoadMillis(t, bytes)
	}
	return by.Millis(bytes), true
}

// from returns the token at which computation starts; held is the number of leading tokens
// that are cached. At least the last token is computed.
func (r Request) from(held int) int { return min(held, r.Tokens-1) }
