package catalog

import (
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/wal"
)

// guard stands between Pebble and a file system. It decides which syncs are
// real, and keeps Pebble from ending our process.
//
// Pebble takes errors of its log, of a directory's sync and of its MANIFEST for
// the end: it panics, in two places with a mutex unlocked that a deferred call
// unlocks once more, which nothing can recover from; or it calls Logger.Fatalf.
// So it does not get to see the errors of a log or of a directory: the first one
// is kept here, the catalogue has failed with it, and from then on nothing that
// Pebble does reaches the disk, which is as safe as the crash that it asked for.
//
//	working ──fail──► failed ──release──► released ──kill──► dead
//	   └──────────────────────── kill ───────────────────────►┘
//
// What changes files:      working   failed           released   dead
//
//	log, sync of directory  is done   is said to be done, but is not
//	anything else           is done   waits            error      waits for ever
//
// Waiting in failed keeps Pebble from repeating a flush that cannot work as
// fast as it can; released lets Close wind it up; and dead makes sure that
// whatever is left of it changes no file that the next catalogue may have opened.
type guard struct {
	vfs.FS

	mu      sync.Mutex
	state   guardState
	cause   error         // of failed
	changed chan struct{} // closed and replaced with every change of state
	running int           // operations that change files
	idle    chan struct{} // closed when running reaches 0; nil while nobody waits
	logs    map[*logFile]struct{}
	open    map[any]io.Closer // files and locks by what Pebble has of them, to be closed at last

	failed chan struct{} // closed when the catalogue fails
	syncs  atomic.Int64  // real ones of logs
}

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

// kill ends all changes. The channel that it answers is closed when none runs
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
		return fmt.Errorf("%w: %w", ErrFailed, err)
	case dead:
		g.mu.Unlock()
		select {}
	}
	g.running++
	g.mu.Unlock()
	return nil
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

// isLog tells Pebble's write-ahead logs, by the rule by which it finds them.
func (g *guard) isLog(name string) bool {
	_, _, ok := wal.ParseLogFilename(g.PathBase(name))
	return ok
}

func (g *guard) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if g.isLog(name) {
		return g.createLog(name, category), nil
	}
	return g.openFile(func() (vfs.File, error) { return g.FS.Create(name, category) })
}

// openFile opens for reading like for writing: what is left of Pebble in a dead
// catalogue must not begin to open files either.
func (g *guard) openFile(open func() (vfs.File, error)) (vfs.File, error) {
	w := &file{g: g}
	err := g.change(func() (err error) {
		if w.File, err = open(); err == nil {
			g.keep(w, w.File)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return w, nil
}

// ReuseForWrite does not reuse: a log then never begins with the records of
// another, and Pebble, which looks at the old file's length, cannot fail at that.
func (g *guard) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if !g.isLog(newname) {
		return g.openFile(func() (vfs.File, error) { return g.FS.ReuseForWrite(oldname, newname, category) })
	}
	if g.tryEnter() {
		_ = g.FS.Remove(oldname) // if it stays, the next opening removes it
		g.leave()
	}
	return g.createLog(newname, category), nil
}

func (g *guard) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	return g.openFile(func() (vfs.File, error) { return g.FS.Open(name, opts...) })
}

func (g *guard) OpenReadWrite(name string, category vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	return g.openFile(func() (vfs.File, error) { return g.FS.OpenReadWrite(name, category, opts...) })
}

func (g *guard) OpenDir(name string) (vfs.File, error) {
	f, err := g.openFile(func() (vfs.File, error) { return g.FS.OpenDir(name) })
	if err != nil {
		return nil, err
	}
	return &directory{file: f.(*file), name: name}, nil
}

func (g *guard) Link(oldname, newname string) error {
	return g.change(func() error { return g.FS.Link(oldname, newname) })
}

func (g *guard) Remove(name string) error {
	return g.change(func() error { return g.FS.Remove(name) })
}

func (g *guard) RemoveAll(name string) error {
	return g.change(func() error { return g.FS.RemoveAll(name) })
}

func (g *guard) Rename(oldname, newname string) error {
	return g.change(func() error { return g.FS.Rename(oldname, newname) })
}

func (g *guard) MkdirAll(dir string, perm os.FileMode) error {
	return g.change(func() error { return g.FS.MkdirAll(dir, perm) })
}

func (g *guard) Lock(name string) (io.Closer, error) {
	l := &lock{g: g}
	err := g.change(func() error {
		c, err := g.FS.Lock(name)
		if err == nil {
			g.keep(l, c)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return l, nil
}

func (g *guard) Unwrap() vfs.FS { return g.FS }

type lock struct{ g *guard }

func (l *lock) Close() error { return l.g.closeKept(l) }

// file is any file but a log.
type file struct {
	vfs.File
	g *guard
}

func (f *file) Close() error { return f.g.closeKept(f) }

func (f *file) Write(p []byte) (n int, err error) {
	err = f.g.change(func() error {
		n, err = f.File.Write(p)
		return err
	})
	return n, err
}

func (f *file) WriteAt(p []byte, off int64) (n int, err error) {
	err = f.g.change(func() error {
		n, err = f.File.WriteAt(p, off)
		return err
	})
	return n, err
}

func (f *file) Preallocate(off, length int64) error {
	return f.g.change(func() error { return f.File.Preallocate(off, length) })
}

func (f *file) Sync() error     { return f.g.change(f.File.Sync) }
func (f *file) SyncData() error { return f.g.change(f.File.SyncData) }

func (f *file) SyncTo(length int64) (full bool, err error) {
	err = f.g.change(func() error {
		full, err = f.File.SyncTo(length)
		return err
	})
	return full, err
}

// directory is there to be synced, which does not fail for Pebble.
type directory struct {
	*file
	name string
}

func (d *directory) Sync() error {
	d.g.changeQuietly("sync directory "+d.name, d.File.Sync)
	return nil
}

func (d *directory) SyncData() error { return d.Sync() }
