package refengine

import (
	"fmt"

	"github.com/spliced-kv/spliced/policy/profile"
)

// Placed is one segment of a prompt. Held means that the segment is cached and the plan may use
// it.
type Placed struct {
	Spec profile.SegmentSpec
	Held bool
}

// Span is one run of a plan: the interior of segment Segment, or, with
// Segment < 0, tokens to recompute. Start is a prompt position.
type Span struct {
	Segment int
	Start   int
	Count   int
}

// Plan covers the tokens [Begin, End) of a prompt exactly once. Its last span
// is recomputed: the query.
type Plan struct {
	Begin int
	End   int
	Spans []Span
}

// approximate reports whether a splice by this plan gives other values than a full prefill. That
// is so if a segment, which was computed in isolation, follows other tokens.
func (p *Plan) approximate() bool {
	for _, s := range p.Spans {
		if s.Segment >= 0 && s.Start > 0 {
			return true
		}
	}
	return false
}

// MakePlan returns a plan for a prompt that consists of some first tokens, the segments, and a
// query. begin is the number of first tokens, and query is the number of tokens of the query.
// Between two segments, the tail of the left segment and the head of the right segment are one
// recomputed span. The first tokens and a leading segment have no tail to recompute. A segment
// that is not cached is recomputed as a whole (HYPIC §4.3).
func MakePlan(begin int, segments []Placed, query int) (Plan, error) {
	p := Plan{Begin: begin}
	at := begin
	recompute := func(n int) {
		if n == 0 {
			return
		}
		if last := len(p.Spans) - 1; last >= 0 && p.Spans[last].Segment < 0 {
			p.Spans[last].Count += n
		} else {
			p.Spans = append(p.Spans, Span{Segment: -1, Start: at, Count: n})
		}
		at += n
	}
	for i, s := range segments {
		n := s.Spec.Tokens
		if !s.Held {
			recompute(n)
			continue
		}
		_, inside := s.Spec.Interior()
		if s.Spec.Role == profile.RoleFirst && at != 0 {
			return Plan{}, fmt.Errorf("segment %d leads its prompt but stands at %d: %w", i, at, ErrInvalid)
		}
		if inside <= 0 {
			return Plan{}, fmt.Errorf("segment %d of %d tokens has no interior: %w", i, n, ErrInvalid)
		}
		recompute(s.Spec.Head)
		p.Spans = append(p.Spans, Span{Segment: i, Start: at, Count: inside})
		at += inside
		recompute(s.Spec.Tail)
	}
	if query <= 0 {
		return Plan{}, fmt.Errorf("no query after %d tokens: %w", at, ErrInvalid)
	}
	recompute(query)
	p.End = at
	return p, nil
}

// Check returns an error unless the plan covers [Begin, End) exactly once, ends with a
// recomputed span, and has no two adjacent recomputed spans. Adjacent recomputed spans must be
// one span.
func (p Plan) Check() error {
	at := p.Begin
	for i, s := range p.Spans {
		if s.Start != at || s.Count <= 0 {
			return fmt.Errorf("span %d covers [%d, %d), expected it to begin at %d: %w", i, s.Start, s.Start+s.Count, at, ErrInvalid)
		}
		if i > 0 && s.Segment < 0 && p.Spans[i-1].Segment < 0 {
			return fmt.Errorf("spans %d and %d meet at %d and are both recomputed: %w", i-1, i, at, ErrInvalid)
		}
		at += s.Count
	}
	if at != p.End || len(p.Spans) == 0 || p.Spans[len(p.Spans)-1].Segment >= 0 {
		return fmt.Errorf("plan ends at %d with %d spans, expected a recomputed span up to %d: %w", at, len(p.Spans), p.End, ErrInvalid)
	}
	return nil
}

// Recomputed lists the plan's recomputed spans in order.
func (p Plan) Recomputed() []Span {
	var out []Span
	for _, s := range p.Spans {
		if s.Segment < 0 {
			out = append(out, s)
		}
	}
	return out
}

// Counts returns the number of tokens that the plan takes from segments, and the number that it
// recomputes.
func (p Plan) Counts() (cached, recomputed int) {
	for _, s := range p.Spans {
		if s.Segment < 0 {
			recomputed += s.Count
		} else {
			cached += s.Count
		}
	}
	return cached, recomputed
}

// beginning checks a plan and the state from which it starts, and returns the state. nil stands
// for the state before the first token.
func (m *Model[F]) beginning(plan Plan, from *State[F]) (*State[F], error) {
	if err := plan.Check(); err != nil {
		return nil, err
	}
	if from == nil {
		from = m.NewState()
	}
	if from.Tokens != plan.Begin {
		return nil, fmt.Errorf("state of %d tokens, plan begins at %d: %w", from.Tokens, plan.Begin, ErrInvalid)
	}
	return from, nil
}
