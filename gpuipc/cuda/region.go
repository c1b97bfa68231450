package cuda

import (
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda/driver"
)

// handleGranularity is the multiple of bytes to which regions with handles are rounded up.
// The driver takes smaller allocations from blocks of this size, and a handle opens the
// whole block.
const handleGranularity = 2 << 20

// region is device memory, our own or imported.
type region struct {
	dev   *device
	name  string
	bytes int64
	spans []span // in the order of offsets, without gaps
	way   gpuipc.Way
	// chunks has the allocations of our own region that is shared by descriptors.
	chunks []vmmChunk
	// giveBack releases the memory. It is called once, with the context current. For
	// imports it is called in a separate goroutine.
	giveBack func() error
	imported bool

	// users is the number of running operations, or closedRegion once the region is closed.
	users atomic.Int64
}

// span is a run of bytes of a region that has one address.
type span struct {
	off, bytes int64
	at         driver.DevicePtr
}

const closedRegion = -1 << 62

// Device returns the UUID of the region's device.
func (r *region) Device() gpuipc.UUID { return r.dev.info.UUID }

// NewRegion allocates memory that is all zeros. If there is no room, it changes nothing and
// returns ErrFull. The fields Access and Huge of spec have no effect on a GPU, but must be
// valid.
func (d *device) NewRegion(spec gpuipc.RegionSpec) (gpuipc.Region, error) {
	if err := spec.Check(); err != nil {
		return nil, err
	}
	way := spec.Way
	switch {
	case way == 0 && d.info.Descriptors:
		way = gpuipc.WayDescriptor
	case way == 0:
		way = gpuipc.WayHandle
	case way == gpuipc.WayDescriptor && !d.info.Descriptors:
		return nil, fmt.Errorf("cuda: region %s: %s does not give memory out as descriptors, take the way of handles: %w", spec.Name, d.info.Name, gpuipc.ErrUnavailable)
	}
	if err := d.enter(); err != nil {
		return nil, err
	}
	defer d.leave()
	r := &region{dev: d, name: spec.Name, way: way}
	take := r.allocate
	if way == gpuipc.WayDescriptor {
		take = r.create
	}
	if err := take(roundUp(spec.Bytes, max(d.granularity, handleGranularity))); err != nil {
		return nil, fmt.Errorf("cuda: region %s of %d bytes: %w", spec.Name, spec.Bytes, d.fail(err))
	}
	if err := d.zero(r); err != nil {
		_ = r.giveBack()
		return nil, fmt.Errorf("cuda: region %s of %d bytes: %w", spec.Name, spec.Bytes, d.fail(err))
	}
	d.regions.Add(1)
	return r, nil
}

// create makes the region from chunks.
func (r *region) create(size int64) error {
	d := r.dev
	most := roundUp(d.options.ChunkBytes, d.granularity)
	for left := size; left > 0; {
		n := min(left, most)
		a, err := d.api.MemCreate(n, d.id)
		if err != nil {
			d.releaseChunks(r.chunks)
			return err
		}
		r.chunks = append(r.chunks, vmmChunk{a, n})
		left -= n
	}
	base, err := d.mapChunks(r.chunks)
	if err != nil {
		d.releaseChunks(r.chunks)
		return err
	}
	r.bytes, r.spans = size, []span{{0, size, base}}
	r.giveBack = func() error {
		err := d.unmapChunks(base, r.chunks)
		d.releaseChunks(r.chunks)
		return err
	}
	return nil
}

// allocate makes the region from one allocation.
func (r *region) allocate(size int64) error {
	at, err := r.dev.api.MemAlloc(size)
	if err != nil {
		return err
	}
	r.bytes, r.spans = size, []span{{0, size, at}}
	r.giveBack = func() error { return r.dev.api.MemFree(at) }
	return nil
}

// zero clears a new region, because it may have data that another process left.
func (d *device) zero(r *region) error {
	s, err := d.api.StreamCreate()
	if err != nil {
		return err
	}
	defer func() { _ = d.api.StreamDestroy(s) }()
	for _, p := range r.spans {
		if err := d.api.MemsetD8Async(p.at, 0, p.bytes, s); err != nil {
			return err
		}
	}
	return d.api.StreamSynchronize(s)
}

func (r *region) Bytes() int64 { return r.bytes }

// Export returns ErrUnavailable, because device memory is shared as a Share.
func (r *region) Export() (gpuipc.Handle, error) {
	if err := r.hold(); err != nil {
		return gpuipc.Handle{}, err
	}
	r.letGo()
	return gpuipc.Handle{}, fmt.Errorf("cuda: region %s: memory of a GPU leaves as a Share: %w", r.name, gpuipc.ErrUnavailable)
}

// Resident returns the whole size, because device memory is backed when it is allocated.
func (r *region) Resident() (int64, error) {
	if err := r.hold(); err != nil {
		return 0, err
	}
	defer r.letGo()
	return r.bytes, nil
}

// Share returns handles for one more process. Only the owner of memory can share it, so it
// returns ErrUnavailable for an imported region.
func (r *region) Share(way gpuipc.Way) (gpuipc.Share, error) {
	if err := r.hold(); err != nil {
		return gpuipc.Share{}, err
	}
	defer r.letGo()
	switch {
	case way != gpuipc.WayDescriptor && way != gpuipc.WayHandle:
		return gpuipc.Share{}, fmt.Errorf("cuda: share region %s: way %d: %w", r.name, way, gpuipc.ErrInvalid)
	case r.imported:
		return gpuipc.Share{}, fmt.Errorf("cuda: share region %s: it is memory of another process: %w", r.name, gpuipc.ErrUnavailable)
	case way != r.way && way == gpuipc.WayHandle:
		return gpuipc.Share{}, fmt.Errorf("cuda: share region %s: memory made of VMM chunks has no IPC handle; make the region with WayHandle: %w", r.name, gpuipc.ErrUnavailable)
	case way != r.way:
		return gpuipc.Share{}, fmt.Errorf("cuda: share region %s: memory with an IPC handle does not leave as a descriptor; make the region with WayDescriptor: %w", r.name, gpuipc.ErrUnavailable)
	}
	if err := r.dev.enter(); err != nil {
		return gpuipc.Share{}, err
	}
	defer r.dev.leave()
	out := gpuipc.Share{Way: way, Device: r.dev.info.UUID}
	var err error
	if way == gpuipc.WayDescriptor {
		err = r.descriptors(&out)
	} else {
		err = r.handle(&out)
	}
	if err != nil {
		_ = out.Close() // the first error says more
		return gpuipc.Share{}, fmt.Errorf("cuda: share region %s: %w", r.name, r.dev.fail(err))
	}
	return out, nil
}

func (r *region) descriptors(out *gpuipc.Share) error {
	for _, c := range r.chunks {
		fd, err := r.dev.api.ExportFD(c.allocation)
		if err != nil {
			return err
		}
		unix.CloseOnExec(fd)
		out.Chunks = append(out.Chunks, gpuipc.Chunk{Bytes: c.bytes, File: os.NewFile(uintptr(fd), "cuda:"+r.name)})
	}
	return nil
}

// The method handle makes the handle of the region's allocation the only chunk of out. The
// driver may have made the allocation larger than the region. So Off of the chunk is the
// offset of the region in the allocation.
func (r *region) handle(out *gpuipc.Share) error {
	at := r.spans[0].at
	h, err := r.dev.api.IPCMemHandle(at)
	if err != nil {
		return err
	}
	base, _, err := r.dev.api.MemAddressRange(at)
	if err != nil {
		return err
	}
	out.Chunks = []gpuipc.Chunk{{Bytes: r.bytes, Handle: h, Off: int64(at - base)}}
	return nil
}

// Close frees the memory. It panics if an operation is still using the memory, because
// another region may get the addresses next. Closing memory of another process has a
// deadline. If the driver does not return in time, Close returns ErrUnavailable, and the
// memory is released when the driver returns.
func (r *region) Close() error {
	if !r.users.CompareAndSwap(0, closedRegion) {
		if n := r.users.Load(); n > 0 {
			panic(fmt.Sprintf("cuda: close of region %s under %d running operations", r.name, n))
		}
		return fmt.Errorf("cuda: close region %s: closed already: %w", r.name, gpuipc.ErrInvalid)
	}
	d := r.dev
	d.regions.Add(-1)
	var err error
	if r.imported {
		err = d.foreign.Release("close memory of another process", r.giveBack)
	} else {
		d.release(func() { err = r.giveBack() })
	}
	fail := d.fail
	if r.imported {
		fail = d.failForeign
	}
	// This call may be the first to see that the device is lost.
	if err = fail(err); err == nil || d.gone() != nil {
		return nil // what was on a lost device is gone with it
	}
	return fmt.Errorf("cuda: close region %s: %w", r.name, err)
}

// hold keeps the region in use for one operation, until letGo.
func (r *region) hold() error {
	if r.users.Add(1) < 0 {
		r.users.Add(-1)
		return fmt.Errorf("cuda: region %s is closed: %w", r.name, gpuipc.ErrInvalid)
	}
	return nil
}

func (r *region) letGo() { r.users.Add(-1) }

func roundUp(n, to int64) int64 { return (n + to - 1) / to * to }
