package gpucheck

import (
	"fmt"
	"runtime"
	"unsafe"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda/driver"
)

// ordinal finds a device by its UUID.
func ordinal(api *driver.API, uuid string) (driver.Device, error) {
	n, err := api.DeviceCount()
	if err != nil {
		return 0, err
	}
	for i := range n {
		d, err := api.DeviceAt(i)
		if err != nil {
			return 0, err
		}
		u, err := api.DeviceUUID(d)
		if err != nil {
			return 0, err
		}
		if gpuipc.UUID(u).String() == uuid {
			return d, nil
		}
	}
	return 0, fmt.Errorf("no device %s among %d: %w", uuid, n, gpuipc.ErrUnavailable)
}

// upload copies src to the device and waits until the copy has ended.
func (w *stopwatch) upload(dst driver.DevicePtr, src []byte) error {
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&src[0])
	if err := w.api.MemcpyHtoDAsync(dst, unsafe.Pointer(&src[0]), int64(len(src)), w.stream); err != nil {
		return err
	}
	return w.api.StreamSynchronize(w.stream)
}

// fill writes n bytes at dst. It uploads block, and then copies the bytes written so far to the
// memory after them, again and again, until n bytes are written.
func (w *stopwatch) fill(dst driver.DevicePtr, block []byte, n int64) error {
	have := min(int64(len(block)), n)
	if err := w.upload(dst, block[:have]); err != nil {
		return err
	}
	for have < n {
		more := min(have, n-have)
		if err := w.api.MemcpyDtoDAsync(dst+driver.DevicePtr(have), dst, more, w.stream); err != nil {
			return err
		}
		have += more
	}
	return w.api.StreamSynchronize(w.stream)
}
