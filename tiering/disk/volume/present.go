package volume

import (
	"os"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/tiering/disk/slab"
)

// anchors are the directory, its subdirectories, LOCK and FORMAT. They are kept open so
// that their inode numbers are not reused, and Present can compare them with what is
// found under their names.
type anchors []*os.File

// hold opens the anchors. The file systems of tests have no anchors.
func (v *Volume) hold() error {
	if v.index != vfs.Default {
		return nil
	}
	for _, name := range [...]string{"", lockName, formatName, indexDir, slabDir, profileDir} {
		path := v.path(name)
		fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return &os.PathError{Op: "open", Path: path, Err: err}
		}
		v.anchors = append(v.anchors, os.NewFile(uintptr(fd), path))
	}
	return nil
}

func (a anchors) close() {
	for _, f := range a {
		f.Close()
	}
}

// LockPresent is a cheaper form of Present for frequent callers. It checks only the lock
// file, which is not found either if the directory was moved.
func (v *Volume) LockPresent() error {
	defer v.Writes.Begin()()
	for _, f := range v.anchors {
		if f.Name() == v.path(lockName) {
			return slab.Present(f.Name(), int(f.Fd()))
		}
	}
	return nil
}

// Present checks that the anchors, and the catalogue's open files, are still found under
// their names. Slabs are checked when they are synced. Present returns slab.ErrMissing if a
// file or directory was removed or renamed, or if another file system is mounted there.
func (v *Volume) Present() error {
	defer v.Writes.Begin()()
	for _, f := range v.anchors {
		if err := slab.Present(f.Name(), int(f.Fd())); err != nil {
			return err
		}
	}
	return v.Catalog.Present()
}
