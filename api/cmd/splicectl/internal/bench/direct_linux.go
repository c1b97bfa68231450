package bench

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// run is the pass done by plain system calls on goroutines: the limit of what
// any Go program gets here, and all there is where fio is absent. Each block has
// its own place in memory, as the tier's have; fio uses as much memory as there
// are blocks on their way, which caches hold. memory is page-aligned and as long
// as the pass.
func (t transfer) run(ctx context.Context, memory []byte) (passed, error) {
	flags := unix.O_RDONLY
	if t.Write {
		flags = unix.O_RDWR
	}
	fd, err := unix.Open(t.Path, flags|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		return passed{}, fmt.Errorf("open %s for direct transfers: %w", t.Path, err)
	}
	defer unix.Close(fd)
	var front atomic.Int64
	before := ownUsage()
	begin := time.Now()
	err = together(t.Workers, func(i int) error { return t.worker(ctx, fd, i, &front, memory) })
	return passed{seconds: time.Since(begin).Seconds(), bytes: t.Bytes, cpu: ownUsage().since(before).cpu}, err
}

// worker moves blocks: every one of its own part, or the next at the front.
func (t transfer) worker(ctx context.Context, fd, i int, front *atomic.Int64, memory []byte) error {
	var base int64
	if t.Apart {
		base, front = int64(i)*t.share(), new(atomic.Int64)
	}
	move := unix.Pread
	if t.Write {
		move = unix.Pwrite
	}
	for {
		n := front.Add(1) - 1
		off := n * t.Block
		if err := ctx.Err(); err != nil || off >= t.share() {
			return err
		}
		buf := memory[base+off:][:t.Block]
		if done, err := move(fd, buf, t.From+base+off); err != nil || done != len(buf) {
			return fmt.Errorf("%d of %d bytes at %d of %s: %w", done, len(buf), base+off, t.Path, err)
		}
		if t.Write && t.SyncEvery > 0 && (n+1)%int64(t.SyncEvery) == 0 {
			if err := unix.Fdatasync(fd); err != nil {
				return fmt.Errorf("sync %s: %w", t.Path, err)
			}
		}
	}
}

// pageAligned is memory for direct transfers, of the kind that an arena is made
// of and filled with noise; it is given back by unmap.
func pageAligned(n int64) ([]byte, error) {
	fd, err := unix.MemfdCreate("spliced-bench", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("%d bytes of memory: %w", n, err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, n); err != nil {
		return nil, fmt.Errorf("%d bytes of memory: %w", n, err)
	}
	b, err := unix.Mmap(fd, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
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
