package slab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// directory is an FS on a real directory.
type directory struct {
	path  string
	flags int // unix.O_DIRECT or 0
}

// OpenDir returns the files of an existing directory. They are used with O_DIRECT. If the
// file system refuses that, at open or at the first transfer, they are used through the
// page cache. The kernel is then asked to write dirty pages early and to drop cached ones.
func OpenDir(path string) (FS, error) { return openDir(path, unix.O_DIRECT) }

func openDir(path string, flags int) (FS, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("slab directory: %w", err)
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("slab directory %s: %w", path, unix.ENOTDIR)
	}
	return &directory{path: path, flags: flags}, nil
}

func (d *directory) Create(name string, bytes int64) (File, error) {
	f, err := d.open(name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL)
	if err != nil {
		return nil, failed("create "+name, err)
	}
	if err := allocate(f.fd, bytes); err != nil {
		err = failed(fmt.Sprintf("create %s: allocate %d bytes", name, bytes), err)
		return nil, errors.Join(err, f.Close(), d.Remove(name))
	}
	f.size = bytes
	return f, nil
}

// allocate allocates the blocks of an empty file, so that no later write can find the
// disk full. If the file system does not support that, the file becomes sparse.
func allocate(fd int, bytes int64) error {
	err := retry(func() error { return unix.Fallocate(fd, 0, 0, bytes) })
	if errors.Is(err, unix.EOPNOTSUPP) {
		return retry(func() error { return unix.Ftruncate(fd, bytes) })
	}
	return err
}

// KindOf returns the file type in a mode, for messages.
func KindOf(mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return "a file"
	case unix.S_IFDIR:
		return "a directory"
	case unix.S_IFLNK:
		return "a symbolic link"
	case unix.S_IFIFO:
		return "a FIFO"
	case unix.S_IFSOCK:
		return "a socket"
	case unix.S_IFBLK, unix.S_IFCHR:
		return "a device"
	}
	return fmt.Sprintf("of mode %o", mode)
}

func (d *directory) Open(name string) (File, error) {
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(d.path, name), &st); err != nil {
		return nil, failed("open "+name, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG { // checked first, since opening a device may have side effects
		return nil, fmt.Errorf("%s is %s: %w", name, KindOf(st.Mode), ErrKind)
	}
	f, err := d.open(name, unix.O_RDWR)
	if errors.Is(err, unix.EROFS) {
		if f, err = d.open(name, unix.O_RDONLY); err == nil {
			f.readOnly = true
		}
	}
	if err != nil {
		return nil, failed("open "+name, err)
	}
	if err := unix.Fstat(f.fd, &st); err != nil {
		return nil, errors.Join(failed("open "+name, err), f.Close())
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, errors.Join(fmt.Errorf("%s is %s: %w", name, KindOf(st.Mode), ErrKind), f.Close())
	}
	f.size = st.Size
	return f, nil
}

// open opens a file, with O_DIRECT if d.flags has it. A file system without O_DIRECT
// returns EINVAL. An older kernel has already created the file when it returns EINVAL, so
// the second attempt is without O_EXCL.
func (d *directory) open(name string, flags int) (*dirFile, error) {
	path := filepath.Join(d.path, name)
	f := &dirFile{name: name, path: path, preadv: unix.Preadv, pwritev: unix.Pwritev}
	attempt := func(flags int) error {
		return retry(func() (err error) {
			f.fd, err = unix.Open(path, flags|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
			return err
		})
	}
	err := attempt(flags | d.flags)
	if errors.Is(err, unix.EINVAL) && d.flags != 0 {
		f.mode.Store(buffered)
		if err = attempt(flags &^ unix.O_EXCL); err != nil && flags&unix.O_CREAT != 0 {
			_ = unix.Unlink(path)
		}
	}
	if d.flags == 0 {
		f.mode.Store(buffered)
	}
	return f, err
}

func (d *directory) Remove(name string) error {
	if err := unix.Unlink(filepath.Join(d.path, name)); err != nil {
		return failed("remove "+name, err)
	}
	return nil
}

func (d *directory) List() ([]string, error) {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return nil, fmt.Errorf("slab directory: %w", err)
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, nil
}

func (d *directory) Free() (int64, error) {
	var st unix.Statfs_t
	if err := retry(func() error { return unix.Statfs(d.path, &st) }); err != nil {
		return 0, failed("free bytes of "+d.path, err)
	}
	return int64(st.Bavail) * st.Bsize, nil
}

func (d *directory) Sync() error {
	f, err := os.Open(d.path)
	if err != nil {
		return fmt.Errorf("slab directory: %w", err)
	}
	return errors.Join(f.Sync(), f.Close())
}

// retry repeats a call while it is interrupted by signals.
func retry(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
