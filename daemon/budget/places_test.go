package budget

import (
	"testing"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/codes"
	"github.com/spliced-kv/spliced/policy/profile"
)

func TestNobodyTakesAllPlacesOfProfiles(t *testing.T) {
	p := NewPlaces(64, 2)
	next := byte(0)
	fill := func(a Holders) (n int) {
		for ; ; n++ {
			next++
			if err := p.Take(a, profile.Fingerprint{next}); err != nil {
				if code, _ := codes.Of(err); code != wire.Busy {
					t.Error(err)
				}
				return n
			}
		}
	}
	var all []Holders
	for i, want := range []struct {
		uid, tenant uint32
		profiles    int
	}{{1, 1, 16}, {1, 1, 16}, {1, 1, 0}, {1, 2, 16}, {1, 2, 0}, {2, 2, 16}} {
		a := HoldersOf(uint64(i), want.uid, []uint32{want.tenant})
		all = append(all, a)
		if got := fill(a); got != want.profiles {
			t.Errorf("connection %d of user %d and tenant %d has %d profiles, not %d", i, want.uid, want.tenant, got, want.profiles)
		}
	}
	for h, held := range p.mu.uses {
		if h.kind == byConnection {
			for of := range held {
				p2 := all[h.id]
				if err := p.Take(p2, of); err != nil { // again needs no room
					t.Error(err)
				}
				p.GiveBack(p2, of)
			}
		}
	}
}

func TestPlacesThatAreGivenBackAreFree(t *testing.T) {
	p := NewPlaces(4, 1)
	a := HoldersOf(1, 0, nil)
	for i := range byte(4) {
		if err := p.Take(a, profile.Fingerprint{i}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range byte(4) {
		p.GiveBack(a, profile.Fingerprint{i})
	}
	if len(p.mu.uses) != 0 {
		t.Errorf("%d holders are left", len(p.mu.uses))
	}
}
