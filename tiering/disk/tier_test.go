package disk

import (
	"errors"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering"
)

// Everything that was written is there with its bytes, in the same process and
// after the directory was opened again, on a real disk and in memory, with codecs
// and without.
func TestWriteReadReopen(t *testing.T) {
	kv := []profile.PartKind{profile.PartK, profile.PartV}
	all := []profile.PartKind{profile.PartT, profile.PartS, profile.PartConv, profile.PartK, profile.PartV}
	for _, real := range []bool{false, true} {
		for name, coded := range map[string][]profile.PartKind{"none": nil, "kv": kv, "all": all} {
			t.Run(fmt.Sprintf("real=%v/codec=%s", real, name), func(t *testing.T) {
				leaks(t)
				s := newShelf(t)
				cfg := s.config()
				cfg.PublicBytes, cfg.SlabBytes, cfg.Coded = 40<<20, 8<<20, coded
				if real {
					cfg.Dir = t.TempDir() + "/tier"
				} else {
					cfg = onMem(cfg, vfs.NewMem())
				}
				things := append(segments(1, 20), chain(100, 5, tenantB)...)
				things = append(things,
					thing{seed: 200, profile: wide(profile.BF16), tenant: tenantB, tokens: 900},
					thing{seed: 201, profile: wide(profile.F32), tenant: tenantA, tokens: 777},
					thing{seed: 202, profile: smallTwo, tenant: tenantA, tokens: 333},
				)
				tier := s.openOK(cfg)
				for i, w := range things {
					s.mustWrite(tier.Tier, w, tiering.LevelLogged+tiering.Level(i%2))
				}
				for round := range 3 {
					for _, w := range things {
						s.mustRead(tier.Tier, w)
					}
					s.check(tier.Tier)
					if err := tier.close(); err != nil {
						t.Fatal(err)
					}
					if round < 2 {
						tier = s.openOK(cfg)
					}
				}
			})
		}
	}
}

// A level that was asked for is the level that a lookup tells.
func TestLevels(t *testing.T) {
	s := newShelf(t)
	tier := s.openOK(onMem(s.config(), vfs.NewMem()))
	w := segments(1, 2)
	s.mustWrite(tier.Tier, w[0], tiering.LevelLogged)
	n := w[0].name()
	if e, ok := tier.Lookup(&n); !ok || e.Level != tiering.LevelLogged {
		t.Fatalf("%+v, %v", e, ok)
	}
	s.mustWrite(tier.Tier, w[1], tiering.LevelSynced)
	for _, w := range w {
		n := w.name()
		if e, ok := tier.Lookup(&n); !ok || e.Level != tiering.LevelSynced {
			t.Fatalf("after a sync: %+v, %v", e, ok)
		}
	}
}

// Unknown objects, parents and tenants are told apart from what is there.
func TestAdmitRefuses(t *testing.T) {
	s := newShelf(t)
	tier := s.openOK(onMem(s.config(), vfs.NewMem()))
	c := chain(1, 2, tenantA)
	for name, test := range map[string]struct {
		w    thing
		want error
	}{
		"parent not here":  {c[1], tiering.ErrInvalid},
		"unknown tenant":   {thing{seed: 9, profile: smallOne, tenant: 77, tokens: 20}, tiering.ErrInvalid},
		"larger than all":  {thing{seed: 9, profile: wide(profile.F32), tenant: tenantA, tokens: 1000}, tiering.ErrFull},
		"larger than pool": {thing{seed: 9, profile: smallOne, tenant: tenantA, kind: tiering.Exact, tokens: 4100}, tiering.ErrFull},
	} {
		if err := s.write(tier.Tier, test.w, tiering.LevelLogged); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
	}
	if c := tier.Counters(); c.Entries != 0 || c.RefusedInvalid != 2 || c.RefusedFull != 2 {
		t.Errorf("%+v", c)
	}
	s.check(tier.Tier)
}
