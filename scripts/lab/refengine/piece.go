package refengine

import (
	"fmt"

	"github.com/spliced-kv/spliced/policy/profile"
)

// CaptureFrom captures a segment whose first tokens were captured before. left is the segment of
// these tokens; it has the same role and head, and no tail. CaptureFrom computes only the tokens
// that follow those of left, and the few tokens of the head, which left does not contain. The
// result differs from that of Capture only by the rounding of left in storage.
func (m *Model[F]) CaptureFrom(tokens []uint32, spec profile.SegmentSpec, left *Segment[F]) (*Segment[F], error) {
	cut := left.Spec.Tokens
	begin, n := spec.Interior()
	end := begin + n
	switch {
	case spec.Tokens != len(tokens):
		return nil, fmt.Errorf("capture of %d tokens as a segment of %d: %w", len(tokens), spec.Tokens, ErrInvalid)
	case left.Spec != profile.SegmentSpec{Role: spec.Role, Head: spec.Head, Tokens: cut} || cut >= end:
		return nil, fmt.Errorf("capture of %+v behind %+v: %w", spec, left.Spec, ErrInvalid)
	}
	if err := m.prof.CheckSpec(spec); err != nil {
		return nil, err
	}
	st, err := m.behind(tokens[:begin], left)
	if err != nil {
		return nil, err
	}
	out := &Segment[F]{Spec: spec, Layers: make([]SegmentLayer[F], len(m.layers))}
	w := m.continuing(st, len(tokens)-cut)
	w.tap = func(layer int, w *walk[F]) {
		l := &out.Layers[layer]
		m.captureLinear(l, w, m.layers[layer].linear, 0, end-cut)
		before := &left.Layers[layer]
		l.Tuple = m.joined(before.Tuple, l.Tuple)
		m.tailBehind(l, before.Conv, end-cut)
	}
	if _, err := m.run(w, tokens[cut:]); err != nil {
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

// behind returns the state after the tokens of the piece, left. head has the tokens of its head.
func (m *Model[F]) behind(head []uint32, left *Segment[F]) (*State[F], error) {
	st := m.NewState()
	if len(head) > 0 {
		if _, err := m.Prefill(st, head); err != nil {
			return nil, err
		}
	}
	for i, kind := range m.cfg.Layers {
		at, l := &st.Layers[i], &left.Layers[i]
		switch kind {
		case profile.KindLinear:
			m.Compose(at.S, l.Tuple)
			at.Conv = append([]F(nil), l.Conv...)
		case profile.KindFull:
			at.K, at.V = append(at.K, l.K...), append(at.V, l.V...)
		}
	}
	st.Tokens = left.Spec.Tokens
	return st, nil
}

// joined returns one tuple that has the effect of two consecutive runs of tokens.
func (m *Model[F]) joined(first, next Tuple[F]) Tuple[F] {
	c := m.cfg.Linear
	out := Tuple[F]{T: append([]F(nil), first.T...), S: append([]F(nil), first.S...)}
	m.Compose(out.S, next)
	n := c.TransitionSize()
	for h := range c.ValueHeads {
		t, by := out.T[h*n:][:n], next.T[h*n:][:n]
		if c.Family.Transition() == profile.Dense {
			composeHead(profile.Dense, t, by, make([]F, n), c.KeyDim, c.KeyDim)
			continue
		}
		for i := range t {
			t[i] *= by[i]
		}
	}
	return out
}

// tailBehind completes a convolution's tail. captureLinear has seen only n rows and has filled
// the rest of the tail with zero rows; tailBehind replaces the zero rows by rows of before, the
// tail of the preceding piece of the segment.
func (m *Model[F]) tailBehind(l *SegmentLayer[F], before []F, n int) {
	channels := m.cfg.Linear.ConvChannels()
	if short := m.cfg.Linear.Kernel - 1 - n; short > 0 {
		copy(l.Conv[:short*channels], before[len(before)-short*channels:])
	}
}
