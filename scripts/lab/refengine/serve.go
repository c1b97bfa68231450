package refengine

import (
	"errors"
	"fmt"

	"github.com/spliced-kv/spliced/policy/profile"
)

// Cache holds the segments of one model: Memory in this process, or the daemon. A miss is
// not an error. An error means that the cache cannot be used; the engine then computes
// without it.
type Cache interface {
	// Key returns the key of a segment.
	Key(spec profile.SegmentSpec, tokens []uint32) profile.SegmentKey
	// Match returns which segments are cached now, without leasing them.
	Match(keys []profile.SegmentKey) ([]bool, error)
	// Publish offers a captured segment. If another writer is first, or the pool is full,
	// that is not an error.
	Publish(key profile.SegmentKey, tokens []uint32, s *Segment[float32]) error
	// Acquire leases segments for reading. It returns false for segments that are no longer
	// cached; the engine recomputes those.
	Acquire(keys []profile.SegmentKey, specs []profile.SegmentSpec) (Leases, []bool, error)
}

// Missing is a segment that is not cached.
type Missing struct {
	Key    profile.SegmentKey
	Spec   profile.SegmentSpec
	Tokens []uint32
}

// Helped is a Cache through which other engines may compute missing segments.
type Helped interface {
	Cache
	// Compute returns once all missing segments are computed and cached. m computes some of
	// them; captured is the number of tokens that m computed.
	Compute(m *Model[float32], missing []Missing) (captured int, err error)
}

// Leases are the segments that one request reads, in the order in which they were acquired.
type Leases interface {
	// Source returns a Source for a plan over the leased segments. prefix are the first
	// plan.Begin tokens, and from is the state after them; nil if plan.Begin is 0.
	Source(m *Model[float32], plan Plan, prefix []uint32, from *State[float32]) (Source[float32], error)
	// Packed returns the published form of segment i, valid until Release.
	Packed(i int) PackedSegment
	// Release releases the leases and everything that the Source used.
	Release()
}

// Request is a prompt in parts. The segments in Mid follow Prefix or First or Lead. First is a
// leading segment that is cached with all its tokens.
type Request struct {
	Prefix []uint32 // tokens that From covers (not with First)
	From   *State[float32]
	Lead   []uint32   // the request's own tokens, before all segments (not with Prefix or First)
	First  []uint32   // leading segment
	Mid    [][]uint32 // segments, placed one after another
	Query  []uint32
	Seam   int // w: tokens recomputed on either side of a join
}

// Prompt returns the request's tokens in order.
func (r Request) Prompt() []uint32 {
	out := append([]uint32(nil), r.Prefix...)
	out = append(out, r.Lead...)
	out = append(out, r.First...)
	for _, s := range r.Mid {
		out = append(out, s...)
	}
	return append(out, r.Query...)
}

// Result is the result and cost of serving a request. A token of the prompt is either reused or
// computed. A token may be computed twice, once in isolation (Captured) and once in context
// (Recomputed), so the sum of the counts may exceed the prompt's length.
type Result struct {
	Logits     []float32
	State      *State[float32]
	Plan       Plan
	Parts      []Part
	Missed     int   // segments that were not cached when the request came
	Captured   int   // tokens run in isolation and published
	Recomputed int   // tokens run in context: seams, segments too short, query
	Reused     int   // tokens from segments that were cached when the request came
	Cache      error // why the cache could not be used; nil = it was used
}

// Part is the outcome of one segment of a request, which is the tokens [Begin, Begin+Tokens) of
// the prompt. Of these, the tokens [At, At+Reused) were cached when the request came.
type Part struct {
	Key           profile.SegmentKey
	Begin, Tokens int
	At, Reused    int
}

// Serve answers a request with cached segments. It matches segments, computes missing segments
// in isolation, publishes them, leases all segments, and splices. If the cache fails, the
// request waits at most for the cache's timeouts; Serve then computes the whole prompt, and
// Result.Cache says why.
func Serve(m *Model[float32], c Cache, r Request) (*Result, error) {
	if r.From != nil && r.From.Pages != nil {
		return nil, errFromPages
	}
	out, err := reuse(m, c, r)
	if err == nil || errors.Is(err, ErrInvalid) {
		return out, err
	}
	plain := &Result{Cache: err, State: m.NewState()}
	rest := r.Prompt()
	if r.From != nil {
		plain.State, rest = r.From.Clone(), rest[r.From.Tokens:]
	}
	plain.Recomputed = len(rest)
	plain.Logits, err = m.Prefill(plain.State, rest)
	return plain, err
}

func reuse(m *Model[float32], c Cache, r Request) (*Result, error) {
	segments, placed := r.place(func(tokens int) (profile.SegmentSpec, bool) { return m.prof.MidSpec(tokens, r.Seam) }, m.prof)
	l, err := lease(m, c, r, segments, placed)
	if err != nil {
		return nil, err
	}
	defer l.leases.Release()
	out := &l.Result
	src, err := l.leases.Source(m, out.Plan, r.Prefix, r.From)
	if err != nil {
		return nil, err
	}
	if out.Logits, out.State, err = m.Splice(out.Plan, r.Prompt(), src); err != nil {
		return nil, err
	}
	out.State.Spliced = out.State.Spliced || r.From != nil && r.From.Spliced
	return out, nil
}

// leased is a request with leased segments and a plan.
type leased struct {
	Result
	leases Leases
	keys   []profile.SegmentKey
	placed []Placed
}

// lease computes missing segments in isolation, leases the cached ones, and plans the
// request.
func lease(m *Model[float32], c Cache, r Request, segments [][]uint32, placed []Placed) (*leased, error) {
	l := &leased{placed: placed, keys: make([]profile.SegmentKey, len(segments))}
	specs := make([]profile.SegmentSpec, len(segments))
	for i, s := range segments {
		l.keys[i], specs[i] = c.Key(placed[i].Spec, s), placed[i].Spec
	}
	known, err := l.publishMissing(m, c, segments, placed, l.keys)
	if err != nil {
		return nil, err
	}
	var held []bool
	if l.leases, held, err = c.Acquire(l.keys, specs); err != nil {
		return nil, err
	}
	for i := range placed {
		placed[i].Held = placed[i].Held && held[i]
	}
	if l.Plan, err = MakePlan(len(r.Prefix), placed, len(r.Query)); err != nil {
		l.leases.Release()
		return nil, err
	}
	at := len(r.Prefix)
	for i, s := range segments {
		l.Parts = append(l.Parts, Part{Key: l.keys[i], Begin: at, Tokens: len(s)})
		at += len(s)
	}
	for _, s := range l.Plan.Spans {
		switch {
		case s.Segment < 0:
			l.Recomputed += s.Count
		case known[s.Segment]:
			l.Reused += s.Count
			l.Parts[s.Segment].At, l.Parts[s.Segment].Reused = s.Start, s.Count
		}
	}
	return l, nil
}

// place returns the tokens and the shape of every segment of a request. Held means here that the
// segment is worth caching.
func (r Request) place(mid func(tokens int) (profile.SegmentSpec, bool), p *profile.Profile) (segments [][]uint32, placed []Placed) {
	if len(r.Lead) > 0 {
		segments = append(segments, r.Lead)
		placed = append(placed, Placed{Spec: profile.FirstSpec(len(r.Lead))})
	}
	if len(r.First) > 0 {
		segments = append(segments, r.First)
		spec := profile.FirstSpec(len(r.First))
		placed = append(placed, Placed{Spec: spec, Held: p.CheckSpec(spec) == nil})
	}
	for _, s := range r.Mid {
		segments = append(segments, s)
		spec, ok := mid(len(s))
		placed = append(placed, Placed{Spec: spec, Held: ok})
	}
	return segments, placed
}

// publishMissing computes, in isolation, the segments that are not cached, and publishes them.
// It returns which segments were cached before.
func (out *Result) publishMissing(m *Model[float32], c Cache, segments [][]uint32, placed []Placed, keys []profile.SegmentKey) ([]bool, error) {
	known, err := c.Match(keys)
	if err != nil {
		return nil, err
	}
	done := map[profile.SegmentKey]bool{}
	var missing []Missing
	for i, s := range segments {
		if !placed[i].Held {
			known[i] = false
			continue
		}
		if known[i] {
			continue
		}
		out.Missed++
		if done[keys[i]] {
			continue
		}
		done[keys[i]] = true
		missing = append(missing, Missing{keys[i], placed[i].Spec, s})
	}
	if helped, ok := c.(Helped); ok && len(missing) > 0 {
		out.Captured, err = helped.Compute(m, missing)
		return known, err
	}
	for i, s := range missing {
		captured, err := m.Capture(s.Tokens, s.Spec)
		if err != nil {
			return nil, fmt.Errorf("missing segment %d: %w", i, err)
		}
		if err := c.Publish(s.Key, s.Tokens, captured); err != nil {
			return nil, fmt.Errorf("publish missing segment %d: %w", i, err)
		}
		out.Captured += len(s.Tokens)
	}
	return known, nil
}
