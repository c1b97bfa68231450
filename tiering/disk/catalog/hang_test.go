package catalog

import (
	"errors"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// gate stops operations that match until it is opened, and then has them fail.
type gate struct {
	match   func(op errorfs.Op) bool
	reached chan struct{} // gets one for each operation that is stopped
	opened  chan struct{}
	err     error
}

func newGate(err error, match func(op errorfs.Op) bool) *gate {
	return &gate{match: match, reached: make(chan struct{}, 1000), opened: make(chan struct{}), err: err}
}

func (g *gate) String() string { return "gate" }

func (g *gate) MaybeError(op errorfs.Op) error {
	if !g.match(op) {
		return nil
	}
	g.reached <- struct{}{}
	<-g.opened
	return g.err
}

// A disk that does not answer holds up commits, but not Close, which ends them.
func TestCloseDoesNotWaitForADiskThatHangs(t *testing.T) {
	for what, match := range map[string]func(op errorfs.Op) bool{
		"write": func(op errorfs.Op) bool {
			return op.Kind == errorfs.OpFileWrite && strings.HasSuffix(op.Path, ".log")
		},
		"sync": func(op errorfs.Op) bool {
			return op.Kind == errorfs.OpFileSyncData && strings.HasSuffix(op.Path, ".log")
		},
	} {
		t.Run(what, func(t *testing.T) {
			before := runtime.NumGoroutine()
			mem := vfs.NewMem()
			must(t, mustOpen(t, mem).Close()) // so that the next Open writes no row
			g := newGate(nil, match)
			c, err := Open(errorfs.Wrap(mem, g), dir, Options{CloseWithin: 20 * time.Millisecond})
			must(t, err)
			answer := make(chan error)
			go func() { answer <- c.Commit([]Change{put(1)}, true) }()
			<-g.reached
			if err := c.Close(); !errors.Is(err, ErrFailed) {
				t.Fatalf("close: %v", err)
			}
			if err := <-answer; !errors.Is(err, ErrFailed) {
				t.Fatalf("commit: %v", err)
			}
			if _, err := Open(mem, dir, Options{}); err == nil {
				t.Fatal("the directory opens although a write to it may still come to pass")
			}
			close(g.opened)
			settled(t, before+parkedAtMost)
			var again *Catalog
			for again == nil { // until the lock is released
				again, _ = Open(mem, dir, Options{})
			}
			load(t, again)
			must(t, again.Close())
		})
	}
}

// parkedAtMost is how many goroutines of Pebble stay behind when it could not be
// wound up: its log, its caches, its cleaner and who waits for them.
const parkedAtMost = 12

// Commits that wait for a flush, which then fails, end; so does Close; and what
// they were told holds for the next catalogue.
func TestCommitsThatWaitForAFlushEndWithIt(t *testing.T) {
	mem := vfs.NewCrashableMem()
	g := newGate(syscall.ENOSPC, func(op errorfs.Op) bool {
		return op.Kind == errorfs.OpCreate && strings.HasSuffix(op.Path, ".sst")
	})
	c := mustOpen(t, errorfs.Wrap(mem, g))
	const most = 100 // of 1 MiB: more than may wait
	done := make(chan error)
	acked := 0
	go func() {
		for i := range most {
			ch := put(i)
			ch.Manifest = make([]byte, 1<<20)
			if err := c.Commit([]Change{ch}, false); err != nil {
				done <- err
				return
			}
			acked = i + 1
		}
		done <- nil
	}()
	<-g.reached
	for c.db.Metrics().MemTable.Size < waitingBytes {
		time.Sleep(100 * time.Microsecond)
	}
	close(g.opened)
	if err := <-done; !errors.Is(err, ErrFailed) || !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("%v after %d commits", err, acked)
	}
	if err := c.Close(); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("close: %v", err)
	}
	c = mustOpen(t, mem)
	if got := load(t, c); len(got) < acked {
		t.Fatalf("%d rows of %d", len(got), acked)
	}
	must(t, c.Close())
}
