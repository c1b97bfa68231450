package refengine

import (
	"fmt"

	"github.com/spliced-kv/spliced/gpuipc/kernel"
	"github.com/spliced-kv/spliced/policy/profile"
)

// Adding is a Cache that joins segments naively: end-states are added without their transitions
// (HYPIC Eq. 5). It exists only for measurements. Everything else is as in a splice, so the
// difference to a splice is the error that transitions remove.
type Adding struct{ Cache }

// Acquire implements Cache.
func (a Adding) Acquire(keys []profile.SegmentKey, specs []profile.SegmentSpec) (Leases, []bool, error) {
	leases, held, err := a.Cache.Acquire(keys, specs)
	if err != nil {
		return nil, nil, err
	}
	return addingLeases{leases, len(keys)}, held, nil
}

type addingLeases struct {
	Leases
	n int
}

func (l addingLeases) Source(m *Model[float32], plan Plan, _ []uint32, from *State[float32]) (Source[float32], error) {
	segments := make([]PackedSegment, l.n)
	for i := range segments {
		segments[i] = l.Packed(i)
	}
	p, err := NewPacked(m, plan, from, segments)
	return added{p}, err
}

type added struct{ *Packed }

// States adds the end-states of segments to the running state. It applies recomputed spans with
// their transitions, because the engine computes them on the running state.
func (s added) States(layer int, own []Tuple[float32]) ([][]float32, error) {
	state := append([]float32(nil), s.from.Layers[layer].S...)
	end := make([]float32, len(state))
	var before [][]float32
	for _, p := range s.plan.Spans {
		if p.Segment >= 0 {
			b, part := s.find(p.Segment, layer, profile.PartS)
			if err := kernel.PartToF32(end, b, kernel.DType(part.DType), part.Packed, part.Shape); err != nil {
				return nil, fmt.Errorf("segment %d: %w", p.Segment, err)
			}
			for i, x := range s.m.anchored(end, p.Start-s.segments[p.Segment].Spec.Head) {
				state[i] += x
			}
			continue
		}
		before = append(before, append([]float32(nil), state...))
		if len(before) <= len(own) {
			s.m.Compose(state, own[len(before)-1])
		}
	}
	return before, nil
}
