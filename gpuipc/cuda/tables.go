package cuda

import (
	"encoding/binary"
	"fmt"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda/driver"
	"github.com/spliced-kv/spliced/gpuipc/cuda/kernels"
)

const (
	tablesFirst = 256 << 10 // initial bytes of a lane's tables
	tablesMost  = 64 << 20  // most bytes at once; no operation needs more, because its parts are bounded
)

// tables is a lane's buffer for the tables of launches: pinned host memory, and as much
// device memory. It fills up from the front. So tables that are being copied stay unchanged
// until the lane has drained.
type tables struct {
	host pinned
	at   driver.DevicePtr
	used int64
}

// launch enqueues kernels, one after the other, after a copy of their tables.
func (l *lane) launch(launches []kernels.Launch) error {
	if err := l.place(launches); err != nil {
		return err
	}
	for i := range launches {
		if err := l.start(&launches[i]); err != nil {
			return err
		}
	}
	return nil
}

// place enqueues one copy of the tables of all launches to the device, and puts the address
// of each table into the arguments of its launch.
func (l *lane) place(launches []kernels.Launch) error {
	total := int64(0)
	for i := range launches {
		total += tableRoom(len(launches[i].Tables))
	}
	if err := l.roomForTables(total); err != nil {
		return err
	}
	l.busy = true
	begin := l.tables.used
	for i := range launches {
		t := launches[i].Tables
		copy(l.tables.host.mem[l.tables.used:], t)
		if len(t) > 0 {
			binary.LittleEndian.PutUint64(launches[i].Args, uint64(l.tables.at)+uint64(l.tables.used))
		}
		l.tables.used += tableRoom(len(t))
	}
	if total == 0 {
		return nil
	}
	return l.dev.api.MemcpyHtoDAsync(l.tables.at+driver.DevicePtr(begin), l.tables.host.at(begin), total, l.stream)
}

func (l *lane) start(k *kernels.Launch) error {
	f, err := l.dev.kernels.function(k.Name)
	if err != nil {
		return err
	}
	if err := l.dev.api.Launch(f, k.Grid, k.Block, k.Shared, l.stream, k.Args); err != nil {
		return fmt.Errorf("%s, grid %v, block %v, %d bytes shared: %w", k.Name, k.Grid, k.Block, k.Shared, err)
	}
	return nil
}

func tableRoom(n int) int64 {
	return (int64(n) + kernels.TableAlign - 1) / kernels.TableAlign * kernels.TableAlign
}

// roomForTables makes room for n bytes of tables. If earlier launches occupy the space, it
// waits for them.
func (l *lane) roomForTables(n int64) error {
	t := &l.tables
	if n <= int64(len(t.host.mem))-t.used {
		return nil
	}
	if n > tablesMost {
		return fmt.Errorf("cuda: %d bytes of tables, at most %d: %w", n, int64(tablesMost), gpuipc.ErrInvalid)
	}
	if err := l.drain(); err != nil {
		return err
	}
	t.used = 0
	if n <= int64(len(t.host.mem)) {
		return nil
	}
	t.close(l.dev)
	size := int64(tablesFirst)
	for size < n {
		size *= 2
	}
	at, err := l.dev.api.MemAlloc(size)
	if err != nil {
		return err
	}
	if t.host, err = l.dev.newPinned(size); err != nil {
		_ = l.dev.api.MemFree(at)
		return err
	}
	t.at = at
	return nil
}

func (t *tables) close(d *device) {
	if t.host.mem != nil {
		_ = d.api.MemFree(t.at)
	}
	t.host.close(d)
	t.at, t.used = 0, 0
}
