package refengine

import (
	"fmt"
)

// Source has the segments that a plan reuses, and composes running states with them. A splice
// calls it layer by layer, in order. The argument span of its methods is an index into the
// plan's recomputed spans.
type Source[F Float] interface {
	// Left returns the last Kernel-1 convolution inputs before a recomputed span.
	Left(layer, span int) ([]F, error)
	// States returns the running state before each recomputed span. The parameter own has the
	// tuples of all recomputed spans except the last. The caller may change the returned states.
	States(layer int, own []Tuple[F]) ([][]F, error)
	// Rows writes the rows of positions [0, Begin) and of the plan's segments, with keys
	// rotated to their positions, into k and v [End, KVHeads, HeadDim].
	Rows(layer int, k, v []F) error
}

// spliced is the surroundings of a splice.
type spliced[F Float] struct {
	m    *Model[F]
	plan *Plan
	src  Source[F]
	out  *State[F]
}

func (s spliced[F]) left(layer, span int) ([]F, error) { return s.src.Left(layer, span) }

func (s spliced[F]) states(layer int, own []Tuple[F]) ([][]F, error) {
	return s.src.States(layer, own)
}

func (s spliced[F]) rows(layer, end int) (kept[F], error) {
	n := end * s.m.rowSize()
	if p := s.out.Pages; p != nil {
		return kept[F]{pages: p, layer: layer}, p.fill(layer, s.plan, func(k, v []float32) error {
			return s.src.Rows(layer, any(k).([]F), any(v).([]F))
		})
	}
	// The capacity has room for some decoded tokens after the prompt.
	k, v := make([]F, n, n+n/16), make([]F, n, n+n/16)
	l := &s.out.Layers[layer]
	l.K, l.V = k, v
	return kept[F]{k: k, v: v}, s.src.Rows(layer, k, v)
}

func (s spliced[F]) leave(layer int, state, conv []F) {
	s.out.Layers[layer].S, s.out.Layers[layer].Conv = state, conv
}

// Splice runs a plan over prompt, whose tokens [plan.Begin, plan.End) the plan covers. Only the
// recomputed spans are computed, layer by layer; everything else comes from src (HYPIC §4.2,
// §4.3). Splice returns the logits after the last token and the state for decoding. If the state
// before plan.Begin was spliced, the caller must set Spliced in the new state too.
func (m *Model[F]) Splice(plan Plan, prompt []uint32, src Source[F]) (logits []F, st *State[F], err error) {
	return m.spliceInto(nil, plan, prompt, src)
}

// spliceInto is Splice that, if pages is not nil, stores attention rows in pages.
func (m *Model[F]) spliceInto(pages *Table, plan Plan, prompt []uint32, src Source[F]) (logits []F, st *State[F], err error) {
	if err := plan.Check(); err != nil {
		return nil, nil, err
	}
	if len(prompt) != plan.End {
		return nil, nil, fmt.Errorf("prompt of %d tokens, plan ends at %d: %w", len(prompt), plan.End, ErrInvalid)
	}
	st = &State[F]{Tokens: plan.End, Spliced: plan.approximate(), Layers: make([]LayerState[F], len(m.layers)), Pages: pages}
	w := &walk[F]{around: spliced[F]{m, &plan, src, st}}
	var tokens []uint32
	for _, s := range plan.Recomputed() {
		w.spans = append(w.spans, rowSpan{len(tokens), len(tokens) + s.Count, s.Start})
		tokens = append(tokens, prompt[s.Start:s.Start+s.Count]...)
	}
	if logits, err = m.run(w, tokens); err != nil {
		return nil, nil, err
	}
	return logits, st, nil
}
