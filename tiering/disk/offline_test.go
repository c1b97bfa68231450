package disk

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/disk/offline"
	"github.com/spliced-kv/spliced/tiering/disk/slab"
	"github.com/spliced-kv/spliced/tiering/disk/slab/slabtest"
	"github.com/spliced-kv/spliced/tiering/disk/volume"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/tiertest"
)

// filled writes things to a new directory in memory and closes it.
func (s *shelf) filled(cfg Config, things []thing) {
	s.Helper()
	lower := s.openOK(cfg)
	for _, w := range things {
		s.mustWrite(lower.Tier, w, tier.LevelLogged)
	}
	must(s, lower.close())
}

func place(cfg Config) offline.Place {
	return offline.Place{Dir: cfg.Dir, Slabs: cfg.Slabs, Index: cfg.Index}
}

func (s *shelf) mustCheck(cfg Config, deep bool) *offline.Report {
	s.Helper()
	r, err := offline.CheckPlace(context.Background(), place(cfg), offline.CheckOptions{Deep: deep})
	must(s, err)
	return r
}

// What a tier leaves behind is clean, counted in full, and told row by row.
func TestCheckCleanAndDump(t *testing.T) {
	for _, coded := range []bool{false, true} {
		t.Run(fmt.Sprintf("coded=%v", coded), func(t *testing.T) {
			tiertest.Leaks(t)
			s := newShelf(t)
			cfg := onMem(s.config(), vfs.NewMem())
			if coded {
				cfg.Coded = []profile.PartKind{profile.PartK, profile.PartS}
			}
			things := append(segments(1, 12), chain(50, 4, tenantB)...)
			s.filled(cfg, things)
			r := s.mustCheck(cfg, true)
			if !r.Clean() || r.Segments != 12 || r.Checkpoints != 4 || r.PayloadBytes == 0 || r.Profiles != 2 {
				t.Errorf("%+v", r)
			}
			if r.UsedBytes+r.FreeBytes != r.SlabBytes-int64(r.Slabs)*r.GranuleBytes {
				t.Errorf("%d used and %d free of %d", r.UsedBytes, r.FreeBytes, r.SlabBytes)
			}
			var keys []string
			err := offline.DumpPlace(context.Background(), place(cfg), func(d offline.DumpRow) error {
				keys = append(keys, d.Key)
				if d.Model != "small" || d.Tenant == "" || d.Bytes == 0 {
					t.Errorf("%+v", d)
				}
				return nil
			})
			if err != nil || len(keys) != len(things) {
				t.Errorf("%d rows, %v", len(keys), err)
			}
		})
	}
}

// Nothing is looked at that somebody else has open, or that is no tier.
func TestOfflineRefuses(t *testing.T) {
	s := newShelf(t)
	cfg := s.config()
	cfg.Dir = t.TempDir() + "/tier"
	if _, err := offline.Check(context.Background(), cfg.Dir, offline.CheckOptions{}); !errors.Is(err, volume.ErrNotTier) {
		t.Errorf("a directory that is not there: %v", err)
	}
	lower := s.openOK(cfg)
	for name, do := range map[string]func() error{
		"check": func() error {
			_, err := offline.Check(context.Background(), cfg.Dir, offline.CheckOptions{})
			return err
		},
		"repair": func() error {
			_, err := offline.Repair(context.Background(), cfg.Dir, offline.CheckOptions{})
			return err
		},
		"dump": func() error { return offline.Dump(context.Background(), cfg.Dir, nil) },
	} {
		if err := do(); !errors.Is(err, volume.ErrLocked) {
			t.Errorf("%s of an open directory: %v", name, err)
		}
	}
	must(t, lower.close())
	if r, err := offline.Check(context.Background(), cfg.Dir, offline.CheckOptions{Deep: true}); err != nil || !r.Clean() {
		t.Errorf("%+v, %v", r, err)
	}
}

// Every block of every entry, damaged, is found by a deep check; repair drops
// just that entry and what extends it, and leaves the rest as it was.
func TestCheckFindsDamageRepairDropsIt(t *testing.T) {
	s := newShelf(t)
	things := append(segments(1, 4), chain(50, 3, tenantB)...)
	for _, coded := range [][]profile.PartKind{nil, {profile.PartK, profile.PartV}} {
		for i, w := range things {
			mem := vfs.NewMem()
			cfg := onMem(s.config(), mem)
			cfg.Coded = coded
			s.filled(cfg, things)
			at := s.whereIs(cfg, w)
			faults := slabtest.NewFaults(cfg.Slabs, 1)
			must(t, faults.Flip(fmt.Sprintf("%06d.slab", at.Slab), at.Off+int64(i)%2*4700, 4))
			r := s.mustCheck(cfg, true)
			if len(r.Problems) != 1 || r.Problems[0].Name != w.name() {
				t.Fatalf("%d: %+v", i, r.Problems)
			}
			rep, err := offline.RepairPlace(context.Background(), place(cfg), offline.CheckOptions{})
			must(t, err)
			lost := 1
			if w.kind != 0 {
				lost = len(things) - i
			}
			if rep.Forgotten != lost || rep.Rebuilt {
				t.Errorf("%d: forgotten %d, want %d", i, rep.Forgotten, lost)
			}
			if r := s.mustCheck(cfg, true); !r.Clean() || r.Segments+r.Checkpoints != len(things)-lost {
				t.Errorf("%d: after repair: %+v", i, r)
			}
		}
	}
}

// whereIs answers the first run of a thing.
func (s *shelf) whereIs(cfg Config, w thing) slab.Run {
	s.Helper()
	var at slab.Run
	err := offline.DumpPlace(context.Background(), place(cfg), func(d offline.DumpRow) error {
		if d.Key == fmt.Sprintf("%x", w.key()) {
			at = d.Runs[0]
		}
		return nil
	})
	if err != nil || at.Len == 0 {
		s.Fatalf("%+v is not there: %v", w, err)
	}
	return at
}

// A catalogue that is lost is made again from the slabs: everything is back, also
// entries in several runs, and generations go on where they were.
func TestRepairRebuilds(t *testing.T) {
	for _, how := range []string{"gone", "empty", "damaged"} {
		t.Run(how, func(t *testing.T) {
			tiertest.Leaks(t)
			s := newShelf(t)
			mem := vfs.NewMem()
			cfg := onMem(s.config(), mem)
			cfg.PublicBytes, cfg.PrivateBytes, cfg.SlabBytes = 1<<20, 256<<10, 640<<10
			lower := s.openOK(cfg)
			// More than there is room for, so that space was used again and in pieces.
			things := segments(1, 200)
			for _, w := range things {
				s.mustWrite(lower.Tier, w, tier.LevelLogged)
			}
			nodes := chain(500, 4, tenantB)
			for _, w := range nodes {
				s.mustWrite(lower.Tier, w, tier.LevelLogged)
			}
			things = append(things, nodes...)
			var before []thing
			var last uint64
			for _, w := range things {
				n := w.name()
				if e, ok := lower.Lookup(&n); ok {
					before = append(before, w)
					last = max(last, e.Generation)
				}
			}
			if len(before) < 50 || len(before) == len(things) {
				t.Fatalf("%d of %d entries: the test needs some to have left", len(before), len(things))
			}
			must(t, lower.close())
			s.lose(mem, mem.PathJoin(cfg.Dir, indexDir), how)
			broken := s.open(cfg)
			if h := broken.Health(); h.State != StateUnreadable {
				t.Errorf("opened without its catalogue: %+v", h)
			}
			_ = broken.close()
			if r := s.mustCheck(cfg, false); r.Clean() {
				t.Error("check finds nothing wrong without a catalogue")
			}
			rep, err := offline.RepairPlace(context.Background(), place(cfg), offline.CheckOptions{})
			if err != nil || !rep.Rebuilt {
				t.Fatalf("%+v, %v", rep, err)
			}
			if r := s.mustCheck(cfg, true); !r.Clean() || r.Segments+r.Checkpoints < len(before) {
				t.Errorf("%d entries before, after repair: %+v", len(before), r)
			}
			again := s.openOK(cfg)
			for _, w := range before {
				s.mustRead(again.Tier, w)
			}
			w := segments(1000, 1)[0]
			s.mustWrite(again.Tier, w, tier.LevelLogged)
			n := w.name()
			if e, _ := again.Lookup(&n); e.Generation <= last {
				t.Errorf("generation %d after %d", e.Generation, last)
			}
			s.check(again.Tier)
		})
	}
}

// lose takes a catalogue away.
func (s *shelf) lose(mem *vfs.MemFS, dir, how string) {
	s.Helper()
	if how == "gone" || how == "empty" {
		must(s, mem.RemoveAll(dir))
	}
	if how == "empty" {
		must(s, mem.MkdirAll(dir, 0o700))
	}
	if how != "damaged" {
		return
	}
	list, err := mem.List(dir)
	must(s, err)
	i := slices.IndexFunc(list, func(n string) bool { return strings.HasPrefix(n, "MANIFEST") })
	setFile(s, mem, mem.PathJoin(dir, list[i]), []byte("this is no manifest of Pebble"))
}
