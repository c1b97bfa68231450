package disk

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spliced-kv/spliced/tiering/disk/offline"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/tiertest"
)

// killedWith is the directory of a process that was killed when it had acknowledged
// things as synced.
func (s *shelf) killedWith(things []thing) (Config, *vfs.MemFS) {
	s.Helper()
	mem := vfs.NewCrashableMem()
	cfg := onMem(s.config(), mem)
	s.mkdirs(mem, cfg)
	lower := s.openOK(cfg)
	for _, w := range things {
		s.mustWrite(lower.Tier, w, tier.LevelSynced)
	}
	left := crashed(mem, 100, rand.New(rand.NewPCG(1, 2)))
	return onMem(cfg, left), left
}

// flipInLog flips a byte in the middle of the catalogue's last log.
func (s *shelf) flipInLog(mem *vfs.MemFS, cfg Config) {
	s.Helper()
	dir := mem.PathJoin(cfg.Dir, indexDir)
	list, err := mem.List(dir)
	must(s, err)
	slices.Sort(list)
	list = slices.DeleteFunc(list, func(name string) bool { return !strings.HasSuffix(name, ".log") })
	path := mem.PathJoin(dir, list[len(list)-1])
	b := getFile(s, mem, path)
	b[2*len(b)/5] ^= 1
	setFile(s, mem, path, b)
}

// A byte that is flipped in the middle of the log takes nothing away in silence: the
// directory is not opened and not changed, check says why, and repair brings all of
// what was synced back.
func TestFlipInTheLogLosesNothing(t *testing.T) {
	tiertest.Leaks(t)
	s := newShelf(t)
	things := append(segments(1, 120), chain(500, 4, tenantB)...)
	cfg, mem := s.killedWith(things)
	s.flipInLog(mem, cfg)
	for range 2 { // the second time as the first
		broken := s.open(cfg)
		if h := broken.Health(); h.State != StateUnreadable || !strings.Contains(h.Cause, "damaged") {
			t.Fatalf("state %v: %s", h.State, h.Cause)
		}
		_ = broken.close()
		if r := s.mustCheck(cfg, false); r.Clean() {
			t.Error("check finds nothing wrong")
		}
	}
	if r := s.mustRepair(cfg); !r.Rebuilt || r.Segments+r.Checkpoints != len(things) {
		t.Errorf("%d segments and %d checkpoints of %d are back", r.Segments, r.Checkpoints, len(things))
	}
	if r := s.mustCheck(cfg, true); !r.Clean() || r.Rowless != 0 {
		t.Errorf("%d without a row; %v", r.Rowless, r.Problems)
	}
	lower := s.openOK(cfg)
	for _, w := range things {
		s.mustRead(lower.Tier, w)
	}
}

// What an earlier release has dropped from a damaged log shows as extents without a
// row, and repair takes them up when it is told to, beside the rows there are.
func TestExtentsWithoutARowComeBack(t *testing.T) {
	tiertest.Leaks(t)
	s := newShelf(t)
	things := append(segments(1, 120), chain(500, 4, tenantB)...)
	cfg, mem := s.killedWith(things)
	s.flipInLog(mem, cfg)
	if err := mem.Remove(mem.PathJoin(cfg.Dir, indexDir, "SYNCED")); err != nil { // which that release does not write
		t.Fatal(err)
	}
	lower := s.openOK(cfg)
	kept := int(lower.Counters().Entries)
	if kept == 0 || kept == len(things) {
		t.Fatalf("%d entries of %d: the test needs some to be lost", kept, len(things))
	}
	must(t, lower.close())
	if r := s.mustCheck(cfg, true); r.Rowless != len(things)-kept || r.RowlessBytes == 0 || !r.Clean() {
		t.Errorf("%d of %d lost extents found; %v", r.Rowless, len(things)-kept, r.Problems)
	}
	if r := s.mustRepair(cfg); r.TakenUp != 0 {
		t.Errorf("%d were taken up that nobody asked for", r.TakenUp)
	}
	r, err := offline.RepairPlace(t.Context(), place(cfg), offline.CheckOptions{All: true})
	if err != nil || r.Rebuilt || r.TakenUp != len(things)-kept {
		t.Errorf("%d of %d taken up: %v", r.TakenUp, len(things)-kept, err)
	}
	if r := s.mustCheck(cfg, true); !r.Clean() || r.Rowless != 0 || r.Segments+r.Checkpoints != len(things) {
		t.Errorf("%d without a row, %d and %d of %d; %v", r.Rowless, r.Segments, r.Checkpoints, len(things), r.Problems)
	}
	again := s.openOK(cfg)
	for _, w := range things {
		s.mustRead(again.Tier, w)
	}
	fresh := segments(1000, 1)[0]
	s.mustWrite(again.Tier, fresh, tier.LevelSynced)
	n := fresh.name()
	if e, _ := again.Lookup(&n); e.Generation <= uint64(len(things)) {
		t.Errorf("generation %d was given before", e.Generation)
	}
	s.check(again.Tier)
}
