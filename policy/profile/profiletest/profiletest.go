// Package profiletest holds models for tests. They are small, so that their objects fit
// into some megabytes of memory, and each has the difficult properties of its kind. A test
// that needs another size or kind of layer changes the identity or has its own.
package profiletest

import "github.com/spliced-kv/spliced/policy/profile"

// New is profile.New for an identity that is known to be valid. It panics otherwise.
func New(id profile.Identity) *profile.Profile {
	p, err := profile.New(id)
	if err != nil {
		panic(err)
	}
	return p
}

// TwoLayers has one linear layer and one attention layer. The linear layer is of a dense
// family with a convolution, more value heads than key heads, and a key dim unlike its
// value dim. The keys of the attention layer take 64 bytes per token, and so do its values.
func TwoLayers(ranks int) profile.Identity {
	return profile.Identity{
		Model: "test", Weights: [32]byte{7}, Tokenizer: "bytes", TPSize: ranks,
		Layers: []profile.Layer{
			{Kind: profile.KindLinear, Linear: profile.Linear{
				Family: profile.GDN, KeyHeads: 2, ValueHeads: 4, KeyDim: 16, ValueDim: 8, StateDType: profile.F32, TransitionDType: profile.F16,
				Conv: profile.Conv{Kernel: 4, Channels: []int{32, 32, 32}, DType: profile.F32},
			}},
			{Kind: profile.KindFull, Attention: profile.Attention{
				KVHeads: 2, KeyDim: 16, ValueDim: 16, DType: profile.BF16, Keys: profile.AtZero, Rope: profile.Rope{Dims: 8, Theta: 1e4},
			}},
		},
	}
}

// Small has one linear and one attention layer with parts of odd sizes. A segment of 40
// tokens takes some 10 KiB per rank.
func Small(ranks int) profile.Identity {
	return profile.Identity{
		Model: "small", Weights: [32]byte{1}, Tokenizer: "bytes", TPSize: ranks,
		Layers: []profile.Layer{
			{Kind: profile.KindLinear, Linear: profile.Linear{
				Family: profile.GDN, KeyHeads: 2, ValueHeads: 2, KeyDim: 8, ValueDim: 6, StateDType: profile.F32, TransitionDType: profile.F16,
				Conv: profile.Conv{Kernel: 4, Channels: []int{16, 16, 12}, DType: profile.BF16},
			}},
			{Kind: profile.KindFull, Attention: profile.Attention{
				KVHeads: 2, KeyDim: 18, ValueDim: 14, DType: profile.F32, Keys: profile.AtZero, Rope: profile.Rope{Dims: 8, Theta: 1e4},
			}},
		},
	}
}

// Hybrid has every kind of layer except KindConv. It has twice as many value heads as key
// heads, a key dim unlike the value dim, convolutions, and a linear layer with a scalar
// transition and rope.
func Hybrid(ranks int) profile.Identity {
	return profile.Identity{
		Model: "hybrid", Weights: [32]byte{1}, Tokenizer: "bytes", TPSize: ranks,
		Layers: []profile.Layer{
			{Kind: profile.KindLinear, Linear: profile.Linear{
				Family: profile.GDN, KeyHeads: 2, ValueHeads: 4, KeyDim: 16, ValueDim: 8, StateDType: profile.F32, TransitionDType: profile.F16,
				Conv: profile.Conv{Kernel: 4, Channels: []int{32, 32, 32}, DType: profile.BF16},
			}},
			{Kind: profile.KindFull, Attention: profile.Attention{
				KVHeads: 2, KeyDim: 16, ValueDim: 12, DType: profile.F32, Keys: profile.AtZero, Rope: profile.Rope{Dims: 8, Theta: 1e4},
			}},
			{Kind: profile.KindNone},
			{Kind: profile.KindLinear, Linear: profile.Linear{
				Family: profile.Lightning, KeyHeads: 4, ValueHeads: 4, KeyDim: 8, ValueDim: 6, StateDType: profile.F32, TransitionDType: profile.F32,
				Rope: profile.Rope{Dims: 8, Theta: 1e4, Interleaved: true}, Slopes: []float64{.1, .2, .3, .4},
			}},
			{Kind: profile.KindMLA, Attention: profile.Attention{
				KVHeads: 1, KeyDim: 16, ValueDim: 64, DType: profile.F32, Keys: profile.AtZero, Rope: profile.Rope{Dims: 16, Theta: 1e4},
			}},
			{Kind: profile.KindWindow, Attention: profile.Attention{
				KVHeads: 2, KeyDim: 16, ValueDim: 16, Window: 128, DType: profile.F32, Keys: profile.Unrotated, Rope: profile.Rope{Dims: 4, InvFreq: []float64{1, .5}},
			}},
			{Kind: profile.KindLinear, Linear: profile.Linear{
				Family: profile.GLA, KeyHeads: 2, ValueHeads: 2, KeyDim: 8, ValueDim: 10, StateDType: profile.F32, TransitionDType: profile.F32,
			}},
			{Kind: profile.KindFull, Attention: profile.Attention{
				KVHeads: 2, KeyDim: 8, ValueDim: 8, DType: profile.BF16, Keys: profile.AtZero,
			}},
		},
	}
}

// Wide has one attention layer for one rank, whose rows are wider than a kilobyte: 4.25 KiB
// per token for F32.
func Wide(dt profile.DType) profile.Identity {
	return profile.Identity{
		Model: "wide", Weights: [32]byte{2, byte(dt)}, Tokenizer: "bytes", TPSize: 1,
		Layers: []profile.Layer{{Kind: profile.KindMLA, Attention: profile.Attention{
			KVHeads: 1, KeyDim: 64, ValueDim: 1024, DType: dt, Keys: profile.AtZero,
		}}},
	}
}

// Speck has states of a few bytes and no rows. Its segments are smaller than any page, and
// a checkpoint that loses its states takes no bytes.
func Speck(ranks int) profile.Identity {
	return profile.Identity{
		Model: "speck", Weights: [32]byte{9}, Tokenizer: "bytes", TPSize: ranks,
		Layers: []profile.Layer{{Kind: profile.KindLinear, Linear: profile.Linear{
			Family: profile.GDN, KeyHeads: ranks, ValueHeads: ranks, KeyDim: 4, ValueDim: 4, StateDType: profile.F32, TransitionDType: profile.F32,
		}}},
	}
}
