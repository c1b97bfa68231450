package order

import "github.com/spliced-kv/spliced/gpuipc/cuda/driver"

// What a client does with events, for tests: the daemon creates them and waits on its host.

// OpenEvents opens the daemon's pair in the client.
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

// StreamWait makes later work on st wait for v, which must have been announced.
func (e *Events) StreamWait(st driver.Stream, v uint64) error {
	if err := e.announced(v); err != nil {
		return err
	}
	return e.do(func() error { return e.api.StreamWaitEvent(st, e.its) })
}
