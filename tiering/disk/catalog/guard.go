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

// guard stands between Pebble and a file system. It decides which syncs are
// real, and keeps Pebble from ending our process.
//
// Pebble takes errors of its log, of its MANIFEST and of a directory's sync for
// the end: it panics, in two places with a mutex unlocked that a deferred call
// unlocks once more, which nothing can recover from; or it calls Logger.Fatalf.
// So it does not get to see these errors: the first one is kept here, the
// catalogue has failed with it, and from then on nothing that Pebble does reaches
// the disk, which is as safe as the crash that it asks for.
//
//	working ──fail──► failed ──release──► released ──kill──► dead
//	   └──────────────────────── kill ───────────────────────►┘
//
// What is done to files:   working   failed           released   dead
//
//	log, MANIFEST, marker,  is done   is said to be done, but is not
//	sync of a directory
//	anything else           is done   waits            error      waits for ever
//	(reading                is done   is done          is done    waits for ever)
//
// Waiting in failed keeps Pebble from repeating, as fast as it can, a flush that
// cannot work; released lets Close wind it up; and dead makes sure that whatever
// is left of it changes no file that the next catalogue may have opened.
type guard struct {
	vfs.FS

	mu      sync.Mutex
	state   guardState
	cause   error         // of failed
	changed chan struct{} // closed and replaced with every change of state
	running int           // operations on files
	idle    chan struct{} // closed when running reaches 0; nil while nobody waits
	logs    map[*logFile]struct{}
	open    map[any]io.Closer // files and locks by what Pebble has of them, to be closed at last

	mark   *mark         // set before Pebble opens
	failed chan struct{} // closed when the catalogue fails
	syncs  atomic.Int64  // real ones of logs
}

// releasedPause is how often a flush that nobody can stop is tried in vain.
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

// fail records why the catalogue cannot go on; only the first cause counts.
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

// release lets what waits in failed end with an error.
func (g *guard) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.state == failed {
		g.setLocked(released)
	}
}

// kill ends all operations. The channel that it answers is closed when none runs
// any more.
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

// closeAll closes what Pebble left open, its lock included.
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

// enter waits until a change may be made, and counts it.
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

// enterRead is enter for what changes nothing, which also has to end before files
// are closed under it.
func (g *guard) enterRead() {
	g.mu.Lock()
	if g.state == dead {
		g.mu.Unlock()
		select {}
	}
	g.running++
	g.mu.Unlock()
}

// tryEnter is enter for what must not fail: it says whether to do it at all.
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

// changeQuietly is for what Pebble cannot stand to see fail.
func (g *guard) changeQuietly(what string, op func() error) {
	if !g.tryEnter() {
		return
	}
	defer g.leave()
	if err := op(); err != nil {
		g.fail(fmt.Errorf("%s: %w", what, err))
	}
}

// keep remembers what is open behind w until closeKept or closeAll.
func (g *guard) keep(w any, f io.Closer) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open[w] = f
}

// present says whether the files that are being written are found under their names.
// One that was closed meanwhile may have been removed.
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
			continue // of a file system of tests
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
