package server

import (
	"testing"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/codes"
	"github.com/spliced-kv/spliced/policy/profile"
)

func TestNobodyTakesAllPlacesOfProfiles(t *testing.T) {
	p := newPlaces(64, 2)
	next := byte(0)
	fill := func(a *attachment) (n int) {
		for ; ; n++ {
			next++
			if err := p.take(a.holders(), profile.Fingerprint{next}); err != nil {
				if code, _ := codes.Of(err); code != wire.Busy {
					t.Error(err)
				}
				return n
			}
		}
	}
	var all []*attachment
	for i, want := range []struct {
		uid, tenant uint32
		profiles    int
	}{{1, 1, 16}, {1, 1, 16}, {1, 1, 0}, {1, 2, 16}, {1, 2, 0}, {2, 2, 16}} {
		a := &attachment{id: uint64(i), uid: want.uid, tenants: []uint32{want.tenant}}
		all = append(all, a)
		if got := fill(a); got != want.profiles {
			t.Errorf("connection %d of user %d and tenant %d has %d profiles, not %d", i, want.uid, want.tenant, got, want.profiles)
		}
	}
	for h, held := range p.mu.uses {
		if h.kind == byConnection {
			for of := range held {
				p2 := all[h.id].holders()
				if err := p.take(p2, of); err != nil { // again needs no room
					t.Error(err)
				}
				p.giveBack(p2, of)
			}
		}
	}
}

func TestPlacesThatAreGivenBackAreFree(t *testing.T) {
	p := newPlaces(4, 1)
	a := &attachment{id: 1}
	for i := range byte(4) {
		if err := p.take(a.holders(), profile.Fingerprint{i}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range byte(4) {
		p.giveBack(a.holders(), profile.Fingerprint{i})
	}
	if len(p.mu.uses) != 0 {
		t.Errorf("%d holders are left", len(p.mu.uses))
	}
}
