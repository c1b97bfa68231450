package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// run is the pass done by plain system calls on goroutines: the limit of what
// any Go program gets here, and all there is where fio is absent. Buffers hold
// incompressible bytes.
func (t transfer) run(ctx context.Context) (passed, error) {
	flags := unix.O_RDONLY
	if t.Write {
		flags = unix.O_RDWR
	}
	fd, err := unix.Open(t.Path, flags|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		return passed{}, fmt.Errorf("open %s for direct transfers: %w", t.Path, err)
	}
	defer unix.Close(fd)
	buffers := make([][]byte, t.Workers)
	for i := range buffers {
		if buffers[i], err = pageAligned(t.Block); err != nil {
			return passed{}, err
		}
		defer func() { _ = unix.Munmap(buffers[i]) }()
	}
	before := ownUsage()
	begin := time.Now()
	failed := make([]error, t.Workers)
	var workers sync.WaitGroup
	for i := range t.Workers {
		workers.Go(func() { failed[i] = t.worker(ctx, fd, i, buffers[i]) })
	}
	workers.Wait()
	return passed{seconds: time.Since(begin).Seconds(), bytes: t.Bytes, cpu: ownUsage().since(before).cpu}, errors.Join(failed...)
}

func (t transfer) worker(ctx context.Context, fd, i int, buf []byte) error {
	base, blocks := int64(i)*t.share(), int(t.share()/t.Block)
	for n := range blocks {
		if err := ctx.Err(); err != nil {
			return err
		}
		move := unix.Pread
		if t.Write {
			move = unix.Pwrite
		}
		off := base + int64(n)*t.Block
		if done, err := move(fd, buf, off); err != nil || done != len(buf) {
			return fmt.Errorf("%d of %d bytes at %d of %s: %w", done, len(buf), off, t.Path, err)
		}
		if t.Write && t.SyncEvery > 0 && (n+1)%t.SyncEvery == 0 {
			if err := unix.Fdatasync(fd); err != nil {
				return fmt.Errorf("sync %s: %w", t.Path, err)
			}
		}
	}
	return nil
}

// pageAligned is memory for direct transfers, filled with noise; it is given
// back by Munmap.
func pageAligned(n int64) ([]byte, error) {
	b, err := unix.Mmap(-1, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("%d bytes of memory: %w", n, err)
	}
	noise(b, 1)
	return b, nil
}

// dropCached makes the next buffered read of a file come from the disk. Direct
// transfers do not look at cached pages; only what is clean can go, so dirty
// pages are written first.
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
