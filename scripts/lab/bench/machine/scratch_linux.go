package machine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Scratch is a directory on the measured disk, removed when the suite ends.
type Scratch struct{ Dir string }

// scratchRoom is the free space that a suite requires; it uses less.
const scratchRoom = 7 << 30

// NewScratch makes a directory below parent; "" = the directory of temporary files.
func NewScratch(parent string) (*Scratch, error) {
	if parent == "" {
		parent = os.TempDir()
	}
	var st unix.Statfs_t
	if err := unix.Statfs(parent, &st); err != nil {
		return nil, fmt.Errorf("%s: %w", parent, err)
	}
	if st.Type == unix.TMPFS_MAGIC || st.Type == unix.RAMFS_MAGIC {
		return nil, fmt.Errorf("%s is memory, no disk: name a directory of a disk with --dir", parent)
	}
	if free := int64(st.Bavail) * st.Bsize; free < scratchRoom {
		return nil, fmt.Errorf("%s has %.1f GiB free, the suite wants %d", parent, float64(free)/(1<<30), scratchRoom>>30)
	}
	dir, err := os.MkdirTemp(parent, "spliced-bench-")
	if err != nil {
		return nil, err
	}
	return &Scratch{dir}, nil
}

// Remove deletes the directory and its contents.
func (d *Scratch) Remove() error { return os.RemoveAll(d.Dir) }

// Sync waits until the file system has done the deferred work of removing files. On some disks
// this is as much work as writing them.
func (d *Scratch) Sync() error {
	f, err := os.Open(d.Dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Syncfs(int(f.Fd()))
}

// Path returns the path of a file in the directory.
func (d *Scratch) Path(name string) string { return filepath.Join(d.Dir, name) }

// Fallocated creates a file of a given size without writing its bytes.
func (d *Scratch) Fallocated(name string, bytes int64) (string, error) {
	path := d.Path(name)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	if err := errors.Join(unix.Fallocate(int(f.Fd()), 0, 0, bytes), f.Close()); err != nil {
		return "", fmt.Errorf("%d bytes for %s: %w", bytes, path, err)
	}
	return path, nil
}

// DropCached drops the page cache of all files below a directory.
func DropCached(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		return dropCached(path)
	})
}

// dropCached makes the next buffered read of a file come from the disk. Direct transfers
// bypass the page cache. Only clean pages can be dropped, so dirty pages are written first.
func dropCached(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Fdatasync(int(f.Fd())); err != nil {
		return fmt.Errorf("sync %s: %w", path, err)
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return fmt.Errorf("drop cached pages of %s: %w", path, err)
	}
	return nil
}
