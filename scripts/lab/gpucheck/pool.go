package gpucheck

import (
	"errors"
	"fmt"
	"time"

	"github.com/spliced-kv/spliced/gpuipc/cuda/driver"
	"github.com/spliced-kv/spliced/gpuipc/cuda/kernels"
	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// pool is two halves of device memory for timed plain copies.
type pool struct {
	from, to driver.DevicePtr
	bytes    int64 // of each half
}

// openPool allocates two areas of n bytes, between which plain copies are timed. It copies
// between them for the duration warm, so that the device's clocks have risen before anything is
// timed.
func (w *stopwatch) openPool(n int64, warm time.Duration) error {
	p := &pool{bytes: n}
	var err error
	if p.from, err = w.api.MemAlloc(n); err != nil {
		return err
	}
	if p.to, err = w.api.MemAlloc(n); err != nil {
		return errors.Join(err, w.api.MemFree(p.from))
	}
	w.pool = p
	if err := w.api.MemsetD8Async(p.from, 0x3d, n, w.stream); err != nil {
		return err
	}
	for start := time.Now(); ; {
		if err := errors.Join(w.plug(), w.api.StreamSynchronize(w.stream)); err != nil || time.Since(start) >= warm {
			return err
		}
	}
}

func (w *stopwatch) closePool() error {
	if w.pool == nil {
		return nil
	}
	p := w.pool
	w.pool = nil
	return errors.Join(w.api.StreamSynchronize(w.stream), w.api.MemFree(p.from), w.api.MemFree(p.to))
}

// plug keeps the stream busy for the time of copying the pool.
func (w *stopwatch) plug() error {
	if w.pool == nil {
		return nil
	}
	return w.api.MemcpyDtoDAsync(w.pool.to, w.pool.from, w.pool.bytes, w.stream)
}

// copyRow is the number of bytes that the copying kernel copies as a unit. copyTurns is the
// number of places in the pool that copies use in turn.
const (
	copyRow   = 1024
	copyTurns = 4
)

// copies returns two plain copies of about n/2 bytes, one by the driver and one by our own
// kernel. traffic is the bytes that each copy reads and writes in total. The faster copy is the
// limit of a row; which one is faster depends on the device.
func (w *stopwatch) copies(n int64) (byDriver, byKernel *timed, traffic int64, err error) {
	size := max(copyRow, min(n/2, w.pool.bytes)/copyRow*copyRow)
	turns := max(1, min(copyTurns, w.pool.bytes/size))
	byDriver, byKernel = &timed{}, &timed{}
	for i := range turns {
		from, to := w.pool.from+driver.DevicePtr(i*size), w.pool.to+driver.DevicePtr(i*size)
		byDriver.variants = append(byDriver.variants, func() error { return w.api.MemcpyDtoDAsync(to, from, size, w.stream) })
		launches, err := kernels.Rotate([]kernels.RotateJob{{Rows: int(size / copyRow), Heads: 1, Dim: copyRow / 2, Type: kernel.BF16,
			Src: uint64(from), Dst: kernels.RotateTarget{Base: uint64(to)}}})
		if err == nil {
			err = w.prepare(launches)
		}
		if err != nil {
			return nil, nil, 0, fmt.Errorf("a copy of %d bytes: %w", size, err)
		}
		byKernel.variants = append(byKernel.variants, func() error { return w.launch(launches) })
	}
	return byDriver, byKernel, 2 * size, nil
}

// turnsPast returns how many variants of n bytes must run in turn so that the first one has left
// the L2 cache before it runs again. The result is at most the parameter most.
func (w *stopwatch) turnsPast(n int64, most int) (int, error) {
	l2, err := w.api.DeviceAttribute(w.device, driver.L2Bytes)
	if err != nil {
		return 0, err
	}
	return max(1, min(most, int(4*int64(l2)/n)+1)), nil
}
