package refengine

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/scripts/lab/refengine/modelfile"
)

// families are the variants of HYPIC Table 1, and Lightning with rope inside.
var families = []struct {
	name   string
	family profile.Family
	rope   profile.Rope
}{
	{"RetNet", profile.RetNet, profile.Rope{}},
	{"Lightning", profile.Lightning, profile.Rope{}},
	{"LightningRope", profile.Lightning, profile.Rope{Dims: 4, Theta: 100}},
	{"LightningRopePairs", profile.Lightning, profile.Rope{Dims: 6, Theta: 100, Interleaved: true}},
	{"Mamba2", profile.Mamba2, profile.Rope{}},
	{"GLA", profile.GLA, profile.Rope{}},
	{"DeltaNet", profile.DeltaNet, profile.Rope{}},
	{"GDN", profile.GDN, profile.Rope{}},
	{"KDA", profile.KDA, profile.Rope{}},
	{"GDN2", profile.GDN2, profile.Rope{}},
}

// tiny is a small model with twice as many value heads as key heads, dk != dv
// and a convolution of 4: the shape in which a swapped head, axis or side shows.
// Some families leave out the gate, turn whole heads or have no convolution.
func tiny(family profile.Family, rope profile.Rope, layers string) modelfile.Config {
	c := modelfile.Config{
		Name: "tiny", Vocab: 260, Dim: 24, Hidden: 40, Eps: 1e-6, Storage: modelfile.Exact(),
		Linear: modelfile.LinearConfig{
			Family: family, KeyHeads: 2, ValueHeads: 4, KeyDim: 6, ValueDim: 5, Kernel: 4, Rope: rope,
		},
		Attention: modelfile.AttentionConfig{
			Heads: 4, KVHeads: 2, HeadDim: 8, Gate: family != profile.Mamba2,
			Rope: profile.Rope{Dims: 4, Theta: 1000, Interleaved: rope.Interleaved},
		},
	}
	if rope.Dims > 0 {
		c.Linear.Kernel = 0 // as Ring has it
	}
	if family == profile.GLA {
		c.Attention.Rope.Dims = c.Attention.HeadDim
	}
	for _, l := range layers {
		if l == 'L' {
			c.Layers = append(c.Layers, profile.KindLinear)
		} else {
			c.Layers = append(c.Layers, profile.KindFull)
		}
	}
	return c
}

func build[F Float](t testing.TB, c modelfile.Config) *Model[F] {
	t.Helper()
	w, err := modelfile.Seeded(c, 1)
	if err != nil {
		t.Fatal(err)
	}
	m, err := New[F](w)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func text(seed uint64, n int) []uint32 {
	rng := rand.New(rand.NewPCG(seed, 7))
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(rng.IntN(256))
	}
	return out
}

// distance is the relative Frobenius distance of got from want.
func distance[F Float](got, want []F) float64 {
	if len(got) != len(want) {
		return math.Inf(1)
	}
	var d, n float64
	for i := range want {
		e := float64(got[i]) - float64(want[i])
		d += e * e
		n += float64(want[i]) * float64(want[i])
	}
	if n == 0 {
		return math.Sqrt(d)
	}
	return math.Sqrt(d / n)
}

// stateDistance is the largest distance over all layers and tensors.
func stateDistance[F Float](got, want *State[F]) float64 {
	worst := 0.0
	for i := range want.Layers {
		g, w := got.Layers[i], want.Layers[i]
		for _, pair := range [][2][]F{{g.S, w.S}, {g.Conv, w.Conv}, {g.K, w.K}, {g.V, w.V}} {
			worst = max(worst, distance(pair[0], pair[1]))
		}
	}
	return worst
}

func equalStates[F Float](a, b *State[F]) bool {
	return a.Tokens == b.Tokens && slices.EqualFunc(a.Layers, b.Layers, func(x, y LayerState[F]) bool {
		return slices.Equal(x.S, y.S) && slices.Equal(x.Conv, y.Conv) && slices.Equal(x.K, y.K) && slices.Equal(x.V, y.V)
	})
}

func prefill[F Float](t testing.TB, m *Model[F], st *State[F], tokens []uint32) []F {
	t.Helper()
	logits, err := m.Prefill(st, tokens)
	if err != nil {
		t.Fatal(err)
	}
	return logits
}

func TestChunkedPrefillEqualsWhole(t *testing.T) {
	for _, f := range families {
		t.Run(f.name+"/fp32", func(t *testing.T) { chunkedPrefill[float32](t, tiny(f.family, f.rope, "LLFL")) })
		t.Run(f.name+"/fp64", func(t *testing.T) { chunkedPrefill[float64](t, tiny(f.family, f.rope, "LLFL")) })
	}
}

func chunkedPrefill[F Float](t *testing.T, c modelfile.Config) {
	m := build[F](t, c)
	tokens := text(1, 400)
	whole := m.NewState()
	want := prefill(t, m, whole, tokens)
	rng := rand.New(rand.NewPCG(3, 3))
	st := m.NewState()
	var got []F
	for lo := 0; lo < len(tokens); {
		n := min(1+rng.IntN(150), len(tokens)-lo)
		got = prefill(t, m, st, tokens[lo:lo+n])
		lo += n
		st = st.Clone() // as a checkpoint would
	}
	if !slices.Equal(got, want) || !equalStates(st, whole) {
		t.Errorf("chunked prefill differs: logits by %g, state by %g", distance(got, want), stateDistance(st, whole))
	}
}

func TestSinglePrecisionFollowsDouble(t *testing.T) {
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			c := tiny(f.family, f.rope, "LLFL")
			single, double := build[float32](t, c), build[float64](t, c)
			tokens := text(2, 150)
			got := prefill(t, single, single.NewState(), tokens)
			want := prefill(t, double, double.NewState(), tokens)
			if d := distance(convert[float64](got), want); d > 2e-5 {
				t.Errorf("logits of float32 are %.2g from float64", d)
			}
		})
	}
}

func TestSeededDecaysStayInRange(t *testing.T) {
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			m := build[float64](t, tiny(f.family, f.rope, "LL"))
			w := m.continuing(m.NewState(), 200)
			seen, outside := 0, 0
			w.tap = func(i int, w *walk[float64]) {
				for h := range m.cfg.Linear.ValueHeads {
					in := m.valueHead(w, m.layers[i].linear, h, 0, 200)
					for t := range in.n {
						for _, d := range in.decay[t*in.sdecay:][:1+in.perKey*(m.cfg.Linear.KeyDim-1)] {
							seen++
							if d < 0.9 || d > 0.999 {
								outside++
							}
						}
					}
				}
			}
			if _, err := m.run(w, text(3, 200)); err != nil {
				t.Fatal(err)
			}
			if f.family != profile.DeltaNet && outside > 0 {
				t.Errorf("%d of %d decays outside 0.9 to 0.999", outside, seen)
			}
		})
	}
}
