package refengine

import (
	"slices"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc/kernel"
	"github.com/spliced-kv/spliced/policy/profile"
)

// Rows of drafts, replayed by the kernel, are the states of decoding token by token.
func TestRowsGiveTheStatesOfDecoding(t *testing.T) {
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			m := build[float32](t, tiny(f.family, f.rope, "LFL"))
			c, oracle := m.cfg.Linear, decoded{t, m}
			const n = 9
			prompt, tokens := text(1, 13), text(2, n)
			st := m.NewState()
			prefill(t, m, st, prompt)
			base := st.Clone()
			d := NewDecoder(m, st, DecoderOptions{})
			for at := range 3 { // several calls, one buffer
				if _, err := d.Verify(tokens[3*at:][:3], nil); err != nil {
					t.Fatal(err)
				}
			}
			packed := d.Rows()
			for i := range n {
				_, one := oracle.behind(slices.Concat(prompt, tokens[:i+1]))
				for layer, kind := range m.cfg.Layers {
					if kind != profile.KindLinear {
						continue
					}
					got := slices.Clone(base.Layers[layer].S)
					for h := range c.ValueHeads {
						size := c.KeyDim * c.ValueDim
						kernel.Replay(c.KeyDim, c.ValueDim, got[h*size:][:size], headRows(m, packed, layer, h, n, i+1))
					}
					oracle.near("states", got, one.Layers[layer].S)
					if tail := one.Layers[layer].Conv; len(tail) > 0 {
						oracle.near("tail", tailOf(m, packed, layer, n, i+1, base.Layers[layer].Conv), tail)
					}
				}
			}
		})
	}
}

// tailOf moves a convolution's tail over the first rows of packed ones.
func tailOf(m *Model[float32], packed []byte, layer, n, first int, base []float32) []float32 {
	layout := m.prof.BufferLayout(n)
	p := layout.Parts[layout.Find(layer, profile.PartConv)]
	in := make([]float32, n*p.Shape[1])
	kernel.ToF32(in, packed[p.Off:][:p.Len], kernel.DType(p.DType))
	whole := slices.Concat(base, in[:first*p.Shape[1]])
	return whole[len(whole)-len(base):]
}

// headRows reads one head's first rows out of packed ones.
func headRows(m *Model[float32], packed []byte, layer, h, n, first int) kernel.Rows {
	layout := m.prof.BufferLayout(n)
	c := m.cfg.Linear
	part := func(kind profile.PartKind) ([]float32, int) {
		p := layout.Parts[layout.Find(layer, kind)]
		out := make([]float32, p.Len/4)
		kernel.ToF32(out, packed[p.Off:], kernel.DType(p.DType))
		return out, p.Shape[1] * p.Shape[2]
	}
	out := kernel.Rows{N: first, PerKey: m.prof.Layer(layer).Linear.DecayPerKey()}
	key, decays := h/(c.ValueHeads/c.KeyHeads), 1
	if out.PerKey {
		decays = c.KeyDim
	}
	out.K, out.KStep = part(profile.PartK)
	out.U, out.UStep = part(profile.PartV)
	out.G, out.GStep = part(profile.PartT)
	out.K, out.U, out.G = out.K[key*c.KeyDim:], out.U[h*c.ValueDim:], out.G[h*decays:]
	return out
}
