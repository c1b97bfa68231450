package chatdemo

import (
	"github.com/spliced-kv/spliced/connector/refengine"
	"github.com/spliced-kv/spliced/policy/profile"
)

// modelSeed draws the demo's weights: the same on every run.
const modelSeed = 2

// model is Qwen3-Next's shape in small, with random weights. Its name keeps what
// one way stores apart from what another does.
func model(name string) (*refengine.Model[float32], error) {
	c := refengine.Config{
		Name: name, Vocab: 260, Dim: 128, Hidden: 256, Eps: 1e-6,
		Storage: refengine.Storage{State: profile.F32, Transition: profile.F16, Conv: profile.F32, KV: profile.BF16},
		Linear: refengine.LinearConfig{
			Family: profile.GDN, KeyHeads: 2, ValueHeads: 4, KeyDim: 32, ValueDim: 32, Kernel: 4,
		},
		Attention: refengine.AttentionConfig{
			Heads: 2, KVHeads: 1, HeadDim: 32, Gate: true, Rope: profile.Rope{Dims: 16, Theta: 1e6},
		},
	}
	for i := range 8 {
		kind := profile.KindLinear
		if i%4 == 3 {
			kind = profile.KindFull
		}
		c.Layers = append(c.Layers, kind)
	}
	w, err := refengine.Seeded(c, modelSeed)
	if err != nil {
		return nil, err
	}
	return refengine.New[float32](w)
}
