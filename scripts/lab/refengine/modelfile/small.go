package modelfile

import "github.com/spliced-kv/spliced/policy/profile"

// Small returns a small version of Qwen3-Next's shape, the model of the demos: six gated
// delta-rule layers and two of attention; tokens are bytes. A prompt of 5,300 tokens takes about
// half a second on two cores. That is long enough to show savings, and short enough to run each
// prompt in several ways.
func Small(name string) Config {
	c := Config{
		Name: name, Vocab: 260, Dim: 128, Hidden: 256, Eps: 1e-6,
		Storage: Storage{State: profile.F32, Transition: profile.F16, Conv: profile.F32, KV: profile.BF16},
		Linear: LinearConfig{
			Family: profile.GDN, KeyHeads: 2, ValueHeads: 4, KeyDim: 32, ValueDim: 32, Kernel: 4,
		},
		Attention: AttentionConfig{
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
	return c
}
