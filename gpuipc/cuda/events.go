package cuda

import "github.com/spliced-kv/spliced/gpuipc/cuda/order"

// OrderEvents makes a pair of events that order the streams of a client and of the device's
// owner. It is for devices whose streams have no 64-bit memory operations. If they have
// these, an order.Page is used instead and OrderEvents returns nil. The pair must be closed
// before the device.
func (d *device) OrderEvents() (*order.Events, order.EventHandles, error) {
	if d.info.WaitValues {
		return nil, order.EventHandles{}, nil
	}
	return order.NewEvents(d.api, d.entered)
}

// entered runs calls on a thread where the device's context is current.
func (d *device) entered(calls func() error) error {
	return d.fail(d.onThread(calls))
}
