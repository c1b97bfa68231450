package cost

import "math"

var inf = math.Inf(1) // of a way that is not possible

// Request is a prompt and what is held of it.
type Request struct {
	Tokens    int    // of the whole prompt
	Prefix    Prefix // longest checkpoint; the zero value = none
	Buffer    Buffer // longest prefix inside a buffer; the zero value = none
	Segments  []Segment
	ExactOnly bool // a spliced state is not accepted
}

// Prefix is a held checkpoint with its rows.
type Prefix struct {
	Tokens int
	Bytes  int64
	Tier   Tier
	From   Link // how it comes, where more is known than the tier; zero = as from the tier
}

// Buffer is a held state with buffered rows behind it, from which the state at
// Tokens can be rebuilt.
type Buffer struct {
	Tokens       int   // shared with the prompt, base included
	Bytes        int64 // brought: base, attention rows, buffered rows
	RebuildBytes int64 // of these, gone through to rebuild the state: base and buffered rows
	Tier         Tier
}

// Segment is a held segment of the prompt, whole span, or one that is to be captured.
type Segment struct {
	Begin, Tokens int
	SeamTokens    int // of these, computed again where it joins its neighbours; half at either end
	StateBytes    int64
	RowBytes      int64
	Tier          Tier
	From          Link // as of Prefix
	Capture       bool // it is held nowhere, and admitted: the engine computes it in isolation first
}

// Choice is the predicted milliseconds of every way and the best one.
type Choice struct {
	Best   Way
	Millis [Ways]float64 // index way-1; +Inf = not possible
	// Segments is how many leading segments of the request the splice takes. Its captures are in
	// Millis, and not in what Best compares: that later requests pay for them was judged by Admit.
	Segments int
}

// Of is the prediction for one way.
func (c Choice) Of(w Way) float64 {
	if w < 1 || w > Ways {
		return inf
	}
	return c.Millis[w-1]
}

// preference orders ways that tie: what was stored whole before what is rebuilt,
// exact before spliced, and computing only where nothing is gained otherwise but
// before a splice that gains nothing.
var preference = [Ways]Way{WayPrefix, WayReplay, WayRecompute, WaySplice}

// Choose predicts every way to serve the prompt and names the fastest. Ways
// within a nanosecond tie and go by: prefix, replay, recompute, splice.
//
// A hit never covers the last token, which has to be computed for its logits: a
// way that holds all tokens still computes one.
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

// loadFrom is what it takes to bring bytes by a link, or from a tier where there is none.
func (m *Model) loadFrom(t Tier, by Link, bytes int64) (float64, bool) {
	if t == TierNone || by == (Link{}) {
		return m.LoadMillis(t, bytes)
	}
	return by.Millis(bytes), true
}

// from is where computing begins when that many tokens are held.
func (r Request) from(held int) int { return min(held, r.Tokens-1) }
