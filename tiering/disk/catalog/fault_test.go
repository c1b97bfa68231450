package catalog

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/spliced-kv/spliced/tiering/disk/extent"
)

// faults makes operations fail from the at-th on: one of them, or all that write.
type faults struct {
	at      int64
	stays   bool // what writes fails from then on: the disk is full, or read-only
	errno   syscall.Errno
	seen    atomic.Int64
	done    atomic.Int64 // how many failed
	healthy atomic.Bool
}

func (f *faults) String() string {
	return fmt.Sprintf("%v at operation %d, stays=%v", f.errno, f.at, f.stays)
}

func (f *faults) MaybeError(op errorfs.Op) error {
	if f.healthy.Load() {
		return nil
	}
	n := f.seen.Add(1) - 1
	writes := op.Kind.ReadOrWrite() == errorfs.OpIsWrite && op.Kind != errorfs.OpFileClose
	if n != f.at && (!f.stays || n < f.at || !writes) {
		return nil
	}
	f.done.Add(1)
	return f.errno
}

// promised is what a script was told.
type promised struct{ asked, logged, synced int }

// script is the life of a catalogue: flushes, compactions, numbers, a scan, and
// an end. It goes on until the first error.
func script(fs vfs.FS) (p promised, err error) {
	c, err := Open(fs, dir, Options{StoreID: storeA, memTable: 32 << 10})
	if err != nil {
		return p, err
	}
	err = errors.Join(work(c, &p), c.Close())
	return p, err
}

func work(c *Catalog, p *promised) error {
	var h history
	for i := range 80 {
		sync := i%7 == 0
		p.asked = i + 1
		if err := c.Commit(h.step(i), sync); err != nil {
			return failedForGood(c, err)
		}
		p.logged = i + 1
		if sync {
			p.synced = i + 1
		}
		if i%27 == 26 {
			if err := compact(c); err != nil {
				return failedForGood(c, err)
			}
		}
	}
	_, err := c.NextGenerations(1)
	if err == nil {
		_, err = c.TenantNumber("a")
	}
	if err == nil {
		err = c.SaveUses([]Use{{row(75).Name, row(75).Created}})
	}
	if err == nil {
		err = c.Load(func(Row) error { return nil })
	}
	if err == nil {
		err = c.SyncNow()
	}
	if err != nil {
		return failedForGood(c, err)
	}
	p.synced = p.asked
	return nil
}

// compact makes what happens in the background anyway happen now.
func compact(c *Catalog) error {
	_, err := call(c, func() (struct{}, error) {
		if err := c.db.Flush(); err != nil {
			return struct{}{}, err
		}
		return struct{}{}, c.db.Compact(context.Background(), []byte{0}, []byte{9}, false)
	})
	return err
}

// failedForGood checks that once the catalogue has failed nothing is acknowledged
// any more. The error that led here need not say that it has: an operation that
// could not be done may be followed by a failure in the background.
func failedForGood(c *Catalog, err error) error {
	if c.Failed() == nil {
		return err // one operation could not be done, and says so
	}
	for what, got := range map[string]error{
		"a commit":       c.Commit(history{}.step(500), false),
		"an empty one":   c.Commit(nil, false),
		"a sync":         c.SyncNow(),
		"a use":          c.SaveUses([]Use{{row(1).Name, 1}}),
		"a load":         c.Load(func(Row) error { return nil }),
		"failed":         c.Failed(),
		"no uses at all": c.SaveUses(nil),
	} {
		if !errors.Is(got, ErrFailed) {
			panic(fmt.Sprintf("%s in a catalogue that failed with %v: %v", what, err, got))
		}
	}
	return err
}

// Whatever operation fails, and with what: no panic, no hang, and what was
// acknowledged as synced is there after a power cut, what was logged without one.
func TestEveryOperationMayFail(t *testing.T) {
	for _, mode := range []struct {
		what   string
		errnos [2]syscall.Errno
		stays  bool
	}{
		{"one", [2]syscall.Errno{syscall.EIO, syscall.ENOSPC}, false},
		{"all that write", [2]syscall.Errno{syscall.ENOSPC, syscall.EROFS}, true},
	} {
		t.Run(mode.what, func(t *testing.T) {
			t.Parallel()
			var failed atomic.Int64
			places := atEveryPlace(t, everyPlace(17), func(at int64) (met bool) {
				f := &faults{at: at, stays: mode.stays, errno: mode.errnos[at%2]}
				if injected(t, f) != nil {
					failed.Add(1)
				}
				return f.done.Load() > 0
			})
			t.Logf("%d places for a fault, %d with an error", places, failed.Load())
		})
	}
}

// everyPlace is the step of atEveryPlace: each place, or with -short one of several, by chance.
func everyPlace(several int64) int64 {
	if testing.Short() {
		return several
	}
	return 1
}

// atEveryPlace calls try with 0, 1, 2 and so on, or with every step-th of these,
// until it meets no fault any more. Several run at once, since they mostly wait for
// time to pass.
func atEveryPlace(t *testing.T, step int64, try func(at int64) (met bool)) (places int64) {
	var next atomic.Int64
	var over atomic.Bool
	var workers sync.WaitGroup
	next.Store(rand.Int64N(step))
	for range 3 * runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for !over.Load() && !t.Failed() {
				if !try(next.Add(step) - step) {
					over.Store(true)
				}
			}
		})
	}
	workers.Wait()
	return next.Load() / step
}

func injected(t *testing.T, f *faults) error {
	mem := vfs.NewCrashableMem()
	var p promised
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		p, err = script(errorfs.Wrap(mem, f))
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		buf := make([]byte, 1<<20)
		panic(fmt.Sprintf("%v: hangs\n%s", f, buf[:runtime.Stack(buf, true)]))
	}
	if err != nil && !errors.Is(err, f.errno) {
		t.Errorf("%v: the error does not say so: %v", f, err)
	}
	f.healthy.Store(true)
	percent := []int{0, 50, 100}[f.at%3]
	clone := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rand.New(rand.NewPCG(uint64(f.at), 7))})
	for what, fs := range map[string]vfs.FS{fmt.Sprintf("with %d %% of unsynced data", percent): clone, "opened again": mem} {
		least := p.synced
		if fs == mem || percent == 100 {
			least = p.logged
		}
		if err := audit(fs, p.asked, least); err != nil {
			t.Errorf("%v: %s: %v", f, what, err)
		}
	}
	return err
}

func audit(fs vfs.FS, asked, least int) error {
	c, err := smallOpen(fs)
	if err != nil {
		return err
	}
	rows := map[extent.Name]Row{}
	err = c.Load(func(r Row) error {
		rows[r.Name] = r
		return nil
	})
	if err = errors.Join(err, c.Close()); err != nil {
		return err
	}
	n, err := history{}.after(rows, asked)
	if err != nil || n < least {
		return fmt.Errorf("%d commits of %d are there, %d were promised: %w", n, asked, least, err)
	}
	return nil
}
