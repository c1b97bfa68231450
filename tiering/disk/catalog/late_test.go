package catalog

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// killedOften is a directory with rows in a log, and with so many tables above
// each other that opening it calls for a compaction.
func killedOften(t *testing.T) (fs *vfs.MemFS, rows int) {
	const kills, rowsEach = 8, 5
	fs = vfs.NewCrashableMem()
	for i := range kills {
		c := &Catalog{g: newGuard(fs), within: 10 * time.Second}
		o := c.options(memTableBytes)
		o.DisableAutomaticCompactions = true
		must(t, c.openDB(dir, o))
		must(t, c.start(storeA))
		for k := range rowsEach {
			must(t, c.Commit([]Change{put(rowsEach*i + k)}, true))
		}
		killed := killed(fs)
		must(t, c.Close())
		fs = killed
	}
	return fs, kills * rowsEach
}

// killed is what a process leaves that is killed, the machine going on.
func killed(fs *vfs.MemFS) *vfs.MemFS {
	return fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 2))})
}

// slowTables makes who opens a table meet the fault: a compaction that began is
// at work when Pebble gives up.
type slowTables struct {
	*faults
}

func (s *slowTables) MaybeError(op errorfs.Op) error {
	if op.Kind == errorfs.OpOpen && strings.HasSuffix(op.Path, ".sst") {
		for tries := 30; s.done.Load() == 0 && tries > 0; tries-- {
			time.Sleep(100 * time.Microsecond)
		}
	}
	return s.faults.MaybeError(op)
}

// Whatever operation of opening fails: it is an error, nothing panics, now or
// afterwards, and the directory opens once the disk works.
func TestOpeningMayFailAnywhere(t *testing.T) {
	dirFS, rows := killedOften(t)
	step := everyPlace(5)
	for _, stays := range []bool{false, true} {
		for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EIO} {
			t.Run(fmt.Sprintf("%v, stays=%v", errno, stays), func(t *testing.T) {
				t.Parallel()
				var failed atomic.Int64
				atEveryPlace(t, step, func(at int64) (met bool) {
					f := &slowTables{faults: &faults{at: at, stays: stays, errno: errno}}
					opened, err := openedWithFault(killed(dirFS), f, rows)
					if !opened {
						failed.Add(1)
					}
					if err != nil {
						t.Errorf("%v: %v", f, err)
					}
					return f.done.Load() > 0
				})
				if n := failed.Load(); n < 20/step {
					t.Errorf("%d openings failed: too few for what opening does", n)
				}
			})
		}
	}
}

// openedWithFault opens a directory, closes it, and opens it again once the disk
// works. Its error is what must not be.
func openedWithFault(fs *vfs.MemFS, f *slowTables, rows int) (opened bool, wrong error) {
	c, err := Open(errorfs.Wrap(fs, f), dir, Options{StoreID: storeA, CloseWithin: 30 * time.Second})
	if opened = err == nil; opened {
		err = c.Close() // of what begins once it is open
	}
	if err != nil && !errors.Is(err, f.errno) {
		return opened, err
	}
	f.healthy.Store(true)
	again, err := Open(fs, dir, Options{StoreID: storeA})
	// A catalogue that has failed stays locked until what was running in it has ended.
	for end := time.Now().Add(30 * time.Second); errors.Is(err, syscall.EAGAIN) && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
		again, err = Open(fs, dir, Options{StoreID: storeA})
	}
	if err != nil {
		return opened, err
	}
	n := 0
	err = again.Load(func(Row) error { n++; return nil })
	if err == nil && n != rows {
		err = fmt.Errorf("%d rows of %d", n, rows)
	}
	return opened, errors.Join(err, again.Close())
}

// What waits while the catalogue opens is not forgotten.
func TestCompactionFollowsOpening(t *testing.T) {
	fs, rows := killedOften(t)
	c := mustOpen(t, fs)
	for began := time.Now(); c.db.Metrics().Compact.Count == 0; time.Sleep(time.Millisecond) {
		if time.Since(began) > 10*time.Second {
			t.Fatal("nothing is compacted")
		}
	}
	if n := len(load(t, c)); n != rows {
		t.Errorf("%d rows of %d", n, rows)
	}
	must(t, c.Close())
}
