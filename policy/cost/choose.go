package cost

import "math"

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

// Segment is a held segment of the prompt, whole span.
type Segment struct {
	Begin, Tokens int
	SeamTokens    int // of these, computed again where it joins its neighbours; half at either end
	StateBytes    int64
	RowBytes      int64
	Tier          Tier
	From          Link // as of Prefix
}

// Choice is the predicted milliseconds of every way and the best one.
type Choice struct {
	Best   Way
	Millis [Ways]float64 // index way-1; +Inf = not possible
}

// Of is the prediction for one way.
func (c Choice) Of(w Way) float64 {
	if w < 1 || w > Ways {
		return math.Inf(1)
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
	var c Choice
	c.Millis = [Ways]float64{m.recompute(r), m.prefixed(r), m.spliced(r), m.replayed(r)}
	c.Best = WayRecompute
	best := math.Inf(1)
	for _, w := range preference {
		if ms := c.Of(w); ms < best-1e-6 {
			c.Best, best = w, ms
		}
	}
	return c
}

func (m *Model) recompute(r Request) float64 { return m.Prefill().Millis(0, r.Tokens) }

func (m *Model) prefixed(r Request) float64 {
	if r.Prefix.Tokens <= 0 {
		return math.Inf(1)
	}
	load, ok := m.loadFrom(r.Prefix.Tier, r.Prefix.From, r.Prefix.Bytes)
	if !ok {
		return math.Inf(1)
	}
	return load + m.Prefill().Millis(r.from(r.Prefix.Tokens), r.Tokens)
}

func (m *Model) replayed(r Request) float64 {
	if r.Buffer.Tokens <= 0 {
		return math.Inf(1)
	}
	load, ok := m.LoadMillis(r.Buffer.Tier, r.Buffer.Bytes)
	if !ok {
		return math.Inf(1)
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

// spliced loads the prefix, if any, and every held segment behind it, composes
// and rotates them, and computes what lies between in one run. It leaves no
// segment out, since an engine does not either.
func (m *Model) spliced(r Request) float64 {
	if r.ExactOnly || len(r.Segments) == 0 {
		return math.Inf(1)
	}
	at, total := 0, 0.0
	if r.Prefix.Tokens > 0 {
		if load, ok := m.loadFrom(r.Prefix.Tier, r.Prefix.From, r.Prefix.Bytes); ok {
			at, total = r.from(r.Prefix.Tokens), load
		}
	}
	p, placed := m.Prefill(), 0
	total += p.Fixed
	for _, s := range r.Segments {
		begin, end := s.Begin+s.SeamTokens/2, s.Begin+s.Tokens-(s.SeamTokens-s.SeamTokens/2)
		if end = min(end, r.Tokens-1); begin < at || end <= begin {
			continue // inside the prefix, or nothing left between its seams
		}
		load, ok := m.loadFrom(s.Tier, s.From, s.StateBytes+s.RowBytes)
		if !ok {
			continue
		}
		total += load + m.Link(JobCompose).Millis(s.StateBytes) + m.Link(JobRotate).Millis(s.RowBytes) + p.Marginal(at, begin)
		at, placed = end, placed+1
	}
	if placed == 0 {
		return math.Inf(1)
	}
	return total + p.Marginal(at, r.Tokens)
}
