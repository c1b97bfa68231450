package baseline

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spliced-kv/spliced/scripts/lab/bench/machine"
	"golang.org/x/sys/unix"
)

// Run does the pass with plain system calls on goroutines. Its rate is the limit of any Go
// program on this disk, and the only limit if fio is not installed. Each block has its own
// memory, as in the disk tier; fio reuses the memory of its few blocks in flight, which fits in
// caches. memory must be page-aligned and have t.Bytes bytes.
func (t Transfer) Run(ctx context.Context, memory []byte) (Pass, error) {
	flags := unix.O_RDONLY
	if t.Write {
		flags = unix.O_RDWR
	}
	fd, err := unix.Open(t.Path, flags|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		return Pass{}, fmt.Errorf("open %s for direct transfers: %w", t.Path, err)
	}
	defer unix.Close(fd)
	var front atomic.Int64
	before := machine.OwnUsage()
	begin := time.Now()
	failed := make([]error, t.Workers)
	var workers sync.WaitGroup
	for i := range t.Workers {
		workers.Go(func() { failed[i] = t.worker(ctx, fd, i, &front, memory) })
	}
	workers.Wait()
	return Pass{Seconds: time.Since(begin).Seconds(), Bytes: t.Bytes, CPU: machine.OwnUsage().Since(before).CPU}, errors.Join(failed...)
}

// worker transfers blocks. If Apart is set, it transfers all blocks of its own part of the file,
// otherwise the next blocks of the shared front.
func (t Transfer) worker(ctx context.Context, fd, i int, front *atomic.Int64, memory []byte) error {
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
