package catalog

import (
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spliced-kv/spliced/tiering/disk/slab"
)

// guard is the file system that Pebble uses; it passes operations to the real one. It
// decides which syncs are performed, and keeps Pebble from ending the process.
//
// Pebble cannot handle errors of its log, of its MANIFEST and of a directory's sync: it
// panics or calls Logger.Fatalf. Two of the panics cannot be recovered from, because a
// deferred call then unlocks a mutex that is not locked. So the guard hides these errors from
// Pebble. It keeps the first one, with which the catalogue fails, and from then on nothing
// that Pebble does reaches the disk. That is as safe as the crash that Pebble asks for.
//
//	working ──fail──► failed ──release──► released ──kill──► dead
//	   └──────────────────────── kill ───────────────────────►┘
//
// Operation, by state:     working   failed           released   dead
//
//	log, MANIFEST, marker,  is done   is said to be done, but is not
//	sync of a directory
//	anything else           is done   waits            error      waits for ever
//	(reading                is done   is done          is done    waits for ever)
//
// In state failed, operations wait, so that Pebble does not repeat, as fast as it can, a
// flush that cannot succeed. In state released, they fail, so that Close can shut Pebble
// down. In state dead, Pebble's remaining goroutines block, so that they change no file
// that the next catalogue may have opened.
type guard struct {
	vfs.FS

	mu      sync.Mutex
	state   guardState
	cause   error         // of the failure
	changed chan struct{} // closed and replaced on every state change
	running int           // operations on files
	idle    chan struct{} // closed when running reaches 0; nil until kill
	logs    map[*logFile]struct{}
	open    map[any]io.Closer // open files and locks by Pebble's handle; closeAll closes the remaining ones

	mark   *mark         // set before Pebble opens
	failed chan struct{} // closed when the catalogue fails
	syncs  atomic.Int64  // performed syncs of logs
}

// releasedPause is the time that each operation takes to fail in state released. It slows
// down a flush that Pebble retries and that cannot be stopped.
const releasedPause = 5 * time.Millisecond

type guardState uint8

const (
	working guardState = iota
	failed
	released
	dead
)

func newGuard(fs vfs.FS) *guard {
	return &guard{
		FS:      fs,
		changed: make(chan struct{}),
		logs:    map[*logFile]struct{}{},
		open:    map[any]io.Closer{},
		failed:  make(chan struct{}),
	}
}

// fail makes the catalogue fail. Only the first cause is kept.
func (g *guard) fail(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.cause != nil || g.state == dead {
		return
	}
	g.cause = err
	g.setLocked(failed)
	close(g.failed)
}

func (g *guard) failure() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.cause == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrFailed, g.cause)
}

func (g *guard) setLocked(s guardState) {
	g.state = s
	close(g.changed)
	g.changed = make(chan struct{})
}

// The method release makes operations that wait in the state failed return an error.
func (g *guard) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.state == failed {
		g.setLocked(released)
	}
}

// kill ends all operations. The returned channel is closed when none is running any more.
func (g *guard) kill() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.setLocked(dead)
	g.idle = make(chan struct{})
	if g.running == 0 {
		close(g.idle)
	}
	return g.idle
}

// closeAll closes what Pebble left open, including its lock.
func (g *guard) closeAll() {
	g.mu.Lock()
	left := make([]io.Closer, 0, len(g.open))
	for _, f := range g.open {
		left = append(left, f)
	}
	clear(g.open)
	g.mu.Unlock()
	for _, f := range left {
		_ = f.Close()
	}
}

// The method enter begins an operation that changes files: it waits while the state is
// failed, and fails or blocks in later states. When the operation has ended, the caller
// calls the method leave.
func (g *guard) enter() error {
	g.mu.Lock()
	for g.state == failed {
		changed := g.changed
		g.mu.Unlock()
		<-changed
		g.mu.Lock()
	}
	switch g.state {
	case released:
		err := g.cause
		g.mu.Unlock()
		time.Sleep(releasedPause)
		return fmt.Errorf("%w: %w", ErrFailed, err)
	case dead:
		g.mu.Unlock()
		select {}
	}
	g.running++
	g.mu.Unlock()
	return nil
}

// enterRead begins an operation that only reads, and otherwise does the same as the method
// enter. It blocks only in state dead. Reads are counted too, because files must not be
// closed while they are read.
func (g *guard) enterRead() {
	g.mu.Lock()
	if g.state == dead {
		g.mu.Unlock()
		select {}
	}
	g.running++
	g.mu.Unlock()
}

// tryEnter does the same as the method enter, for operations that must not fail for Pebble.
// If it returns false, the caller skips the operation.
func (g *guard) tryEnter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.state != working {
		return false
	}
	g.running++
	return true
}

func (g *guard) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.running--; g.running == 0 && g.state == dead {
		close(g.idle)
	}
}

func (g *guard) change(op func() error) error {
	if err := g.enter(); err != nil {
		return err
	}
	defer g.leave()
	return op()
}

// changeQuietly performs an operation whose failure Pebble cannot handle. An error makes
// the catalogue fail and is not returned.
func (g *guard) changeQuietly(what string, op func() error) {
	if !g.tryEnter() {
		return
	}
	defer g.leave()
	if err := op(); err != nil {
		g.fail(fmt.Errorf("%s: %w", what, err))
	}
}

// The method keep records that f is the open file behind Pebble's handle w. The record
// lasts until closeKept or closeAll closes f.
func (g *guard) keep(w any, f io.Closer) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open[w] = f
}

// present checks that the files that Pebble is writing are found under their names. It
// returns slab.ErrMissing if a file is not found, although Pebble still has it open.
func (g *guard) present() error {
	g.mu.Lock()
	written := make([]*quietFile, 0, 4)
	for w := range g.open {
		if q, ok := w.(*quietFile); ok {
			written = append(written, q)
		}
	}
	g.mu.Unlock()
	for _, q := range written {
		if q.Fd() == vfs.InvalidFd {
			continue // the file system of a test
		}
		err := slab.Present(q.name, int(q.Fd()))
		if err == nil {
			continue
		}
		g.mu.Lock()
		_, open := g.open[q]
		g.mu.Unlock()
		if open {
			return err
		}
	}
	return nil
}

func (g *guard) closeKept(w any) error {
	g.mu.Lock()
	f := g.open[w]
	delete(g.open, w)
	g.mu.Unlock()
	if f == nil { // closeAll was faster
		return nil
	}
	return f.Close()
}
