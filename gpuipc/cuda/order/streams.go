package order

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda/driver"
)

// Streams writes and waits for the slots of a page in stream order, on a device with
// driver.StreamMemOps64. As in package driver, the context must be current on the calling
// thread.
type Streams struct {
	API  *driver.API
	Page driver.DevicePtr // address of the page, as this process has mapped it
}

func (o Streams) at(s Slot) driver.DevicePtr {
	return o.Page + driver.DevicePtr(s)*SlotBytes
}

// Signal enqueues the write of v. The write is visible after everything that was enqueued
// on st before. The numbers of a slot must ascend. If several streams write a slot, the
// caller must order them.
func (o Streams) Signal(st driver.Stream, s Slot, v uint64) error {
	if err := errors.Join(s.check(), number(v)); err != nil {
		return err
	}
	return o.API.StreamWriteValue64(st, o.at(s), v)
}

// Wait makes everything that is enqueued on st from now on wait until the slot has reached
// v. The package comment says which waits are allowed; nothing but the number ends a wait.
func (o Streams) Wait(st driver.Stream, s Slot, v uint64) error {
	if err := errors.Join(s.check(), number(v)); err != nil {
		return err
	}
	return o.API.StreamWaitValue64GEQ(st, o.at(s), v)
}

// Release writes Released, so that waits for a dead peer end. st must be a stream on which
// nothing waits. When Release returns, Released has been written.
func (o Streams) Release(st driver.Stream, s Slot) error {
	if err := s.check(); err != nil {
		return err
	}
	if err := o.API.StreamWriteValue64(st, o.at(s), Released); err != nil {
		return err
	}
	return o.API.StreamSynchronize(st)
}

// atAddress accesses a page by its address, with copies on its own stream.
type atAddress struct {
	api    *driver.API
	stream driver.Stream
	page   driver.DevicePtr
}

// At returns the page at p, for a process that uses package driver itself. The methods of
// the page copy on st, on which nothing may wait. They must be called one at a time, with
// the context current on the calling thread.
func At(api *driver.API, st driver.Stream, p driver.DevicePtr) (*Page, error) {
	if p == 0 || p%SlotBytes != 0 {
		return nil, fmt.Errorf("order: page at address %#x: %w", uint64(p), gpuipc.ErrInvalid)
	}
	return &Page{memory: &atAddress{api: api, stream: st, page: p}}, nil
}

// The parameter word is Go memory. It is pinned until the copy has ended.
func (m *atAddress) load(_ context.Context, off int64, word []byte) error {
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&word[0])
	from := m.page + driver.DevicePtr(off)
	err := m.api.MemcpyDtoHAsync(unsafe.Pointer(&word[0]), from, int64(len(word)), m.stream)
	return errors.Join(err, m.api.StreamSynchronize(m.stream))
}

func (m *atAddress) store(_ context.Context, off int64, word []byte) error {
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&word[0])
	to := m.page + driver.DevicePtr(off)
	err := m.api.MemcpyHtoDAsync(to, unsafe.Pointer(&word[0]), int64(len(word)), m.stream)
	return errors.Join(err, m.api.StreamSynchronize(m.stream))
}
