package cuda

import "github.com/spliced-kv/spliced/gpuipc/cuda/order"

// OrderEvents makes a pair of events that ties a client's streams to the device's
// owner where streams have no 64-bit memory operations; nil where they have, and
// an order.Page does. The pair is closed before the device.
func (d *device) OrderEvents() (*order.Events, order.EventHandles, error) {
	if d.info.WaitValues {
		return nil, order.EventHandles{}, nil
	}
	return order.NewEvents(d.api, d.entered)
}

// entered runs calls with the context current.
func (d *device) entered(calls func() error) error {
	return d.fail(d.onThread(calls))
}
