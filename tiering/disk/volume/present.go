package volume

import (
	"os"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/tiering/disk/slab"
)

// anchors are the directories and files that everything else is found through, held
// open so that no other can get their inode numbers.
type anchors []*os.File

// hold opens the anchors. File systems of tests have none.
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

// LockPresent is Present of the lock file alone, for those who ask often: it goes with
// the directory.
func (v *Volume) LockPresent() error {
	defer v.Writes.Begin()()
	for _, f := range v.anchors {
		if f.Name() == v.path(lockName) {
			return slab.Present(f.Name(), int(f.Fd()))
		}
	}
	return nil
}

// Present says whether the directory, and what is written in it but slabs, which
// look when they are synced, is found under its name. slab.ErrMissing: it was removed
// or renamed, or another file system is mounted there.
func (v *Volume) Present() error {
	defer v.Writes.Begin()()
	for _, f := range v.anchors {
		if err := slab.Present(f.Name(), int(f.Fd())); err != nil {
			return err
		}
	}
	return v.Catalog.Present()
}
