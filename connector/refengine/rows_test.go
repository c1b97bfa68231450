package refengine

import (
	"math"
	"runtime"
	"slices"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc/kernel"
	"github.com/spliced-kv/spliced/policy/profile"
)

// Rows replayed by the kernel are the states of decoding token by token: to the bit
// where the compiler does not fuse multiply-adds.
func TestRowsGiveTheStatesOfDecoding(t *testing.T) {
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			m := build[float32](t, tiny(f.family, f.rope, "LFL"))
			c := m.cfg.Linear
			st := m.NewState()
			if _, err := m.Prefill(st, text(1, 13)); err != nil {
				t.Fatal(err)
			}
			const n = 9
			tokens, base, one := text(2, n), st.Clone(), st.Clone()
			logits, rows, err := m.PrefillRows(st, tokens)
			if err != nil {
				t.Fatal(err)
			}
			packed := PackRows(m.prof, rows, 0, n)
			for i := range n {
				want, err := m.Prefill(one, tokens[i:i+1])
				if err != nil {
					t.Fatal(err)
				}
				if i == n-1 && !slices.Equal(want, logits) {
					t.Error("keeping rows changes the logits")
				}
				for layer, kind := range m.cfg.Layers {
					if kind != profile.KindLinear {
						continue
					}
					got := slices.Clone(base.Layers[layer].S)
					for h := range c.ValueHeads {
						size := c.KeyDim * c.ValueDim
						kernel.Replay(c.KeyDim, c.ValueDim, got[h*size:][:size], headRows(m, packed, layer, h, n, i+1))
					}
					wantClose(t, got, one.Layers[layer].S)
				}
			}
		})
	}
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

func wantClose(t *testing.T, got, want []float32) {
	t.Helper()
	for i, v := range want {
		if runtime.GOARCH == "amd64" && math.Float32bits(got[i]) != math.Float32bits(v) || math.Abs(float64(got[i]-v)) > 1e-5 {
			t.Fatalf("number %d is %v, want %v", i, got[i], v)
		}
	}
}
