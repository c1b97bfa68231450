package catalog

import (
	"errors"
	"io"
	"os"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Create implements vfs.FS. It never fails for logs, MANIFESTs and markers, on which
// Pebble depends.
func (g *guard) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	base := g.PathBase(name)
	switch {
	case g.isLog(name):
		return g.createLog(name, category), nil
	case strings.HasPrefix(base, "marker."):
		g.syncParent(name)
	case !strings.HasPrefix(base, "MANIFEST-"):
		return g.openFile(func() (vfs.File, error) { return g.FS.Create(name, category) })
	}
	q := &quietFile{g: g, name: name}
	g.createQuiet(q, category)
	return q, nil
}

// syncParent syncs the directory before a marker is created in it. A marker is an empty file
// whose name says which MANIFEST is current. Pebble syncs the directory only after both
// files exist. If a power cut left only the marker, Pebble could not open the directory.
func (g *guard) syncParent(name string) {
	parent := g.PathDir(name)
	g.changeQuietly("sync directory "+parent, func() error {
		d, err := g.FS.OpenDir(parent)
		if err != nil {
			return err
		}
		return errors.Join(d.Sync(), d.Close())
	})
}

// openFile opens a file for reading or writing. Opening counts as a change even for
// reading, so that Pebble's remaining goroutines open no files in a dead catalogue.
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

// ReuseForWrite implements vfs.FS. It does not reuse a log, but removes it and creates
// the new one. So a log never holds records of an older log, and Pebble's check of the
// old file's length cannot fail.
func (g *guard) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if !g.isLog(newname) {
		return g.openFile(func() (vfs.File, error) { return g.FS.ReuseForWrite(oldname, newname, category) })
	}
	if g.tryEnter() {
		if g.mark.forget(g.PathBase(oldname)) == nil {
			_ = g.FS.Remove(oldname) // if this fails, the next opening removes the file
		}
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
	return g.change(func() error {
		if err := g.mark.forget(g.PathBase(name)); err != nil {
			return err
		}
		return g.FS.Remove(name)
	})
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

// file is any file except a log.
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

func (f *file) Read(p []byte) (int, error) {
	f.g.enterRead()
	defer f.g.leave()
	return f.File.Read(p)
}

func (f *file) ReadAt(p []byte, off int64) (int, error) {
	f.g.enterRead()
	defer f.g.leave()
	return f.File.ReadAt(p, off)
}

func (f *file) Stat() (vfs.FileInfo, error) {
	f.g.enterRead()
	defer f.g.leave()
	return f.File.Stat()
}

func (f *file) Prefetch(off, length int64) error {
	f.g.enterRead()
	defer f.g.leave()
	return f.File.Prefetch(off, length)
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

// directory is an open directory, whose Sync never fails for Pebble.
type directory struct {
	*file
	name string
}

func (d *directory) Sync() error {
	d.g.changeQuietly("sync directory "+d.name, d.File.Sync)
	return nil
}

func (d *directory) SyncData() error { return d.Sync() }
