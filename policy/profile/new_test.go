package profile

import (
	"bytes"
	"reflect"
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
	must(t, err)
	q, err := Parse(p.Canonical())
	must(t, err)
	if q.Fingerprint() != p.Fingerprint() || !bytes.Equal(q.Canonical(), p.Canonical()) {
		t.Error("a parsed profile differs from its source")
	}
}

func shortConv(kernel int) Layer {
	return Layer{Kind: KindConv, Linear: Linear{Conv: Conv{Kernel: kernel, Channels: []int{64}, DType: BF16}}}
}

func TestWhatAKindDoesNotUseDoesNotCount(t *testing.T) {
	plain, odd := hybrid(), hybrid()
	plain.Layers = append(plain.Layers, shortConv(3))
	odd.Layers = append(odd.Layers, shortConv(3))
	for i := range odd.Layers {
		l := &odd.Layers[i]
		switch l.Kind {
		case KindLinear:
			l.Attention = hybrid().Layers[1].Attention
		case KindConv:
			conv := l.Linear.Conv
			l.Linear, l.Attention = hybrid().Layers[0].Linear, hybrid().Layers[1].Attention
			l.Linear.Conv = conv
		case KindNone:
			l.Linear, l.Attention = hybrid().Layers[0].Linear, hybrid().Layers[1].Attention
		default:
			l.Linear = hybrid().Layers[0].Linear
		}
	}
	p, err := New(plain)
	must(t, err)
	if q, err := New(odd); err != nil || q.Fingerprint() != p.Fingerprint() || !reflect.DeepEqual(q.Identity(), p.Identity()) {
		t.Errorf("another profile (%v)", err)
	}
}
