package refengine

import (
	"fmt"

	"github.com/spliced-kv/spliced/policy/profile"
)

// Segment is the reusable result of a token span, in full precision: for linear layers (T, S) of
// the interior and the interior's last Kernel-1 convolution inputs; for attention layers the
// interior's values, and its keys, rotated to their positions in the whole segment.
type Segment[F Float] struct {
	Spec   profile.SegmentSpec
	Layers []SegmentLayer[F]
}

// SegmentLayer is one layer of a Segment.
type SegmentLayer[F Float] struct {
	Tuple[F]
	Conv []F
	K, V []F
}

// Capture runs tokens in isolation and returns the segment that spec describes. In isolation
// means from position 0, with zero states, an empty convolution, and attention within the tokens
// only. The result depends only on the weights, the tokens and the spec.
func (m *Model[F]) Capture(tokens []uint32, spec profile.SegmentSpec) (*Segment[F], error) {
	if spec.Tokens != len(tokens) {
		return nil, fmt.Errorf("capture of %d tokens as a segment of %d: %w", len(tokens), spec.Tokens, ErrInvalid)
	}
	if err := m.prof.CheckSpec(spec); err != nil {
		return nil, err
	}
	begin, n := spec.Interior()
	end := begin + n
	out := &Segment[F]{Spec: spec, Layers: make([]SegmentLayer[F], len(m.layers))}
	st := m.NewState()
	w := m.continuing(st, len(tokens))
	w.tap = func(layer int, w *walk[F]) {
		m.captureLinear(&out.Layers[layer], w, m.layers[layer].linear, begin, end)
	}
	if _, err := m.run(w, tokens); err != nil {
		return nil, err
	}
	row := m.rowSize()
	for i, kind := range m.cfg.Layers {
		if kind == profile.KindFull {
			out.Layers[i].K = st.Layers[i].K[begin*row : end*row]
			out.Layers[i].V = st.Layers[i].V[begin*row : end*row]
		}
	}
	return out, nil
}

func (m *Model[F]) captureLinear(out *SegmentLayer[F], w *walk[F], l *linear[F], begin, end int) {
	out.Tuple = m.newTuple()
	m.each(m.cfg.Linear.ValueHeads, func(h int) { m.tupleHead(w, l, out.Tuple, h, begin, end) })
	c := m.cfg.Linear.ConvChannels()
	first := end - max(m.cfg.Linear.Kernel-1, 0)
	// A leading segment may be shorter than the tail: before token 0 the convolution's
	// inputs are zeros.
	out.Conv = make([]F, c*max(0, -first), m.convSize())
	for t := max(first, 0); t < end; t++ {
		out.Conv = append(out.Conv, w.in[t*l.cols:][:c]...)
	}
}
