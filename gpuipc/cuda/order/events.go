package order

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda/driver"
)

// Events replaces stream waits on a device without driver.StreamMemOps64: a
// pair of events that the daemon creates, of which the client records the first
// and the daemon the second. A side records its event in its stream and then
// writes the number into its slot from the host (Page.Signal). There the number
// only means that the event is recorded; its reader calls Announced and waits
// for the event.
//
// An event has only its last record. So a wait may take longer than requested,
// never shorter, and a side that signals without pause can keep a host wait of
// its peer from ending before the deadline.
//
// The driver resolves handles of events through /dev/shm, which both processes
// must share. What happens to the events of a dead process is not documented; a
// wait that was enqueued before is for a record, which ends or disappears with
// its context.
type Events struct {
	api *driver.API
	run Entered
	own driver.Event // recorded by this process
	its driver.Event // by the other

	last atomic.Uint64 // signalled by us
	said atomic.Uint64 // announced by the peer

	side struct {
		sync.Mutex
		stream driver.Stream // of Signal; 0 = not made yet
	}
}

// Entered runs calls of the driver with the context current on their thread.
// nil: the caller's thread has it.
type Entered func(calls func() error) error

// EventHandles has the handles of both events for the other process: the
// client's, the daemon's.
type EventHandles [2 * driver.IPCHandleBytes]byte

const pairFlags = driver.EventInterprocess | driver.EventNoTiming

// NewEvents creates a pair for the daemon and its handles for the client.
func NewEvents(api *driver.API, run Entered) (*Events, EventHandles, error) {
	e := &Events{api: api, run: run}
	var h EventHandles
	err := e.do(func() error {
		for i, to := range []*driver.Event{Client: &e.its, Daemon: &e.own} {
			ev, err := api.EventCreate(pairFlags)
			if err != nil {
				return err
			}
			*to = ev
			name, err := api.IPCEventHandle(ev)
			if err != nil {
				return err
			}
			copy(h[i*driver.IPCHandleBytes:], name[:])
		}
		return nil
	})
	return e.orClosed(h, err)
}

// OpenEvents opens the daemon's pair for the client.
func OpenEvents(api *driver.API, h EventHandles, run Entered) (*Events, error) {
	e := &Events{api: api, run: run}
	err := e.do(func() error {
		for i, to := range []*driver.Event{Client: &e.own, Daemon: &e.its} {
			ev, err := api.IPCOpenEvent([driver.IPCHandleBytes]byte(h[i*driver.IPCHandleBytes:]))
			if err != nil {
				return err
			}
			*to = ev
		}
		return nil
	})
	e, _, err = e.orClosed(h, err)
	return e, err
}

// orClosed returns e, or closes it after an error.
func (e *Events) orClosed(h EventHandles, err error) (*Events, EventHandles, error) {
	if err != nil {
		return nil, EventHandles{}, errors.Join(err, e.Close())
	}
	return e, h, nil
}

func (e *Events) do(calls func() error) error {
	if e.run == nil {
		return calls()
	}
	return e.run(calls)
}

// Record signals v, larger than the number before, after the work on st. The
// caller notifies the peer of v after Record returned, not before.
func (e *Events) Record(st driver.Stream, v uint64) error {
	if err := number(v); err != nil {
		return err
	}
	if last := e.last.Load(); v <= last {
		return fmt.Errorf("order: number %d after %d: %w", v, last, gpuipc.ErrInvalid)
	}
	e.last.Store(v)
	return e.do(func() error { return e.api.EventRecord(e.own, st) })
}

// Signal signals v from the host, on an empty stream: all work before v has
// ended.
func (e *Events) Signal(v uint64) error {
	e.side.Lock()
	defer e.side.Unlock()
	if e.side.stream == 0 {
		err := e.do(func() (err error) {
			e.side.stream, err = e.api.StreamCreate()
			return err
		})
		if err != nil {
			return err
		}
	}
	return e.Record(e.side.stream, v)
}

// Announced records that the peer has signalled v.
func (e *Events) Announced(v uint64) {
	for {
		said := e.said.Load()
		if v <= said || e.said.CompareAndSwap(said, v) {
			return
		}
	}
}

// announced refuses a wait for a record that may not exist: the driver would
// use an older record and let the stream continue.
func (e *Events) announced(v uint64) error {
	if err := number(v); err != nil {
		return err
	}
	if said := e.said.Load(); v > said {
		return fmt.Errorf("order: wait for %d, the peer announced %d: %w", v, said, gpuipc.ErrInvalid)
	}
	return nil
}

// StreamWait makes later work on st wait for v, which was announced.
func (e *Events) StreamWait(st driver.Stream, v uint64) error {
	if err := e.announced(v); err != nil {
		return err
	}
	return e.do(func() error { return e.api.StreamWaitEvent(st, e.its) })
}

// Wait waits on the host for v, which was announced, or until ctx ends.
func (e *Events) Wait(ctx context.Context, v uint64) error {
	if err := e.announced(v); err != nil {
		return err
	}
	return poll(ctx, func() (done bool, err error) {
		err = e.do(func() error {
			done, err = e.api.EventQuery(e.its)
			return err
		})
		return done, err
	})
}

// Close closes both events. Nothing waits for them any more.
func (e *Events) Close() error {
	return e.do(func() error {
		var errs []error
		for _, ev := range []driver.Event{e.own, e.its} {
			if ev != 0 {
				errs = append(errs, e.api.EventDestroy(ev))
			}
		}
		if e.side.stream != 0 {
			errs = append(errs, e.api.StreamDestroy(e.side.stream))
		}
		return errors.Join(errs...)
	})
}
