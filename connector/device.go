package connector

import (
	"context"
	"slices"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/gpuipc/cuda/order"
)

// Kernels is the PTX text of the attached daemon's kernels; nil without device
// memory. It is not to be changed.
func (c *Client) Kernels() []byte {
	if a := c.current(); a != nil && a.Device != nil {
		return a.Device.Kernels
	}
	return nil
}

// Order is the order page of the attached daemon in this process: the client's
// slot is written with it, or on a stream at its address. False without device
// memory. It is good until the attachment ends, see Client.Epoch.
func (c *Client) Order() (*order.Page, bool) {
	if a := c.current(); a != nil && a.Device != nil {
		return a.Device.Order, true
	}
	return nil, false
}

// ReleaseBehind gives device leases of one tenant back when this process's slot
// of the order page has reached after; 0 = at once. Then the daemon writes signal
// into its own, unless it is 0. It returns when that was done. With ErrLate
// nothing was; the leases are held as before.
func (m *Model) ReleaseBehind(ctx context.Context, after, signal uint64, leases ...*DeviceLease) error {
	r, err := m.enter()
	if err != nil {
		return err
	}
	defer r.a.Release()
	q := &wire.OrderRequest{After: after, Signal: signal}
	held := slices.DeleteFunc(slices.Clone(leases), func(l *DeviceLease) bool { return l == nil })
	for _, l := range held {
		id, err := l.lease(r.a)
		if err != nil {
			return err
		}
		q.Leases = append(q.Leases, id)
	}
	c := m.client
	k := c.calls.Get(ctx, c.opt.Timeouts.Transfer)
	defer c.calls.Put(k)
	k.Op = wire.OpOrder
	body, err := r.a.Do(ctx, k, r.tenant, q, nil)
	if err != nil {
		return err
	}
	var reply wire.CodesReply
	if err := r.a.Decode(wire.OpOrder, &reply, body); err != nil {
		return err
	}
	if err := r.a.CheckRows(wire.OpOrder, len(reply.Codes), len(q.Leases)); err != nil {
		return err
	}
	for _, l := range held { // a lease that expired meanwhile is over too
		if !l.released.Swap(true) {
			l.a.Release()
		}
	}
	return nil
}
