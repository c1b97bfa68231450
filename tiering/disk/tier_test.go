package disk

import (
	"errors"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/tiertest"
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
				if !real && coded != nil {
					rest(t)
				}
				tiertest.Leaks(t)
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
				lower := s.openOK(cfg)
				for i, w := range things {
					s.mustWrite(lower.Tier, w, tier.LevelLogged+tier.Level(i%2))
				}
				for round := range 3 {
					for _, w := range things {
						s.mustRead(lower.Tier, w)
					}
					s.check(lower.Tier)
					must(t, lower.close())
					if round < 2 {
						lower = s.openOK(cfg)
					}
				}
			})
		}
	}
}

// A level that was asked for is the level that a lookup tells.
func TestLevels(t *testing.T) {
	s := newShelf(t)
	lower := s.openOK(onMem(s.config(), vfs.NewMem()))
	w := segments(1, 2)
	s.mustWrite(lower.Tier, w[0], tier.LevelLogged)
	n := w[0].name()
	if e, ok := lower.Lookup(&n); !ok || e.Level != tier.LevelLogged {
		t.Fatalf("%+v, %v", e, ok)
	}
	s.mustWrite(lower.Tier, w[1], tier.LevelSynced)
	for _, w := range w {
		n := w.name()
		if e, ok := lower.Lookup(&n); !ok || e.Level != tier.LevelSynced {
			t.Fatalf("after a sync: %+v, %v", e, ok)
		}
	}
}

// Unknown objects, parents and tenants are told apart from what is there.
func TestAdmitRefuses(t *testing.T) {
	s := newShelf(t)
	lower := s.openOK(onMem(s.config(), vfs.NewMem()))
	c := chain(1, 2, tenantA)
	for name, test := range map[string]struct {
		w    thing
		want error
	}{
		"parent not here":  {c[1], tier.ErrInvalid},
		"unknown tenant":   {thing{seed: 9, profile: smallOne, tenant: 77, tokens: 20}, tier.ErrInvalid},
		"larger than all":  {thing{seed: 9, profile: wide(profile.F32), tenant: tenantA, tokens: 1000}, tier.ErrFull},
		"larger than pool": {thing{seed: 9, profile: smallOne, tenant: tenantA, kind: tier.Exact, tokens: 4100}, tier.ErrFull},
	} {
		if err := s.write(lower.Tier, test.w, tier.LevelLogged); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
	}
	if c := lower.Counters(); c.Entries != 0 || c.RefusedInvalid != 2 || c.RefusedFull != 2 {
		t.Errorf("%+v", c)
	}
	s.check(lower.Tier)
}
