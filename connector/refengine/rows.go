package refengine

import (
	"github.com/spliced-kv/spliced/gpuipc/kernel"
	"github.com/spliced-kv/spliced/policy/profile"
)

// Rows is what consecutive tokens leave for a buffer: with it their states can be
// computed again without the model. Indexed by layer; other layers than linear ones
// have none.
type Rows[F Float] struct {
	Tokens int
	Layers []RowsLayer[F]
}

// RowsLayer is one linear layer of Rows: decays [Tokens, gates], keys [Tokens,
// KeyHeads, KeyDim] as the recurrence reads them, delta values [Tokens, ValueHeads,
// ValueDim], and inputs of the convolution [Tokens, channels].
type RowsLayer[F Float] struct{ Decay, Conv, K, U []F }

// PrefillRows is Prefill that also keeps the tokens' rows.
func (m *Model[F]) PrefillRows(st *State[F], tokens []uint32) (logits []F, rows *Rows[F], err error) {
	rows = &Rows[F]{Tokens: len(tokens), Layers: make([]RowsLayer[F], len(m.layers))}
	w := m.continuing(st, len(tokens))
	w.tap = func(layer int, w *walk[F]) {
		m.keepRows(&rows.Layers[layer], w, m.layers[layer].linear, st.Layers[layer].S)
	}
	if logits, err = m.run(w, tokens); err != nil {
		return nil, nil, err
	}
	st.Tokens += len(tokens)
	return logits, rows, nil
}

// keepRows copies what the recurrence of a layer is about to read. Delta values
// depend on the states on the way, so the recurrence runs once more on a copy.
func (m *Model[F]) keepRows(out *RowsLayer[F], w *walk[F], l *linear[F], before []F) {
	c := m.cfg.Linear
	channels, keys, values := c.ConvChannels(), c.KeyHeads*c.KeyDim, c.ValueHeads*c.ValueDim
	size := c.KeyDim * c.ValueDim
	per := max(1, c.Gates()/c.ValueHeads)
	out.Decay = make([]F, w.rows*c.ValueHeads*per)
	out.U = make([]F, w.rows*values)
	for r := range w.rows {
		out.K = append(out.K, w.mixed[r*channels+keys:][:keys]...)
		if c.Kernel > 0 {
			out.Conv = append(out.Conv, w.in[r*l.cols:][:channels]...)
		}
	}
	m.each(c.ValueHeads, func(h int) {
		in := m.valueHead(w, l, h, 0, w.rows)
		in.kept, in.skept = out.U[h*c.ValueDim:], values
		state := append([]F(nil), before[h*size:][:size]...)
		in.run(state, c.KeyDim, c.ValueDim, nil, 0, make([]F, scratchSize(c)))
		for r := range w.rows {
			copy(out.Decay[(r*c.ValueHeads+h)*per:][:per], in.decay[r*in.sdecay:])
		}
	})
}

// PackRows lays rows [from, from+n) out by profile.BufferLayout(n).
func PackRows(p *profile.Profile, rows *Rows[float32], from, n int) []byte {
	layout := p.BufferLayout(n)
	out := make([]byte, layout.Bytes)
	for _, part := range layout.Parts {
		values := rows.Layers[part.Layer].part(part.Kind)
		row := part.Shape[1] * part.Shape[2]
		kernel.FromF32(out[part.Off:][:part.Len], values[from*row:(from+n)*row], kernel.DType(part.DType))
	}
	return out
}

func (l *RowsLayer[F]) part(k profile.PartKind) []F {
	switch k {
	case profile.PartT:
		return l.Decay
	case profile.PartConv:
		return l.Conv
	case profile.PartK:
		return l.K
	}
	return l.U
}
