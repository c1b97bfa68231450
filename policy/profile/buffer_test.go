package profile

import "testing"

func TestDecaysOfSomeFamiliesArePerKeyChannel(t *testing.T) {
	for family, want := range map[Family]bool{RetNet: false, Lightning: false, Mamba2: false, GLA: true, Mamba1: true, DeltaNet: false, GDN: false, KDA: true, GDN2: true} {
		if l := (Linear{Family: family}); l.DecayPerKey() != want {
			t.Errorf("family %d: decay per key %v", family, !want)
		}
	}
}
