package refengine

import "github.com/spliced-kv/spliced/policy/profile"

// State is everything that a request keeps after its first tokens; Tokens is their number. It
// owns the per-layer slices.
type State[F Float] struct {
	Tokens int
	// Spliced marks a state that includes segments from other contexts. It stays set when more
	// tokens are computed after it.
	Spliced bool
	Layers  []LayerState[F]
	// Pages, if not nil, holds the attention rows instead of K and V of the layers.
	Pages *Table
}

// LayerState is one layer of a State: S [ValueHeads, KeyDim, ValueDim] and Conv
// [Kernel-1, channels] for linear layers, K and V [Tokens, KVHeads, HeadDim],
// keys rotated to their positions, for attention layers.
type LayerState[F Float] struct{ S, Conv, K, V []F }

// NewState returns the state before the first token.
func (m *Model[F]) NewState() *State[F] {
	s := &State[F]{Layers: make([]LayerState[F], len(m.layers))}
	for i, kind := range m.cfg.Layers {
		if kind == profile.KindLinear {
			s.Layers[i].S = make([]F, m.stateSize())
			s.Layers[i].Conv = make([]F, m.convSize())
		}
	}
	return s
}

// rows returns the location of a layer's rows, with room up to end.
func (s *State[F]) rows(layer, end, size int) (kept[F], error) {
	if s.Pages != nil {
		return kept[F]{pages: s.Pages, layer: layer}, s.Pages.reaches(end)
	}
	l := &s.Layers[layer]
	l.K, l.V = extended(l.K, end*size), extended(l.V, end*size)
	return kept[F]{k: l.K, v: l.V}, nil
}

// Clone copies a state. Rows in pages are copied into the layers of the copy.
func (s *State[F]) Clone() *State[F] {
	c := &State[F]{Tokens: s.Tokens, Spliced: s.Spliced, Layers: make([]LayerState[F], len(s.Layers))}
	for i, l := range s.Layers {
		c.Layers[i] = LayerState[F]{
			S: append([]F(nil), l.S...), Conv: append([]F(nil), l.Conv...),
			K: append([]F(nil), l.K...), V: append([]F(nil), l.V...),
		}
	}
	switch {
	case s.Pages == nil:
	case s.Pages.gone:
		c.Pages = s.Pages // released pages: every use returns an error
	default:
		s.Pages.copyOut(any(c).(*State[float32]))
	}
	return c
}

func (m *Model[F]) stateSize() int {
	l := m.cfg.Linear
	return l.ValueHeads * l.KeyDim * l.ValueDim
}

func (m *Model[F]) convSize() int {
	if m.cfg.Linear.Kernel == 0 {
		return 0
	}
	return (m.cfg.Linear.Kernel - 1) * m.cfg.Linear.ConvChannels()
}

// rowSize returns the number of elements of one token's keys, or values.
func (m *Model[F]) rowSize() int { return m.cfg.Attention.KVHeads * m.cfg.Attention.HeadDim }
