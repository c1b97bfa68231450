package connector

import (
	"context"
	"slices"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/gpuipc/cuda/order"
)

// Kernels returns the PTX text of the attached daemon's kernels, nil without device memory.
// It must not be changed.
func (c *Client) Kernels() []byte {
	if a := c.current(); a != nil && a.Device != nil {
		return a.Device.Kernels
	}
	return nil
}

// Order returns the order page of the attached daemon as mapped in this process. The client's
// slot is written through it, or by a stream at its address. It returns false without device
// memory. The page is valid until the attachment ends, see Client.Epoch.
func (c *Client) Order() (*order.Page, bool) {
	if a := c.current(); a != nil && a.Device != nil {
		return a.Device.Order, true
	}
	return nil, false
}

// ReleaseBehind releases device leases of one tenant once this process's slot of the order
// page has reached after; 0 = at once. The daemon then writes signal to its own slot, unless
// signal is 0. The call returns after that. After ErrLate nothing was released.
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
	for _, l := range held { // a lease that expired in between has ended too
		if !l.released.Swap(true) {
			l.a.Release()
		}
	}
	return nil
}
