package cost

import (
	"testing"

	"github.com/spliced-kv/spliced/policy/profile"
)

// hybrid has 30 dense recurrent and 10 full layers with the sizes of HYPIC's
// storage arithmetic.
func hybrid(t *testing.T, family profile.Family, tp int) *profile.Profile {
	t.Helper()
	id := profile.Identity{Model: "hybrid", Weights: [32]byte{1}, Tokenizer: "bytes", TPSize: tp}
	for i := range 40 {
		if i%4 == 3 {
			id.Layers = append(id.Layers, profile.Layer{Kind: profile.KindFull, Attention: profile.Attention{
				KVHeads: 4, KeyDim: 128, ValueDim: 128, DType: profile.BF16, Keys: profile.AtZero,
			}})
			continue
		}
		transition := profile.F16
		if family.Transition() == profile.Scalar {
			transition = profile.F32
		}
		id.Layers = append(id.Layers, profile.Layer{Kind: profile.KindLinear, Linear: profile.Linear{
			Family: family, KeyHeads: 16, ValueHeads: 32, KeyDim: 128, ValueDim: 128,
			StateDType: profile.F32, TransitionDType: transition,
		}})
	}
	p, err := profile.New(id)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestSegmentsBelowTheBreakEvenSpendMoreOnStatesThanOnRows(t *testing.T) {
	s := FromProfile(hybrid(t, profile.GDN, 1))
	for _, c := range []struct {
		what      string
		got, want int64
	}{
		{"rows of a token", s.KVBytes, 20 << 10},
		{"rows of 131,072 tokens in one layer", s.RowBytes(131_072) / 10, 256 << 20},
		{"end-states of a segment", s.StateBytes, 60 << 20},
		{"end-states and transitions", s.SegmentBytes, 90 << 20},
		{"break-even with dense transitions", breakEven(&s), 4608},
	} {
		if c.got != c.want {
			t.Errorf("%s: %d, want %d", c.what, c.got, c.want)
		}
	}
	scalar := FromProfile(hybrid(t, profile.Mamba2, 1))
	if got := breakEven(&scalar); got != 3073 { // 3072 and the scalars' own 3,840 bytes
		t.Errorf("break-even with scalar transitions: %d, want 3073", got)
	}
}

// breakEven returns the number of tokens from which a segment has at least as many bytes of rows as of
// transitions and end-states.
func breakEven(s *Shape) int64 { return (s.SegmentTotalBytes(0) + s.KVBytes - 1) / s.KVBytes }

func TestRanksDoNotChangeTheSum(t *testing.T) {
	one, two := FromProfile(hybrid(t, profile.GDN, 1)), FromProfile(hybrid(t, profile.GDN, 2))
	if one != two {
		t.Errorf("one rank %+v, two ranks %+v", one, two)
	}
}
