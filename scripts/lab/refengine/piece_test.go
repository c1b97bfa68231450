package refengine

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/spliced-kv/spliced/policy/profile"
)

// A segment in two pieces is the segment, to rounding: in float64 to 1e-9, for every
// family, wherever it is cut, with a head and without.
func TestASegmentInTwoPiecesIsTheSegment(t *testing.T) {
	for _, family := range []profile.Family{profile.GDN, profile.KDA, profile.DeltaNet, profile.GLA, profile.Mamba2} {
		m := build[float64](t, tiny(family, profile.Rope{}, "LLFL"))
		rng := rand.New(rand.NewPCG(5, 5))
		tokens := make([]uint32, 60)
		for i := range tokens {
			tokens[i] = rng.Uint32N(uint32(m.cfg.Vocab))
		}
		mid, ok := m.prof.MidSpec(len(tokens), 6)
		if !ok {
			t.Fatal("no such segment")
		}
		for _, spec := range []profile.SegmentSpec{mid, profile.FirstSpec(len(tokens))} {
			whole, err := m.Capture(tokens, spec)
			if err != nil {
				t.Fatal(err)
			}
			_, n := spec.Interior()
			for _, cut := range []int{spec.Head + 12, 30, spec.Head + n - 1} {
				left, err := m.Capture(tokens[:cut], profile.SegmentSpec{Role: spec.Role, Head: spec.Head, Tokens: cut})
				if err != nil {
					t.Fatal(err)
				}
				joined, err := m.CaptureFrom(tokens, spec, left)
				if err != nil {
					t.Fatal(err)
				}
				if d := differ(whole, joined); !(d < 1e-9) {
					t.Errorf("family %v, %+v cut at %d: differs by %v", family, spec, cut, d)
				}
			}
			if _, err := m.CaptureFrom(tokens, spec, whole); err == nil {
				t.Errorf("%+v goes on from all of itself", spec)
			}
		}
	}
}

// differ is the largest difference of two segments, relative to 1 or what they have.
func differ(a, b *Segment[float64]) (worst float64) {
	for i := range a.Layers {
		for _, k := range []profile.PartKind{profile.PartT, profile.PartS, profile.PartConv, profile.PartK, profile.PartV} {
			x, y := a.Layers[i].Part(k), b.Layers[i].Part(k)
			if len(x) != len(y) {
				return math.Inf(1)
			}
			for j := range x {
				worst = max(worst, math.Abs(x[j]-y[j])/max(1, math.Abs(x[j])))
			}
		}
	}
	return worst
}
