package cost

import "math"

var inf = math.Inf(1) // of an impossible way

// Request is a prompt and the cached objects for it.
type Request struct {
	Tokens    int    // of the whole prompt
	Prefix    Prefix // longest checkpoint; the zero value = none
	Buffer    Buffer // longest prefix inside a buffer; the zero value = none
	Segments  []Segment
	ExactOnly bool // a spliced state is not accepted
}

// Prefix is a cached checkpoint with its rows.
type Prefix struct {
	Tokens int
	Bytes  int64
	Tier   Tier
	From   Link // link to load it; zero = as from the tier
}

// Buffer is a cached state with buffered rows after it, from which the state at
// Tokens can be rebuilt.
type Buffer struct {
	Tokens       int   // shared with the prompt, base included
	Bytes        int64 // loaded: base, attention rows, buffered rows
	RebuildBytes int64 // of these, read to rebuild the state: base and buffered rows
	Tier         Tier
}

// Segment is a cached segment of the prompt, whole span, or one to be captured.
type Segment struct {
	Begin, Tokens int
	SeamTokens    int // of these, computed again at the joins, half at either end
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
	// Segments is the number of leading segments of the request that the
	// splice uses. Its captures are in Millis, but do not count for Best:
	// Admit has decided that later requests pay for them.
	Segments int
}

// Of returns the prediction for one way.
func (c Choice) Of(w Way) float64 {
	if w < 1 || w > Ways {
		return inf
	}
	return c.Millis[w-1]
}

// preference orders ways with equal times: stored before rebuilt, exact before
// spliced, and recompute only before a splice that saves nothing.
var preference = [Ways]Way{WayPrefix, WayReplay, WayRecompute, WaySplice}

// Choose predicts every way to serve the prompt and returns the fastest. Ways
// within a nanosecond are equal and chosen in this order: prefix, replay,
// recompute, splice.
//
// A hit never covers the last token, which has to be computed for its logits: a
// way that has all tokens still computes one.
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

// loadFrom returns the time to load bytes by a link or, if it is zero, from a
// tier.
func (m *Model) loadFrom(t Tier, by Link, bytes int64) (float64, bool) {
	if t == TierNone || by == (Link{}) {
		return m.LoadMillis(t, bytes)
	}
	return by.Millis(bytes), true
}

// from returns the token at which computation starts with that many cached
// tokens.
func (r Request) from(held int) int { return min(held, r.Tokens-1) }
