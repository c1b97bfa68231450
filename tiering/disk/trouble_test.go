package disk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/tiering/disk/catalog"
	"github.com/spliced-kv/spliced/tiering/disk/offline"
	"github.com/spliced-kv/spliced/tiering/disk/slab"
	"github.com/spliced-kv/spliced/tiering/disk/slab/slabtest"
	"github.com/spliced-kv/spliced/tiering/disk/volume"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/tiertest"
)

// quick has a configuration try again at once.
func quick(cfg Config) Config {
	cfg.RetryMin, cfg.RetryMax, cfg.SyncEvery = time.Millisecond, 2*time.Millisecond, time.Millisecond
	return cfg
}

// failing is a file system on which the calls that match fail while on says so; nil = always.
func failing(fs vfs.FS, on *atomic.Bool, errno unix.Errno, match func(errorfs.Op) bool) vfs.FS {
	return errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if (on == nil || on.Load()) && match(op) {
			return fmt.Errorf("injected: %w", errno)
		}
		return nil
	}))
}

func writes(op errorfs.Op) bool { return op.Kind.ReadOrWrite() == errorfs.OpIsWrite }

// inIndex matches calls for files of the catalogue.
func inIndex(match func(errorfs.Op) bool) func(errorfs.Op) bool {
	return func(op errorfs.Op) bool { return strings.Contains(op.Path, indexDir+"/") && match(op) }
}

// await waits for something that other goroutines bring about.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	if !tiertest.Wait(time.Minute, ok) {
		t.Fatalf("waited in vain: %s", what)
	}
}

func (r *running) awaitState(t *testing.T, want State) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("%+v", r.Health())
		}
	}()
	await(t, want.String(), func() bool { return r.Health().State == want })
}

// While the disk answers nothing, everything that the store asks under its lock is
// answered.
func TestStalledDiskHoldsUpNoLookup(t *testing.T) {
	for name, op := range map[string]slabtest.Op{"write": slabtest.OpWrite, "read": slabtest.OpRead, "sync": slabtest.OpSync} {
		t.Run(name, func(t *testing.T) {
			tiertest.Leaks(t)
			s := newShelf(t)
			cfg, faults := faulty(s.config(), 1)
			lower := s.openOK(cfg)
			w := segments(1, 40)
			s.mustWrite(lower.Tier, w[0], tier.LevelLogged)
			s.mustWrite(lower.Tier, w[1], tier.LevelLogged)
			entered, release := stall(faults, op)
			written, err := s.begin(lower.Tier, w[2], tier.LevelSynced)
			must(t, err)
			read := make(chan error, 1)
			go func() { read <- s.read(lower.Tier, w[0]) }()
			<-entered
			n, other := w[0].name(), w[1].name()
			for _, w := range w[3:] {
				if k, err := s.admit(lower.Tier, w, 1<<40); err == nil {
					k.Cancel()
				} else {
					t.Error(err)
				}
				lower.Touch(&n)
				if _, ok := lower.Lookup(&n); !ok || lower.Used(tenantA) == 0 {
					t.Error("not found")
				}
			}
			lower.Remove(&other)
			trim(lower.Tier, tenantB, 1)
			lower.List(Filter{}, nil, 10)
			lower.Usage()
			lower.Counters()
			release()
			if err := <-read; err != nil {
				t.Error(err)
			}
			if out := <-written; out.err != nil {
				t.Error(out.err)
			}
			s.check(lower.Tier)
		})
	}
}

// What is being read keeps its bytes though it was removed and everything else is
// written over.
func TestRemovedWhileRead(t *testing.T) {
	s := newShelf(t)
	cfg, faults := faulty(s.config(), 1)
	cfg.PublicBytes, cfg.SlabBytes = 1<<20, 256<<10
	lower := s.openOK(cfg)
	w := segments(1, 1)[0]
	s.mustWrite(lower.Tier, w, tier.LevelSynced)
	entered, release := stall(faults, slabtest.OpRead)
	read := make(chan error, 1)
	go func() { read <- s.read(lower.Tier, w) }()
	<-entered
	n := w.name()
	if !lower.Remove(&n) {
		t.Fatal("nothing removed")
	}
	for _, other := range segments(100, 150) {
		must(t, s.write(lower.Tier, other, tier.LevelLogged))
	}
	s.mustWrite(lower.Tier, w, tier.LevelLogged) // anew, in another place
	release()
	if err := <-read; err != nil {
		t.Errorf("the read that had begun: %v", err)
	}
	s.mustRead(lower.Tier, w)
	s.check(lower.Tier)
}

// An entry that was written again is not the one that a lookup told of before.
func TestReplacedIsGone(t *testing.T) {
	s := newShelf(t)
	lower := s.openOK(onMem(s.config(), vfs.NewMem()))
	w := segments(1, 1)[0]
	s.mustWrite(lower.Tier, w, tier.LevelLogged)
	n := w.name()
	old, _ := lower.Lookup(&n)
	lower.Remove(&n)
	s.mustWrite(lower.Tier, w, tier.LevelLogged)
	if err := s.readEntry(context.Background(), lower.Tier, &old, w); !errors.Is(err, tier.ErrGone) {
		t.Errorf("the old entry: %v", err)
	}
	s.mustRead(lower.Tier, w)
}

// A read error is tried again once, and then costs the entry; after many, nothing
// is found until some time has passed.
func TestReadErrorsAndBreaker(t *testing.T) {
	s := newShelf(t)
	cfg, faults := faulty(s.config(), 1)
	var now atomic.Int64
	now.Store(1e18)
	cfg.Now = func() time.Time { return time.Unix(0, now.Load()) }
	lower := s.openOK(cfg)
	w := segments(1, 12)
	for _, w := range w {
		s.mustWrite(lower.Tier, w, tier.LevelLogged)
	}
	faults.Set(slabtest.Rule{Op: slabtest.OpRead, First: 1, Kind: slabtest.FaultError})
	s.mustRead(lower.Tier, w[0])
	faults.Set(slabtest.Rule{Op: slabtest.OpRead, Kind: slabtest.FaultError, Last: slabtest.Forever})
	for i := range breakerFailures {
		if err := s.read(lower.Tier, w[i]); !errors.Is(err, tier.ErrUnavailable) {
			t.Errorf("%d: %v", i, err)
		}
	}
	faults.Set()
	n := w[0].name()
	if e, ok := lower.Lookup(&n); ok {
		t.Errorf("found although it cannot be read: %+v", e)
	}
	n = w[11].name()
	if _, ok := lower.Lookup(&n); ok || lower.Health().Reads {
		t.Error("found although the disk fails")
	}
	now.Add(int64(2 * breakerMin))
	s.mustRead(lower.Tier, w[11])
	c := lower.Counters()
	if c.ReadErrors != breakerFailures || c.ReadRetries != breakerFailures+1 || c.BreakerOpenings != 1 || !lower.Health().Reads {
		t.Errorf("%+v", c)
	}
	s.check(lower.Tier)
}

// A file system without room for another slab: entries make room for entries, and
// growing goes on when there is room again.
func TestFull(t *testing.T) {
	tiertest.Leaks(t)
	s := newShelf(t)
	cfg, faults := faulty(quick(s.config()), 1)
	lower := s.openOK(cfg)
	s.mustWrite(lower.Tier, segments(1, 1)[0], tier.LevelLogged)
	faults.Set(slabtest.Rule{Op: slabtest.OpCreate, Kind: slabtest.FaultError, Errno: unix.ENOSPC, Last: slabtest.Forever},
		slabtest.Rule{Op: slabtest.OpFree, Kind: slabtest.FaultError, Errno: unix.EIO, Last: slabtest.Forever})
	for _, w := range segments(2, 120) { // 1.5 MB into one slab of 512 KiB
		s.mustWrite(lower.Tier, w, tier.LevelLogged)
		s.mustRead(lower.Tier, w)
	}
	if h, c := lower.Health(), lower.Counters(); h.State == StateOK || c.SlabsMade != 1 || c.GrowthRefused == 0 || c.EvictedRoom == 0 {
		t.Errorf("%+v %+v", h, c)
	}
	s.check(lower.Tier)
	faults.Set()
	lower.awaitState(t, StateOK)
	for _, w := range segments(200, 60) {
		s.mustWrite(lower.Tier, w, tier.LevelLogged)
	}
	if c := lower.Counters(); c.SlabsMade < 2 {
		t.Errorf("%+v", c)
	}
}

// A disk that refuses writes stops admission, not reads, until it takes them again.
func TestPaused(t *testing.T) {
	for name, errno := range map[string]unix.Errno{"EIO": unix.EIO, "EROFS": unix.EROFS} {
		t.Run(name, func(t *testing.T) {
			tiertest.Leaks(t)
			s := newShelf(t)
			cfg, faults := faulty(quick(s.config()), 1)
			heard := make(chan string, 10)
			cfg.Changed = func(to State, cause error) { heard <- fmt.Sprint(to, cause != nil) }
			defer func() {
				for _, want := range []string{"ok false", "paused true", "ok false"} {
					if got := <-heard; got != want {
						t.Errorf("heard %s, want %s", got, want)
					}
				}
			}()
			lower := s.openOK(cfg)
			w := segments(1, 3)
			s.mustWrite(lower.Tier, w[0], tier.LevelSynced)
			faults.Set(slabtest.Rule{Op: slabtest.OpWrite, Kind: slabtest.FaultError, Errno: errno, Last: slabtest.Forever})
			for range failuresToPause {
				if err := s.write(lower.Tier, w[1], tier.LevelLogged); !errors.Is(err, tier.ErrUnavailable) {
					t.Errorf("%v", err)
				}
			}
			if h := lower.Health(); h.State != StatePaused || h.Cause == "" || !h.Reads {
				t.Errorf("%+v", h)
			}
			if err := s.write(lower.Tier, w[2], tier.LevelLogged); !errors.Is(err, tier.ErrUnavailable) {
				t.Errorf("%v", err)
			}
			s.mustRead(lower.Tier, w[0])
			s.check(lower.Tier)
			faults.Set()
			lower.awaitState(t, StateOK)
			s.mustWrite(lower.Tier, w[1], tier.LevelSynced)
		})
	}
}

// After a sync that failed, nothing written before may count as synced ever: it is
// forgotten, and who asked is told. What was synced before stays.
func TestSyncFails(t *testing.T) {
	s := newShelf(t)
	cfg, faults := faulty(quick(s.config()), 1)
	cfg.SyncEvery = time.Hour
	lower := s.openOK(cfg)
	w := segments(1, 4)
	s.mustWrite(lower.Tier, w[0], tier.LevelSynced)
	s.mustWrite(lower.Tier, w[1], tier.LevelLogged)
	faults.Set(slabtest.Rule{Op: slabtest.OpSync, Kind: slabtest.FaultError, First: 1})
	if err := s.write(lower.Tier, w[2], tier.LevelSynced); !errors.Is(err, tier.ErrUnavailable) {
		t.Errorf("%v", err)
	}
	lower.awaitState(t, StateOK)
	s.mustWrite(lower.Tier, w[3], tier.LevelSynced)
	for i, there := range []bool{true, false, false, true} {
		n := w[i].name()
		if e, ok := lower.Lookup(&n); ok != there || ok && e.Level != tier.LevelSynced {
			t.Errorf("%d: %+v, %v", i, e, ok)
		}
	}
	s.mustWrite(lower.Tier, w[1], tier.LevelSynced)
	if c := lower.Counters(); c.LostUnsynced != 2 || c.SyncErrors != 1 {
		t.Errorf("%+v", c)
	}
	for _, i := range []int{0, 1, 3} {
		s.mustRead(lower.Tier, w[i])
	}
	s.check(lower.Tier)
}

// A block that takes no writes costs one write and its space, not all that follow.
func TestBadBlock(t *testing.T) {
	s := newShelf(t)
	cfg := onMem(quick(s.config()), vfs.NewMem())
	cfg.Slabs = sectors{FS: cfg.Slabs, bad: map[int64]bool{100 << 10: true}, writes: true}
	lower := s.openOK(cfg)
	failed := 0
	for _, w := range segments(1, 30) { // into one slab
		if err := s.write(lower.Tier, w, tier.LevelLogged); err != nil {
			failed++
		}
	}
	if failed != 1 || lower.Health().State != StateOK {
		t.Errorf("%d of 30 writes failed, %+v", failed, lower.Health())
	}
	s.check(lower.Tier)
}

// What an operator removed does not come back with the rows that could not be
// deleted any more.
func TestRemovedStaysRemoved(t *testing.T) {
	s := newShelf(t)
	cfg, faults := faulty(quick(s.config()), 1)
	lower := s.openOK(cfg)
	w := segments(1, 2)
	for _, w := range w {
		s.mustWrite(lower.Tier, w, tier.LevelSynced)
	}
	faults.Set(slabtest.Rule{Op: slabtest.OpCreate, Kind: slabtest.FaultError, Last: slabtest.Forever}) // it is not opened anew before the row is removed
	_ = lower.catalogTrouble(errors.New("as if the catalogue had failed"))
	n := w[0].name()
	if !lower.Remove(&n) {
		t.Fatal("not there")
	}
	faults.Set()
	lower.awaitState(t, StateOK)
	if _, ok := lower.Lookup(&n); ok {
		t.Error("what was removed is back")
	}
	s.mustRead(lower.Tier, w[1])
	s.mustWrite(lower.Tier, w[0], tier.LevelSynced)
	s.check(lower.Tier)
}

// A ticket that is started when the directory is about to be opened anew is
// answered, and nobody meets it later.
func TestStartWhileReopening(t *testing.T) {
	tiertest.Leaks(t)
	s := newShelf(t)
	cfg, faults := faulty(quick(s.config()), 1)
	lower := s.openOK(cfg)
	w := segments(1, 4)
	s.mustWrite(lower.Tier, w[0], tier.LevelSynced)
	late, err := s.admit(lower.Tier, w[1], 1<<40)
	must(t, err)
	// A sync that hangs keeps the syncer, but not the probe.
	entered, wait := make(chan struct{}, 1), make(chan struct{})
	faults.Set(slabtest.Rule{Op: slabtest.OpSync, Name: "000001.slab", Kind: slabtest.FaultSlow, Entered: entered, Wait: wait, First: 1})
	synced, err := s.begin(lower.Tier, w[2], tier.LevelSynced)
	must(t, err)
	<-entered
	_ = lower.catalogTrouble(errors.New("as if the catalogue had failed"))
	await(t, "the workers to leave", func() bool {
		lower.mu.Lock()
		defer lower.mu.Unlock()
		return lower.mount != nil && lower.mount.stopping && lower.mount.writers == 0
	})
	answer := make(chan error, 1)
	late.Start(tier.LevelLogged, func(_ tier.Level, err error) { answer <- err })
	if err := <-answer; !errors.Is(err, tier.ErrUnavailable) {
		t.Errorf("%v", err)
	}
	close(wait)
	<-synced
	lower.awaitState(t, StateOK)
	for _, w := range w {
		s.mustWrite(lower.Tier, w, tier.LevelLogged)
	}
	s.check(lower.Tier)
}

// When the catalogue fails, what is known is read on, and once the disk takes
// writes the directory is opened anew with everything that was there.
func TestCatalogFails(t *testing.T) {
	tiertest.Leaks(t)
	s := newShelf(t)
	mem := vfs.NewMem()
	var broken atomic.Bool
	cfg := quick(s.config())
	cfg.Slabs, cfg.Index = slab.OverVFS(mem, mem.PathJoin(cfg.Dir, slabDir)), failing(mem, &broken, unix.EIO, writes)
	lower := s.openOK(cfg)
	w := append(segments(1, 10), chain(50, 3, tenantB)...)
	for _, w := range w {
		s.mustWrite(lower.Tier, w, tier.LevelSynced)
	}
	broken.Store(true)
	if err := s.write(lower.Tier, segments(100, 1)[0], tier.LevelSynced); !errors.Is(err, tier.ErrUnavailable) {
		t.Errorf("%v", err)
	}
	lower.awaitState(t, StateFailed)
	for _, w := range w {
		s.mustRead(lower.Tier, w)
	}
	s.check(lower.Tier)
	broken.Store(false)
	lower.awaitState(t, StateOK)
	for _, w := range w {
		s.mustRead(lower.Tier, w)
	}
	s.mustWrite(lower.Tier, segments(101, 1)[0], tier.LevelSynced)
	s.check(lower.Tier)
}

// Two tiers on one directory: the second says so, and takes over when the first
// has closed.
func TestLocked(t *testing.T) {
	tiertest.Leaks(t)
	s := newShelf(t)
	cfg := quick(s.config())
	cfg.Dir = t.TempDir() + "/tier"
	first := s.openOK(cfg)
	w := segments(1, 1)[0]
	s.mustWrite(first.Tier, w, tier.LevelLogged)
	second := s.open(cfg)
	if h := second.Health(); h.State != StateLocked || h.Reads {
		t.Fatalf("%+v", h)
	}
	if err := s.write(second.Tier, w, tier.LevelLogged); !errors.Is(err, tier.ErrUnavailable) {
		t.Errorf("%v", err)
	}
	must(t, first.close())
	second.awaitState(t, StateOK)
	s.mustRead(second.Tier, w)
}

// A directory of another version is refused by name and left as it is.
func TestVersion(t *testing.T) {
	s := newShelf(t)
	cfg := s.config()
	cfg.Dir = t.TempDir() + "/tier"
	s.filled(cfg, segments(1, 1))
	path := filepath.Join(cfg.Dir, "FORMAT")
	good, err := os.ReadFile(path)
	must(t, err)
	other := strings.Replace(string(good), "version 2", "version 7", 1)
	must(t, os.WriteFile(path, []byte(other), 0o600))
	lower := s.open(cfg)
	h := lower.Health()
	if h.State != StateVersion || !strings.Contains(h.Cause, "version 7") || !strings.Contains(h.Cause, "version 1 and 2") {
		t.Errorf("%+v", h)
	}
	_ = lower.close()
	if _, err := offline.Check(context.Background(), cfg.Dir, offline.CheckOptions{}); !errors.Is(err, volume.ErrVersion) {
		t.Errorf("%v", err)
	}
	must(t, os.WriteFile(path, good, 0o600))
	s.mustRead(s.openOK(cfg).Tier, segments(1, 1)[0])
}

// A directory that is not there is waited for; its parent is not made, since that
// is where a disk would be mounted.
func TestMissingDirectory(t *testing.T) {
	tiertest.Leaks(t)
	s := newShelf(t)
	cfg := quick(s.config())
	mount := t.TempDir() + "/disk"
	cfg.Dir = mount + "/tier"
	lower := s.open(cfg)
	if h := lower.Health(); h.State != StateMissing || h.Cause == "" {
		t.Fatalf("%+v", h)
	}
	n := segments(1, 1)[0].name()
	if _, ok := lower.Lookup(&n); ok || lower.Used(tenantA) != 0 || trim(lower.Tier, tenantA, 1) != 0 || lower.Remove(&n) {
		t.Error("something is there")
	}
	if _, err := os.Stat(mount); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
	must(t, os.Mkdir(mount, 0o700))
	lower.awaitState(t, StateOK)
	s.mustWrite(lower.Tier, segments(1, 1)[0], tier.LevelSynced)
	s.check(lower.Tier)
}

// A sync that fails for want of room makes nothing last: the tier pauses, where a
// write that fails for it only means that nothing grows.
func TestSyncWithoutRoomPauses(t *testing.T) {
	s := newShelf(t)
	cfg, faults := faulty(quick(s.config()), 1)
	lower := s.openOK(cfg)
	s.mustWrite(lower.Tier, segments(1, 1)[0], tier.LevelSynced)
	faults.Set(slabtest.Rule{Op: slabtest.OpSync, Kind: slabtest.FaultError, Errno: unix.ENOSPC, Last: slabtest.Forever})
	if err := s.write(lower.Tier, segments(2, 1)[0], tier.LevelSynced); err == nil {
		t.Error("synced")
	}
	lower.awaitState(t, StatePaused)
	o := s.object(segments(3, 1)[0])
	if _, err := lower.Admit(o, 1<<40); !errors.Is(err, tier.ErrUnavailable) {
		t.Errorf("%v", err)
	}
	s.drop(o)
	s.mustRead(lower.Tier, segments(1, 1)[0])
	faults.Set()
	lower.awaitState(t, StateOK)
	s.check(lower.Tier)
}

// A read that hangs holds up the reopening of a catalogue that failed, but not the
// end of Run.
func TestRunEndsWhileReopeningWaitsForRead(t *testing.T) {
	s := newShelf(t)
	mem := vfs.NewMem()
	var broken atomic.Bool
	cfg := quick(s.config())
	cfg.DrainTime = 10 * time.Millisecond
	faults := slabtest.NewFaults(slab.OverVFS(mem, mem.PathJoin(cfg.Dir, slabDir)), 1)
	cfg.Slabs, cfg.Index = faults, failing(mem, &broken, unix.EIO, writes)
	lower, err := Open(cfg)
	must(t, err)
	ended, read := make(chan error, 1), make(chan error, 1)
	go func() { ended <- lower.Run(context.Background()) }()
	w := segments(1, 1)[0]
	s.mustWrite(lower, w, tier.LevelSynced)
	entered, release := stall(faults, slabtest.OpRead)
	go func() { read <- s.read(lower, w) }()
	<-entered
	broken.Store(true)
	_ = s.write(lower, segments(2, 1)[0], tier.LevelLogged)
	broken.Store(false)
	await(t, "reopening", func() bool { return lower.Health().State == StateOpening })
	if err := lower.Close(); !errors.Is(err, tier.ErrUnavailable) {
		t.Errorf("%v", err)
	}
	<-ended
	release()
	<-read
	if err := lower.mount.Close(); err != nil && !errors.Is(err, catalog.ErrFailed) {
		t.Error(err)
	}
}

// little is a directory on a file system with so much room left.
type little struct {
	slab.FS
	free *atomic.Int64
}

func (l little) Free() (int64, error) { return l.free.Load(), nil }

// What tries out whether a directory can be written and opened anew.
const (
	probeName   = "probe"
	roomName    = "temporary.000000.dbtmp"
	reopenBytes = 24 << 20
)

// When a full file system has failed the catalogue, reads go on until there is
// room for opening it again, however small writes fare.
func TestCatalogWithoutRoomKeepsReads(t *testing.T) {
	for name, told := range map[string]bool{"as the file system tells": true, "as writing tells": false} {
		t.Run(name, func(t *testing.T) {
			s := newShelf(t)
			mem := vfs.NewMem()
			var full atomic.Bool
			var free, tried, opened atomic.Int64
			free.Store(1 << 40)
			cfg := quick(s.config())
			cfg.Slabs = little{slab.OverVFS(mem, mem.PathJoin(cfg.Dir, slabDir)), &free}
			cfg.Index = errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
				base := mem.PathBase(op.Path)
				switch {
				case base == roomName:
					tried.Add(1)
				case base == probeName && op.Kind == errorfs.OpRemove:
					tried.Add(1)
				case op.Kind == errorfs.OpLock && full.Load():
					opened.Add(1)
				}
				if full.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite && strings.Contains(op.Path, indexDir+"/") {
					return fmt.Errorf("injected: %w", unix.ENOSPC)
				}
				return nil
			}))
			lower := s.openOK(cfg)
			w := segments(1, 1)[0]
			s.mustWrite(lower.Tier, w, tier.LevelSynced)
			full.Store(true)
			if told {
				free.Store(reopenBytes - 1)
			}
			if err := s.write(lower.Tier, segments(2, 1)[0], tier.LevelLogged); !errors.Is(err, tier.ErrUnavailable) {
				t.Errorf("%v", err)
			}
			lower.awaitState(t, StateFailed)
			for before := tried.Load(); tried.Load() < before+5; {
				s.mustRead(lower.Tier, w)
				if h := lower.Health(); h.State != StateFailed || !strings.Contains(h.Cause, "no space left") {
					t.Fatalf("%+v", h)
				}
			}
			if n := opened.Load(); n > 0 {
				t.Errorf("opened %d times", n)
			}
			full.Store(false)
			free.Store(1 << 40)
			lower.awaitState(t, StateOK)
			s.mustRead(lower.Tier, w)
			s.mustWrite(lower.Tier, segments(3, 1)[0], tier.LevelSynced)
			s.check(lower.Tier)
			if list, err := mem.List(mem.PathJoin(cfg.Dir, indexDir)); err != nil || slices.Contains(list, roomName) {
				t.Errorf("%v, %v", list, err)
			}
		})
	}
}

// Who waits for a sync when the catalogue fails is answered then, however long the
// disk stays in trouble.
func TestCatalogFailsUnderWaiters(t *testing.T) {
	s := newShelf(t)
	cfg, faults := faulty(s.config(), 1) // no probe within the hour
	lower := s.openOK(cfg)
	w := segments(1, 2)
	s.mustWrite(lower.Tier, w[0], tier.LevelLogged)
	entered, release := stall(faults, slabtest.OpSync)
	first, err := s.begin(lower.Tier, w[0], tier.LevelSynced)
	must(t, err)
	<-entered
	second, err := s.begin(lower.Tier, w[1], tier.LevelSynced)
	must(t, err)
	await(t, "both to wait", func() bool {
		lower.mu.Lock()
		defer lower.mu.Unlock()
		return len(lower.syncing.raising) == 2
	})
	_ = lower.catalogTrouble(errors.New("as if the catalogue had failed"))
	for _, done := range []<-chan outcome{first, second} {
		if out := <-done; !errors.Is(out.err, tier.ErrUnavailable) || out.reached != tier.LevelLogged {
			t.Errorf("%+v", out)
		}
	}
	release()
}

// A directory that is there is not called missing, nor damaged, when it is its file
// system that does not let it be opened.
func TestRefusedDirectory(t *testing.T) {
	for _, errno := range []unix.Errno{unix.ENOSPC, unix.EROFS, unix.EIO} {
		t.Run(errno.Error(), func(t *testing.T) {
			s := newShelf(t)
			mem := vfs.NewMem()
			var refusing atomic.Bool
			cfg := onMem(quick(s.config()), mem)
			cfg.Index = failing(mem, &refusing, errno, inIndex(writes))
			w := segments(1, 1)[0]
			s.filled(cfg, []thing{w})
			refusing.Store(true)
			lower := s.open(cfg)
			await(t, "refusal", func() bool { return lower.Health().State != StateOpening })
			if h := lower.Health(); h.State != StateRefused || !strings.Contains(h.Cause, errno.Error()) {
				t.Errorf("%+v", h)
			}
			refusing.Store(false)
			lower.awaitState(t, StateOK)
			s.mustRead(lower.Tier, w)
		})
	}
}

// A file system without room is told in numbers, and in no more.
func TestRoomIsToldInNumbers(t *testing.T) {
	tiertest.Leaks(t)
	s := newShelf(t)
	cfg := s.config()
	cfg.Dir, cfg.ReserveBytes = t.TempDir()+"/tier", 1<<62
	lower := s.openOK(cfg)
	if err := s.write(lower.Tier, segments(1, 1)[0], tier.LevelLogged); !errors.Is(err, tier.ErrFull) {
		t.Errorf("%v", err)
	}
	h := lower.Health()
	if h.State != StateFull || strings.Contains(h.Cause, "nil") || !strings.Contains(h.Cause, "bytes free, 4611686018427387904 of them kept back, a slab takes 524288") {
		t.Errorf("%v: %s", h.State, h.Cause)
	}
}
