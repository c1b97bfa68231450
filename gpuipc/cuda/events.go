package cuda

import "github.com/spliced-kv/spliced/gpuipc/cuda/order"

// OrderEvents makes a pair of events, which order the stream of a client and the stream of
// the daemon. It is for devices whose streams have no 64-bit memory operations. If the
// streams of the device have these operations, OrderEvents returns nil, and the caller uses
// an order.Page instead. The pair must be closed before the device.
func (d *device) OrderEvents() (*order.Events, order.EventHandles, error) {
	if d.info.WaitValues {
		return nil, order.EventHandles{}, nil
	}
	return order.NewEvents(d.api, d.entered)
}

// entered calls the function calls on a thread where the device's context is current.
func (d *device) entered(calls func() error) error {
	return d.fail(d.onThread(calls))
}
