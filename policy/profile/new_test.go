package profile

import (
	"bytes"
	"testing"
)

// hybrid is a small model with every kind of layer, twice as many value heads
// as key heads and key dim unlike value dim.
func hybrid() Identity {
	return Identity{
		Model: "hybrid", Weights: [32]byte{1}, Tokenizer: "bytes", TPSize: 2,
		Layers: []Layer{
			{Kind: KindLinear, Linear: Linear{
				Family: GDN, KeyHeads: 2, ValueHeads: 4, KeyDim: 16, ValueDim: 8, StateDType: F32, TransitionDType: F16,
				Conv: Conv{Kernel: 4, Channels: []int{32, 32, 32}, DType: F32},
			}},
			{Kind: KindFull, Attention: Attention{
				KVHeads: 2, KeyDim: 16, ValueDim: 16, DType: BF16, Keys: AtZero, Rope: Rope{Dims: 8, Theta: 1e4},
			}},
			{Kind: KindNone},
			{Kind: KindLinear, Linear: Linear{
				Family: Lightning, KeyHeads: 4, ValueHeads: 4, KeyDim: 8, ValueDim: 8, StateDType: F32, TransitionDType: F32,
				Rope: Rope{Dims: 8, Theta: 1e4, Interleaved: true}, Slopes: []float64{.1, .2, .3, .4},
			}},
			{Kind: KindMLA, Attention: Attention{KVHeads: 1, KeyDim: 16, ValueDim: 64, DType: BF16, Keys: AtZero}},
			{Kind: KindWindow, Attention: Attention{
				KVHeads: 1, KeyDim: 16, ValueDim: 16, Window: 128, DType: F16, Keys: Unrotated, Rope: Rope{Dims: 4, InvFreq: []float64{1, .5}},
			}},
		},
	}
}

func TestParseIsTheInverseOfCanonical(t *testing.T) {
	p, err := New(hybrid())
	if err != nil {
		t.Fatal(err)
	}
	q, err := Parse(p.Canonical())
	if err != nil {
		t.Fatal(err)
	}
	if q.Fingerprint() != p.Fingerprint() || !bytes.Equal(q.Canonical(), p.Canonical()) {
		t.Error("a parsed profile differs from its source")
	}
}
