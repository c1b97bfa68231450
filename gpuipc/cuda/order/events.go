package order

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda/driver"
)

// Events stand in for a page on a device without driver.StreamMemOps64: one
// event that this side records and one of the peer's, opened by its handle. No
// number is in memory. It crosses the socket instead, and whoever receives it
// calls Announced.
//
// An event knows its last record only. So a wait may wait for more than it asked
// for, never for less, and a side that signals without pause can keep a host wait
// of its peer from ending before the deadline.
//
// The driver resolves handles of events through /dev/shm, which both processes
// must share. What becomes of the events of a process that died is not
// documented; a wait that was enqueued before is behind a record, which ends or
// goes with its context.
type Events struct {
	api  *driver.API
	own  driver.Event
	peer driver.Event
	last atomic.Uint64 // signalled by us
	said atomic.Uint64 // announced by the peer
}

// NewEvents makes this side's event and gives its handle for the peer.
func NewEvents(api *driver.API) (*Events, [driver.IPCHandleBytes]byte, error) {
	own, err := api.EventCreate(driver.EventInterprocess | driver.EventNoTiming)
	if err != nil {
		return nil, [driver.IPCHandleBytes]byte{}, err
	}
	h, err := api.IPCEventHandle(own)
	if err != nil {
		return nil, h, errors.Join(err, api.EventDestroy(own))
	}
	return &Events{api: api, own: own}, h, nil
}

// Open opens the peer's event; once, before anything waits.
func (e *Events) Open(peer [driver.IPCHandleBytes]byte) error {
	ev, err := e.api.IPCOpenEvent(peer)
	if err == nil {
		e.peer = ev
	}
	return err
}

// Signal records v on st. The caller tells the peer v after it returned, not
// before.
func (e *Events) Signal(st driver.Stream, v uint64) error {
	if err := number(v); err != nil {
		return err
	}
	if last := e.last.Load(); v <= last {
		return fmt.Errorf("order: number %d after %d: %w", v, last, gpuipc.ErrInvalid)
	}
	e.last.Store(v)
	return e.api.EventRecord(e.own, st)
}

// Announced notes that the peer said it has signalled v.
func (e *Events) Announced(v uint64) {
	for {
		said := e.said.Load()
		if v <= said || e.said.CompareAndSwap(said, v) {
			return
		}
	}
}

// announced refuses a wait for a record that may not have been made: the driver
// would take an older record for it and let the stream through.
func (e *Events) announced(v uint64) error {
	if err := number(v); err != nil {
		return err
	}
	if said := e.said.Load(); v > said || e.peer == 0 {
		return fmt.Errorf("order: wait for %d, the peer announced %d: %w", v, said, gpuipc.ErrInvalid)
	}
	return nil
}

// StreamWait makes what comes on st wait for v, which was announced.
func (e *Events) StreamWait(st driver.Stream, v uint64) error {
	if err := e.announced(v); err != nil {
		return err
	}
	return e.api.StreamWaitEvent(st, e.peer)
}

// Wait waits on the host for v, which was announced, or until ctx ends.
func (e *Events) Wait(ctx context.Context, v uint64) error {
	if err := e.announced(v); err != nil {
		return err
	}
	return poll(ctx, func() (bool, error) { return e.api.EventQuery(e.peer) })
}

// Close closes both events. Nothing waits for them any more.
func (e *Events) Close() error {
	err := e.api.EventDestroy(e.own)
	if e.peer != 0 {
		err = errors.Join(err, e.api.EventDestroy(e.peer))
	}
	return err
}
