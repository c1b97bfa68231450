package profile

import (
	"fmt"
	"testing"
)

func TestBufferLayoutHasTheRowsOfOneRank(t *testing.T) {
	p, err := New(hybrid()) // two ranks
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{-1, 0, 1, 7, 512} {
		checkLayout(t, p.BufferLayout(n))
	}
	got := ""
	for _, part := range p.BufferLayout(5).Parts {
		got += fmt.Sprintf("%d %s %s %v\n", part.Layer, part.Kind, part.DType, part.Shape)
	}
	want := `0 T f32 [5 2 1]
0 conv f32 [5 48 1]
0 K f32 [5 1 16]
0 V f32 [5 2 8]
3 T f32 [5 2 1]
3 K f32 [5 2 8]
3 V f32 [5 2 8]
`
	if got != want {
		t.Errorf("parts:\n%swant:\n%s", got, want)
	}
}

func TestDecaysOfSomeFamiliesArePerKeyChannel(t *testing.T) {
	for family, want := range map[Family]bool{RetNet: false, Lightning: false, Mamba2: false, GLA: true, Mamba1: true, DeltaNet: false, GDN: false, KDA: true, GDN2: true} {
		if l := (Linear{Family: family}); l.DecayPerKey() != want {
			t.Errorf("family %d: decay per key %v", family, !want)
		}
	}
}
