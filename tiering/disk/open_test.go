package disk

import (
	"crypto/sha256"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/disk/catalog"
	"github.com/spliced-kv/spliced/tiering/disk/extent"
	"github.com/spliced-kv/spliced/tiering/disk/slab"
)

// rowsOnly fills the catalogue of a closed directory with rows of segments that
// were never written, two granules each.
func (s *shelf) rowsOnly(cfg Config, n int, change func(i int, r *catalog.Row)) {
	s.Helper()
	tier := s.openOK(cfg)
	w := segments(1, 1)[0]
	s.mustWrite(tier.Tier, w, tiering.LevelSynced) // its profile, and a slab
	name := w.name()
	tier.Remove(&name)
	v := tier.vol
	for len(v.set.Slabs())*int(cfg.SlabBytes/cfg.GranuleBytes-1) < 2*n {
		made, err := v.set.Grow()
		if err != nil {
			s.Fatal(err)
		}
		v.space.AddSlab(made.Number, made.Bytes)
	}
	fp := w.profile.Fingerprint()
	slabs := v.set.Slabs()
	per := int(cfg.SlabBytes/cfg.GranuleBytes-1) / 2
	var changes []catalog.Change
	for i := range n {
		row := &catalog.Row{
			Name: extent.Name{Key: sha256.Sum256(fmt.Append(nil, i))}, Generation: uint64(1000 + i), HeaderBytes: extent.BlockBytes,
			PayloadBytes: extent.BlockBytes, Tenant: 1, Fingerprint: fp, Spec: profile.SegmentSpec{Role: profile.RoleFirst, Tokens: 20},
			End: 20, Ranks: 1, RankBytes: 4096, Created: int64(i),
			Runs: []slab.Run{{Slab: slabs[i/per].Number, Off: int64(1+2*(i%per)) * cfg.GranuleBytes, Len: 2 * cfg.GranuleBytes}},
		}
		if change != nil {
			change(i, row)
		}
		if changes = append(changes, catalog.Change{Row: row}); len(changes) == 1000 || i == n-1 {
			if err := v.catalog.Commit(changes, false); err != nil {
				s.Fatal(err)
			}
			changes = changes[:0]
		}
	}
	if err := tier.close(); err != nil {
		s.Fatal(err)
	}
}

// Rows that cannot be true are dropped, and only they: of two that own the same
// space the younger stays; slabs that are not there, space outside of them, models
// and parents that nobody knows.
func TestOpenDropsWhatCannotBe(t *testing.T) {
	s := newShelf(t)
	cfg := onMem(s.config(), vfs.NewMem())
	lost := map[int]bool{3: true, 5: true, 7: true, 9: true, 11: true, 12: true, 13: true}
	s.rowsOnly(cfg, 40, func(i int, r *catalog.Row) {
		switch i {
		case 4:
			r.Runs[0].Off -= 2 * cfg.GranuleBytes // where 3 is, which is older
		case 5:
			r.Runs[0].Slab = 77
		case 7:
			r.Runs[0].Off = cfg.SlabBytes - cfg.GranuleBytes
		case 9:
			r.Fingerprint[0]++
		case 11:
			r.Tenant = 99
		case 12:
			r.Kind, r.Spec, r.Parent = 1, profile.SegmentSpec{}, extent.Name{Kind: 1, Key: [32]byte{1}}
		case 13: // extends 12, which is an orphan
			r.Kind, r.Spec, r.Parent = 1, profile.SegmentSpec{}, extent.Name{Kind: 1, Key: sha256.Sum256(fmt.Append(nil, 12))}
		}
	})
	for range 2 {
		tier := s.openOK(cfg)
		for i := range 40 {
			n := tiering.Name{Key: sha256.Sum256(fmt.Append(nil, i))}
			if i == 12 || i == 13 {
				n.Kind = 1
			}
			if _, ok := tier.Lookup(&n); ok == lost[i] {
				t.Errorf("row %d is there: %v", i, ok)
			}
		}
		s.check(tier.Tier)
		if err := tier.close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A slab that is lost costs its entries and no others; a budget made smaller gives
// up the slabs beyond it.
func TestOpenWithoutASlab(t *testing.T) {
	s := newShelf(t)
	mem := vfs.NewMem()
	cfg := onMem(s.config(), mem)
	cfg.SlabBytes = 128 << 10
	things := segments(1, 60)
	s.filled(cfg, things)
	lost := map[uint64]bool{}
	for _, w := range things {
		if s.whereIs(cfg, w).Slab == 2 {
			lost[w.seed] = true
		}
	}
	if err := mem.Remove(mem.PathJoin(cfg.Dir, slabDir, "000002.slab")); err != nil {
		t.Fatal(err)
	}
	tier := s.openOK(cfg)
	for _, w := range things {
		n := w.name()
		if _, ok := tier.Lookup(&n); ok == lost[w.seed] {
			t.Errorf("%d is there: %v", w.seed, ok)
		}
	}
	s.check(tier.Tier)
	if err := tier.close(); err != nil {
		t.Fatal(err)
	}
	cfg.PublicBytes, cfg.PrivateBytes = 384<<10, 0
	tier = s.openOK(cfg)
	if u := tier.Usage(); u.SlabBytes > cfg.PublicBytes || u.Pools[public].Entries == 0 {
		t.Errorf("%+v", u)
	}
	for _, w := range things {
		n := w.name()
		if _, ok := tier.Lookup(&n); ok {
			s.mustRead(tier.Tier, w)
		}
	}
	s.check(tier.Tier)
}

// The order of use survives: what was used last leaves last.
func TestOpenKeepsOrderOfUse(t *testing.T) {
	s := newShelf(t)
	cfg := onMem(s.config(), vfs.NewMem())
	things := segments(1, 20)
	tier := s.openOK(cfg)
	for _, w := range things {
		s.mustWrite(tier.Tier, w, tiering.LevelLogged)
	}
	for _, i := range []int{4, 2} {
		s.mustRead(tier.Tier, things[i])
	}
	if err := tier.close(); err != nil {
		t.Fatal(err)
	}
	tier = s.openOK(cfg)
	left := len(things)
	for range 18 {
		tier.Trim(tenantA, 1)
		left--
	}
	for i, w := range things {
		n := w.name()
		if _, ok := tier.Lookup(&n); ok != (i == 4 || i == 2) {
			t.Errorf("%d is there: %v", i, ok)
		}
	}
}

// BenchmarkOpen opens a directory of 100,000 entries.
func BenchmarkOpen(b *testing.B) {
	for _, n := range []int{10_000, 100_000} {
		b.Run(fmt.Sprintf("entries=%d", n), func(b *testing.B) {
			s := newShelf(b)
			cfg := s.config()
			cfg.Dir, cfg.PublicBytes, cfg.PrivateBytes, cfg.SlabBytes = b.TempDir()+"/tier", 1<<30, 0, 1<<29
			s.rowsOnly(cfg, n, nil)
			for b.Loop() {
				tier, err := Open(cfg)
				if err != nil {
					b.Fatal(err)
				}
				if c := tier.Counters(); c.Entries != uint64(n) {
					b.Fatalf("%+v %+v", c, tier.Health())
				}
				b.StopTimer()
				if err := tier.Close(); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}
