package slab

import (
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// The mode of a file: whether O_DIRECT works. untried becomes direct or buffered at the
// first transfer, because some file systems accept O_DIRECT at open and refuse it later.
const (
	untried uint32 = iota
	direct
	buffered
)

// dirFile is a file of a real directory.
type dirFile struct {
	name     string
	path     string
	fd       int
	size     int64
	readOnly bool
	mode     atomic.Uint32

	// The system calls, which tests replace.
	preadv, pwritev vectorCall
}

type vectorCall func(fd int, bufs [][]byte, off int64) (int, error)

func (f *dirFile) Bytes() int64 { return f.size }
func (f *dirFile) Direct() bool { return f.mode.Load() != buffered }
func (f *dirFile) Close() error { return unix.Close(f.fd) }

func (f *dirFile) ReadAt(bufs [][]byte, off int64) error {
	bytes, err := checkTransfer("read", f.name, f.size, bufs, off)
	if err != nil {
		return err
	}
	if err := f.transfer(f.preadv, io.ErrUnexpectedEOF, bufs, off); err != nil {
		return failedTransfer("read", f.name, bytes, off, err)
	}
	if !f.Direct() {
		// The bytes are in the arena now. A second copy in the page cache would only
		// displace pages that other processes need. This is a hint, so its error is ignored.
		_ = unix.Fadvise(f.fd, off, bytes, unix.FADV_DONTNEED)
	}
	return nil
}

func (f *dirFile) WriteAt(bufs [][]byte, off int64) error {
	bytes, err := checkTransfer("write", f.name, f.size, bufs, off)
	if err != nil {
		return err
	}
	if f.readOnly {
		return failedTransfer("write", f.name, bytes, off, unix.EROFS)
	}
	if err := f.transfer(f.pwritev, io.ErrShortWrite, bufs, off); err != nil {
		return failedTransfer("write", f.name, bytes, off, err)
	}
	if !f.Direct() {
		// Start writing to the disk now. If dirty pages accumulate, the kernel writes
		// them in one burst that delays all other I/O. Without the WAIT flags this call
		// neither waits nor takes an error that Sync has to see.
		_ = unix.SyncFileRange(f.fd, off, bytes, unix.SYNC_FILE_RANGE_WRITE)
	}
	return nil
}

func (f *dirFile) Sync() error {
	if err := retry(func() error { return unix.Fdatasync(f.fd) }); err != nil {
		return failed("sync "+f.name, err)
	}
	if !f.Direct() {
		_ = unix.Fadvise(f.fd, 0, 0, unix.FADV_DONTNEED)
	}
	return Present(f.path, f.fd)
}

// Present checks that a path leads to the file or directory that is open as fd. If the path
// does not lead there, Present returns ErrMissing.
func Present(path string, fd int) error {
	var named, open unix.Stat_t
	if err := retry(func() error { return unix.Fstat(fd, &open) }); err != nil {
		return failed("stat of the open "+path, err)
	}
	err := retry(func() error { return unix.Stat(path, &named) })
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return fmt.Errorf("%s: %w", path, ErrMissing)
	case err != nil:
		return failed("stat "+path, err)
	case named.Dev != open.Dev || named.Ino != open.Ino:
		return fmt.Errorf("%s: another file has this name: %w", path, ErrMissing)
	}
	return nil
}

// transfer moves all buffers with as many system calls as it takes. A call may move less
// than requested (a signal, 2 GiB, the end of the disk). If it ends inside a block, that
// block is moved again, since O_DIRECT cannot continue inside a block. If two calls in a
// row complete no block, transfer returns the error short.
func (f *dirFile) transfer(call vectorCall, short error, bufs [][]byte, off int64) error {
	v := vector{bufs: bufs}
	stalled := false
	for len(v.bufs) > 0 {
		seen := f.mode.Load()
		n, err := call(f.fd, v.window(iovMax), off)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EINVAL) && seen == untried:
			if err := f.fallBack(); err != nil {
				return err
			}
			continue
		case err != nil:
			return err
		}
		if seen == untried {
			f.mode.CompareAndSwap(untried, direct)
		}
		n &^= BlockBytes - 1
		if n == 0 && stalled {
			return short
		}
		stalled = n == 0
		v.advance(n)
		off += int64(n)
	}
	return nil
}

// fallBack makes a file use the page cache, after a first transfer got EINVAL. Several
// transfers may call it at the same time. If another transfer has meanwhile succeeded
// with O_DIRECT, it changes nothing, and the retry returns EINVAL to the caller.
func (f *dirFile) fallBack() error {
	if f.mode.Load() == direct {
		return nil
	}
	flags, err := unix.FcntlInt(uintptr(f.fd), unix.F_GETFL, 0)
	if err != nil {
		return err
	}
	if _, err := unix.FcntlInt(uintptr(f.fd), unix.F_SETFL, flags&^unix.O_DIRECT); err != nil {
		return err
	}
	f.mode.Store(buffered)
	return nil
}
