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

// Events replaces waits in stream order on a device without driver.StreamMemOps64. It is a
// pair of events that the daemon creates. The client records the first one and the daemon
// the second. A side records its event in its stream, and then writes the number into its
// slot from the host (Page.Signal). So the number only means that the event is recorded.
// The side that reads the number calls Announced and waits for the event.
//
// A wait for an event is always for its latest record. So a wait may take longer than
// requested, but never shorter. If a side signals without pause, a host wait of its peer
// may not end before the deadline.
//
// The driver resolves handles of events through /dev/shm, which both processes must share.
// What happens to the events of a dead process is not documented. A wait that is enqueued
// already is for one record, which completes or disappears together with the context of the
// dead process.
type Events struct {
	api *driver.API
	run Entered
	own driver.Event // the event that this process records
	its driver.Event // the event that the other process records

	last atomic.Uint64 // last number that this process signaled
	said atomic.Uint64 // largest number that the peer announced

	side struct {
		sync.Mutex
		stream driver.Stream // stream for Signal; 0 = not created yet
	}
}

// Entered runs calls of the driver on a thread where the context is current. nil means that
// the context is current on the caller's thread.
type Entered func(calls func() error) error

// EventHandles has the handles of both events for the other process: first the client's
// event, then the daemon's.
type EventHandles [2 * driver.IPCHandleBytes]byte

const pairFlags = driver.EventInterprocess | driver.EventNoTiming

// NewEvents creates a pair in the daemon, and its handles for the client.
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

// orClosed returns e and h or, after an error, closes e.
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

// Record signals v after the work that is on st. v must be larger than the previous number.
// The caller announces v to the peer after Record has returned, not before.
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

// Signal signals v from the host, on a stream without other work. All work before v must
// have ended.
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

// Announced notes that the peer has signaled v.
func (e *Events) Announced(v uint64) {
	for {
		said := e.said.Load()
		if v <= said || e.said.CompareAndSwap(said, v) {
			return
		}
	}
}

// announced returns an error if the peer has not announced v. Before the announcement, the
// peer may not yet have recorded the event for v. The driver would then use an older record
// and let the stream continue.
func (e *Events) announced(v uint64) error {
	if err := number(v); err != nil {
		return err
	}
	if said := e.said.Load(); v > said {
		return fmt.Errorf("order: wait for %d, the peer announced %d: %w", v, said, gpuipc.ErrInvalid)
	}
	return nil
}

// Wait waits on the host for v, which must have been announced. It returns earlier, with an
// error, if ctx ends.
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

// Close closes both events. No wait for them may be running.
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
