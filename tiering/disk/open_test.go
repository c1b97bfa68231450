package disk

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/disk/catalog"
	"github.com/spliced-kv/spliced/tiering/disk/extent"
	"github.com/spliced-kv/spliced/tiering/disk/slab"
	"github.com/spliced-kv/spliced/tiering/disk/slab/slabtest"
	"github.com/spliced-kv/spliced/tiering/disk/volume"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// rowsOnly fills the catalogue of a closed directory with rows of segments that
// were never written, two granules each.
func (s *shelf) rowsOnly(cfg Config, n int, change func(i int, r *catalog.Row)) {
	s.Helper()
	lower := s.openOK(cfg)
	w := segments(1, 1)[0]
	s.mustWrite(lower.Tier, w, tier.LevelSynced) // its profile, and a slab
	name := w.name()
	lower.Remove(&name)
	v := lower.mount
	for len(v.Slabs())*int(cfg.SlabBytes/cfg.GranuleBytes-1) < 2*n {
		made, err := v.Grow()
		must(s, err)
		v.Space.AddSlab(made.Number, made.Bytes)
	}
	fp := w.profile.Fingerprint()
	slabs := v.Slabs()
	per := int(cfg.SlabBytes/cfg.GranuleBytes-1) / 2
	var changes []catalog.Change
	for i := range n {
		row := &catalog.Row{
			Name: extent.Name{Key: sha256.Sum256(fmt.Append(nil, i))}, Generation: uint64(1000 + i), HeaderBytes: extent.BlockBytes,
			PayloadBytes: extent.BlockBytes, Tenant: 1, Fingerprint: fp, Spec: profile.SegmentSpec{Role: profile.RoleFirst, Tokens: 1},
			End: 1, Ranks: 1, RankBytes: w.profile.SegmentLayout(1).Bytes, Created: int64(i),
			Runs: []slab.Run{{Slab: slabs[i/per].Number, Off: int64(1+2*(i%per)) * cfg.GranuleBytes, Len: 2 * cfg.GranuleBytes}},
		}
		if change != nil {
			change(i, row)
		}
		if changes = append(changes, catalog.Change{Row: row}); len(changes) == 1000 || i == n-1 {
			must(s, v.Catalog.Commit(changes, false))
			changes = changes[:0]
		}
	}
	must(s, lower.close())
	// As if all had been synced: else the rows are suspect, read, and found to have
	// nothing behind them.
	again, err := volume.Open(lower.cfg.volume())
	must(s, err)
	data, rows := again.Sync(nil, uint64(1000+n))
	must(s, errors.Join(data, rows, again.Close()))
}

// Rows that cannot be true are dropped, and only they: of two that own the same
// space the younger stays; slabs that are not there, space outside of them, models
// and parents that nobody knows.
func TestOpenDropsWhatCannotBe(t *testing.T) {
	s := newShelf(t)
	cfg := onMem(s.config(), vfs.NewMem())
	lost := map[int]bool{3: true, 5: true, 7: true, 9: true, 11: true, 12: true, 13: true, 15: true}
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
		case 15:
			r.PayloadBytes += 4096 // more than its model has
			r.Runs[0].Len += cfg.GranuleBytes
		case 12:
			r.Kind, r.Spec, r.Parent = 1, profile.SegmentSpec{}, extent.Name{Kind: 1, Key: [32]byte{1}}
		case 13: // extends 12, which is an orphan
			r.Kind, r.Spec, r.Parent = 1, profile.SegmentSpec{}, extent.Name{Kind: 1, Key: sha256.Sum256(fmt.Append(nil, 12))}
		}
	})
	for range 2 {
		lower := s.openOK(cfg)
		for i := range 40 {
			n := tier.Name{Key: sha256.Sum256(fmt.Append(nil, i))}
			if i == 12 || i == 13 {
				n.Kind = 1
			}
			if _, ok := lower.Lookup(&n); ok == lost[i] {
				t.Errorf("row %d is there: %v", i, ok)
			}
		}
		s.check(lower.Tier)
		must(t, lower.close())
	}
}

// A slab that is lost costs its entries and no others.
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
	must(t, mem.Remove(mem.PathJoin(cfg.Dir, slabDir, "000002.slab")))
	lower := s.openOK(cfg)
	for _, w := range things {
		n := w.name()
		if _, ok := lower.Lookup(&n); ok == lost[w.seed] {
			t.Errorf("%d is there: %v", w.seed, ok)
		}
	}
	s.check(lower.Tier)
}

// Slabs whose headers were damaged, or could not be read for a moment, keep their
// entries; those of another version keep the directory closed, and all rows.
func TestOpenKeepsSlabsInTrouble(t *testing.T) {
	things := segments(1, 20)
	for name, test := range map[string]struct {
		rule  slabtest.Rule
		flip  int64 // offset in the header, 0 = none
		first State
	}{
		"a bit of the header":     {flip: 100},
		"a wrong read":            {rule: slabtest.Rule{Op: slabtest.OpRead, Name: "000001.slab", Kind: slabtest.FaultFlipRead, First: 1}},
		"not opened for a moment": {rule: slabtest.Rule{Op: slabtest.OpOpen, Name: "000001.slab", Kind: slabtest.FaultError, First: 1}, first: StateRefused},
		"not read for a moment":   {rule: slabtest.Rule{Op: slabtest.OpRead, Name: "000001.slab", Kind: slabtest.FaultError, First: 1}, first: StateRefused},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShelf(t)
			cfg, faults := faulty(quick(s.config()), 1)
			s.filled(cfg, things)
			if test.flip > 0 {
				must(t, faults.Flip("000001.slab", test.flip, 1))
			}
			if test.rule.Op != slabtest.AnyOp {
				faults.Set(test.rule)
			}
			later := cfg
			later.OpenLater = true
			lower, err := Open(later)
			must(t, err)
			lower.attach()
			if h := lower.Health(); h.State != test.first {
				t.Errorf("%+v, want %v", h, test.first)
			}
			if test.first != StateOK && !lower.attach() {
				t.Errorf("again: %+v", lower.Health())
			}
			for _, w := range things {
				s.mustRead(lower, w)
			}
			s.check(lower)
			must(t, lower.Close())
			if r := s.mustCheck(cfg, true); !r.Clean() {
				t.Errorf("%v", r.Problems)
			}
		})
	}
}

// A name that a killed process left unsynced is synced before anything is promised
// that depends on it.
func TestOpenSyncsNames(t *testing.T) {
	s := newShelf(t)
	mem := vfs.NewCrashableMem()
	cfg := onMem(s.config(), mem)
	s.mkdirs(mem, cfg)
	killed := cfg
	faults := slabtest.NewFaults(cfg.Slabs, 1)
	killed.Slabs = faults
	lower := s.openOK(killed)
	faults.Set(slabtest.Rule{Op: slabtest.OpSyncDir, Kind: slabtest.FaultError, Last: slabtest.Forever},
		slabtest.Rule{Op: slabtest.OpRemove, Kind: slabtest.FaultError, Last: slabtest.Forever})
	_ = s.write(lower.Tier, segments(1, 1)[0], tier.LevelLogged)
	_ = lower.close()
	again := s.openOK(cfg)
	w := segments(2, 1)[0]
	s.mustWrite(again.Tier, w, tier.LevelSynced)
	after := s.openOK(onMem(cfg, crashed(mem, 0, nil)))
	s.mustRead(after.Tier, w)
}

// A budget made smaller keeps the slabs that were used last.
func TestShrink(t *testing.T) {
	s := newShelf(t)
	cfg := onMem(s.config(), vfs.NewMem())
	cfg.PublicBytes, cfg.PrivateBytes = 2<<20, 0
	things := segments(1, 110)
	s.filled(cfg, things)
	cfg.PublicBytes = 1 << 20
	lower := s.openOK(cfg)
	older, newer := 0, 0
	for i, w := range things {
		n := w.name()
		if _, ok := lower.Lookup(&n); !ok {
			continue
		}
		s.mustRead(lower.Tier, w)
		if i < len(things)/2 {
			older++
		} else {
			newer++
		}
	}
	if older > newer || newer == 0 {
		t.Errorf("%d of the older half are left, %d of the newer", older, newer)
	}
	if u := lower.Usage(); u.SlabBytes > cfg.PublicBytes {
		t.Errorf("%+v", u)
	}
	s.check(lower.Tier)
}
