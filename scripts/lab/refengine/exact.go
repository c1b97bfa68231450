package refengine

import (
	"fmt"

	"github.com/spliced-kv/spliced/policy/profile"
)

// Held is a Source in memory that computes in the model's own arithmetic. It rounds nothing and
// uses none of the daemon's kernels. It defines what a Source must return, and in float64 it is
// the oracle.
type Held[F Float] struct {
	m        *Model[F]
	plan     Plan
	from     *State[F] // state at plan.Begin; nil = zero
	segments []*Segment[F]
}

// NewHeld returns a Source for a plan. segments are the captured segments, indexed as in the
// plan. from is the state after the first plan.Begin tokens; nil if plan.Begin is 0.
func NewHeld[F Float](m *Model[F], plan Plan, from *State[F], segments []*Segment[F]) (*Held[F], error) {
	from, err := m.beginning(plan, from)
	if err != nil {
		return nil, err
	}
	for _, s := range plan.Spans {
		if s.Segment < 0 {
			continue
		}
		if s.Segment >= len(segments) || segments[s.Segment] == nil {
			return nil, fmt.Errorf("plan uses segment %d, which is not given: %w", s.Segment, ErrInvalid)
		}
		if _, n := segments[s.Segment].Spec.Interior(); s.Count != n {
			return nil, fmt.Errorf("segment %d has an interior of %d tokens, plan says %d: %w", s.Segment, n, s.Count, ErrInvalid)
		}
	}
	return &Held[F]{m: m, plan: plan, from: from, segments: segments}, nil
}

// Left implements Source.
func (s *Held[F]) Left(layer, span int) ([]F, error) {
	tail := s.from.Layers[layer].Conv
	for _, p := range s.plan.Spans {
		if p.Segment >= 0 {
			tail = s.segments[p.Segment].Layers[layer].Conv
			continue
		}
		if span == 0 {
			return tail, nil
		}
		span--
	}
	return nil, fmt.Errorf("span %d is not in the plan: %w", span, ErrInvalid)
}

// States implements Source.
func (s *Held[F]) States(layer int, own []Tuple[F]) ([][]F, error) {
	state := append([]F(nil), s.from.Layers[layer].S...)
	var before [][]F
	for _, p := range s.plan.Spans {
		var step Tuple[F]
		if p.Segment >= 0 {
			seg := s.segments[p.Segment]
			step = seg.Layers[layer].Tuple
			step.S = s.m.anchored(step.S, p.Start-seg.Spec.Head)
		} else {
			before = append(before, append([]F(nil), state...))
			if len(before) > len(own) {
				return before, nil
			}
			step = own[len(before)-1]
		}
		s.m.Compose(state, step)
	}
	return before, nil
}

// anchored returns an end-state that was captured at position 0, moved to position start. It
// rotates the state's key axis as keys are rotated (HYPIC Eq. 7).
func (m *Model[F]) anchored(state []F, start int) []F {
	c := m.cfg.Linear
	if c.Rope.Dims == 0 || start == 0 {
		return state
	}
	cos, sin := anglesAt[F](m.linRope.invFreq, start)
	out := append([]F(nil), state...)
	column := make([]F, c.KeyDim)
	for h := range c.ValueHeads {
		for j := range c.ValueDim {
			for i := range column {
				column[i] = out[(h*c.KeyDim+i)*c.ValueDim+j]
			}
			turn(column, cos, sin, c.Rope.Interleaved)
			for i, x := range column {
				out[(h*c.KeyDim+i)*c.ValueDim+j] = x
			}
		}
	}
	return out
}

// Compose advances a running state by a step: state = T*state + S for every value head
// (HYPIC Eq. 6).
func (m *Model[F]) Compose(state []F, step Tuple[F]) {
	c := m.cfg.Linear
	size, n := c.KeyDim*c.ValueDim, c.TransitionSize()
	for h := range c.ValueHeads {
		composeHead(c.Family.Transition(), state[h*size:][:size], step.T[h*n:][:n], step.S[h*size:][:size], c.KeyDim, c.ValueDim)
	}
}

func composeHead[F Float](form profile.Transition, state, t, s []F, dk, dv int) {
	next := append([]F(nil), s...)
	for i := range dk {
		row := next[i*dv:][:dv]
		switch form {
		case profile.Dense:
			for p, x := range t[i*dk:][:dk] {
				for j, y := range state[p*dv:][:dv] {
					row[j] += x * y
				}
			}
		case profile.Diagonal:
			for j, y := range state[i*dv:][:dv] {
				row[j] += t[i] * y
			}
		default:
			for j, y := range state[i*dv:][:dv] {
				row[j] += t[0] * y
			}
		}
	}
	copy(state, next)
}

// Rows implements Source.
func (s *Held[F]) Rows(layer int, k, v []F) error {
	a, row := s.m.cfg.Attention, s.m.rowSize()
	copy(k, s.from.Layers[layer].K)
	copy(v, s.from.Layers[layer].V)
	for _, p := range s.plan.Spans {
		if p.Segment < 0 {
			continue
		}
		seg := s.segments[p.Segment]
		cos, sin := anglesAt[F](s.m.attnRope.invFreq, p.Start-seg.Spec.Head)
		copy(v[p.Start*row:], seg.Layers[layer].V)
		copy(k[p.Start*row:], seg.Layers[layer].K)
		for r := p.Start * row; r < (p.Start+p.Count)*row; r += a.HeadDim {
			turn(k[r:][:a.HeadDim], cos, sin, a.Rope.Interleaved)
		}
	}
	return nil
}
