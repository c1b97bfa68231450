package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// scratch is a directory on the disk that is measured, gone when the suite ends.
type scratch struct{ dir string }

// scratchRoom is what a suite takes at most, and leaves free besides.
const scratchRoom = 7 << 30

// newScratch makes a directory below parent; "" = where temporary files go.
func newScratch(parent string) (*scratch, error) {
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
	return &scratch{dir}, nil
}

func (d *scratch) remove() error { return os.RemoveAll(d.dir) }

// settle waits until the file system has done what removals of files put off:
// on some disks that is as much work as writing them was.
func (d *scratch) settle() error {
	f, err := os.Open(d.dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Syncfs(int(f.Fd()))
}

func (d *scratch) path(name string) string { return filepath.Join(d.dir, name) }

// fallocated makes a file of so many bytes, none of them written yet.
func (d *scratch) fallocated(name string, bytes int64) (string, error) {
	path := d.path(name)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	if err := errors.Join(unix.Fallocate(int(f.Fd()), 0, 0, bytes), f.Close()); err != nil {
		return "", fmt.Errorf("%d bytes for %s: %w", bytes, path, err)
	}
	return path, nil
}

// dropCachedUnder drops the cached pages of all files below a directory.
func dropCachedUnder(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		return dropCached(path)
	})
}

// noise fills b with bytes that do not compress.
func noise(b []byte, seed uint64) {
	rng := rand.NewPCG(seed, 0x5eed)
	for len(b) >= 8 {
		binary.LittleEndian.PutUint64(b, rng.Uint64())
		b = b[8:]
	}
	for i := range b {
		b[i] = byte(rng.Uint64())
	}
}
