package gpucheck

import (
	"errors"
	"fmt"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/gpuipc/cuda/driver"
	"github.com/spliced-kv/spliced/gpuipc/cuda/order"
)

// callBytes is the size used for calls that move memory: a chunk of the daemon's HBM.
const callBytes = 64 << 20

// calls makes every kind of call that the daemon and its clients make, one after another, and
// reports how long each takes. If the driver refuses a call, calls continues with the next one.
func (c *check) calls() (err error) {
	for _, a := range []struct {
		name string
		of   driver.Attribute
	}{{"multiprocessors", driver.Multiprocessors}, {"bytes of L2", driver.L2Bytes}, {"shared memory a block can ask for", driver.MaxSharedOptIn}} {
		if err := c.attribute(a.name, a.of); err != nil {
			return err
		}
	}
	w, err := c.bareStopwatch()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	if free, total, err := w.api.MemInfo(); err == nil {
		c.report.Add(Row{Name: fmt.Sprintf("memory that is free, of %.4g GiB", float64(total)/(1<<30)), Value: float64(free) / (1 << 30), Unit: "GiB", OK: true})
	}
	for _, call := range []struct {
		name string
		run  func(*stopwatch) error
	}{
		{"memory: taken, written, read", callMemory},
		{"memory: by descriptor, mapped twice in one process", callDescriptor},
		{"memory: name for other processes (IPC handle)", callHandle},
		{"host memory: pinned, copied from and to", callPinned},
		{"streams: one waits for a number that another writes", callNumbers},
		{"events: with names for other processes", callEvents},
		{"all kernels, compiled or found in the cache", (*stopwatch).loadKernels},
	} {
		start := time.Now()
		err := call.run(w)
		row := Row{Name: call.name, Value: time.Since(start).Seconds() * 1e6, Unit: "us", OK: err == nil}
		if err != nil {
			row.Note = err.Error()
		}
		c.report.Add(row)
	}
	return nil
}

func (c *check) attribute(name string, a driver.Attribute) error {
	api, err := driver.Load(c.Library)
	if err != nil {
		return err
	}
	d, err := ordinal(api, c.Device)
	if err != nil {
		return err
	}
	n, err := api.DeviceAttribute(d, a)
	if err != nil {
		return err
	}
	c.report.Add(Row{Name: "the device: " + name, Value: float64(n), Unit: "", OK: true})
	return nil
}

func callMemory(w *stopwatch) (err error) {
	p, err := w.api.MemAlloc(callBytes)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.api.MemFree(p)) }()
	if err := w.api.MemsetD8Async(p, 0x5a, callBytes, w.stream); err != nil {
		return err
	}
	var b [16]byte
	if err := w.download(b[:], p+callBytes-driver.DevicePtr(len(b))); err != nil {
		return err
	}
	if b[0] != 0x5a || b[len(b)-1] != 0x5a {
		return fmt.Errorf("read %x where 5a was written", b)
	}
	return nil
}

// callDescriptor maps the same physical memory at two addresses. It makes the second mapping
// from a descriptor, as a client does.
func callDescriptor(w *stopwatch) (err error) {
	step, err := w.api.Granularity(w.device)
	if err != nil {
		return err
	}
	size := (callBytes + step - 1) / step * step
	m, err := w.api.MemCreate(size, w.device)
	if err != nil {
		return err
	}
	fd, err := w.api.ExportFD(m)
	if err != nil {
		return errors.Join(err, w.api.MemRelease(m))
	}
	again, err := w.api.ImportFD(fd)
	err = errors.Join(err, os.NewFile(uintptr(fd), "memory").Close())
	if err != nil {
		return errors.Join(err, w.api.MemRelease(m))
	}
	return w.mapped(m, size, func(one driver.DevicePtr) error {
		return w.mapped(again, size, func(two driver.DevicePtr) error {
			if err := w.api.MemsetD8Async(one, 0x7e, size, w.stream); err != nil {
				return err
			}
			var b [16]byte
			if err := w.download(b[:], two); err != nil {
				return err
			}
			if b[0] != 0x7e {
				return fmt.Errorf("read %x at the second address where 7e was written at the first", b[0])
			}
			return nil
		})
	})
}

// mapped maps physical memory for the duration of a call. It takes ownership of the handle.
func (w *stopwatch) mapped(m driver.Allocation, size int64, run func(driver.DevicePtr) error) error {
	p, err := w.api.AddressReserve(size)
	if err != nil {
		return errors.Join(err, w.api.MemRelease(m))
	}
	err = w.api.MemMap(p, size, m)
	if err = errors.Join(err, w.api.MemRelease(m)); err == nil {
		if err = w.api.MemSetAccess(p, size, w.device); err == nil {
			err = run(p)
		}
		err = errors.Join(err, w.api.MemUnmap(p, size))
	}
	return errors.Join(err, w.api.AddressFree(p, size))
}

func callHandle(w *stopwatch) error {
	p, err := w.api.MemAlloc(callBytes)
	if err != nil {
		return err
	}
	_, err = w.api.IPCMemHandle(p)
	if base, size, rangeErr := w.api.MemAddressRange(p); rangeErr != nil || base != p || size < callBytes {
		err = errors.Join(err, rangeErr, fmt.Errorf("the allocation is %d bytes at %#x", size, uint64(base)))
	}
	return errors.Join(err, w.api.MemFree(p))
}

func callPinned(w *stopwatch) (err error) {
	host, err := unix.Mmap(-1, 0, callBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.Munmap(host)) }()
	at := unsafe.Pointer(&host[0])
	if err := w.api.HostRegister(at, callBytes); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.api.HostUnregister(at)) }()
	p, err := w.api.MemAlloc(callBytes)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.api.MemFree(p)) }()
	host[callBytes-1] = 9
	if err := errors.Join(
		w.api.MemcpyHtoDAsync(p, at, callBytes, w.stream),
		w.api.MemcpyDtoHAsync(at, p+callBytes/2, callBytes/2, w.stream),
		w.api.StreamSynchronize(w.stream)); err != nil {
		return err
	}
	if host[callBytes/2-1] != 9 {
		return errors.New("a byte did not come back")
	}
	return nil
}

func callNumbers(w *stopwatch) (err error) {
	if ok, err := w.api.DeviceAttribute(w.device, driver.StreamMemOps64); err != nil || ok == 0 {
		return errors.Join(err, errors.New("the device has no 64-bit stream memory operations: clients wait on the host"))
	}
	page, err := w.api.MemAlloc(order.PageBytes)
	if err != nil {
		return err
	}
	urgent, err := w.api.StreamCreateUrgent()
	if err != nil {
		return errors.Join(err, w.api.MemFree(page))
	}
	err = errors.Join(
		w.api.MemsetD8Async(page, 0, order.PageBytes, w.stream), w.api.StreamSynchronize(w.stream),
		w.api.StreamWaitValue64GEQ(w.stream, page, 1), w.api.StreamWriteValue64(urgent, page, 1))
	if err == nil {
		err = w.within(rescueTime, []driver.Stream{w.stream, urgent})
	}
	return errors.Join(err, w.api.StreamDestroy(urgent), w.api.MemFree(page))
}

func callEvents(w *stopwatch) error {
	e, err := w.api.EventCreate(driver.EventNoTiming | driver.EventInterprocess)
	if err != nil {
		return err
	}
	_, err = w.api.IPCEventHandle(e)
	return errors.Join(err, w.api.EventRecord(e, w.stream), w.api.StreamWaitEvent(w.stream, e),
		w.api.StreamSynchronize(w.stream), w.api.EventDestroy(e))
}

// download copies to memory of this process and waits.
func (w *stopwatch) download(to []byte, from driver.DevicePtr) error {
	if err := w.api.MemcpyDtoHAsync(unsafe.Pointer(&to[0]), from, int64(len(to)), w.stream); err != nil {
		return err
	}
	return w.api.StreamSynchronize(w.stream)
}
