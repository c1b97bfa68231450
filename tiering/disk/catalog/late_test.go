package catalog

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
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
		for began := time.Now(); s.done.Load() == 0 && time.Since(began) < 3*time.Millisecond; {
			runtime.Gosched()
		}
	}
	return s.faults.MaybeError(op)
}

// Whatever operation of opening fails: it is an error, nothing panics, now or
// afterwards, and the directory opens once the disk works.
func TestOpeningMayFailAnywhere(t *testing.T) {
	dirFS, rows := killedOften(t)
	for _, stays := range []bool{false, true} {
		for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EIO} {
			t.Run(fmt.Sprintf("%v, stays=%v", errno, stays), func(t *testing.T) {
				t.Parallel()
				failed := 0
				for at := int64(0); ; at++ {
					f := &slowTables{faults: &faults{at: at, stays: stays, errno: errno}}
					fs := killed(dirFS)
					c, err := Open(errorfs.Wrap(fs, f), dir, Options{StoreID: storeA, CloseWithin: 5 * time.Second})
					if err == nil {
						err = c.Close() // of what begins once it is open
						if f.done.Load() == 0 {
							break
						}
					} else {
						failed++
					}
					if err != nil && !errors.Is(err, errno) {
						t.Errorf("%v: %v", f, err)
					}
					f.healthy.Store(true)
					again := mustOpen(t, fs)
					if n := len(load(t, again)); n != rows {
						t.Errorf("%v: %d rows of %d", f, n, rows)
					}
					must(t, again.Close())
				}
				if t.Logf("%d openings failed", failed); failed < 20 {
					t.Error("too few for what opening does")
				}
			})
		}
	}
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
