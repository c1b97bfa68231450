package connector

import (
	"context"
	"slices"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/gpuipc/cuda/order"
)

// Kernels returns the PTX text of the attached daemon's kernels; nil without device memory. The
// text must not be changed.
func (c *Client) Kernels() []byte {
	if a := c.current(); a != nil && a.Device != nil {
		return a.Device.Kernels
	}
	return nil
}

// Order returns the order page of the attached daemon, as mapped in this process. The order page
// is device memory with two sequence numbers, one of the client and one of the daemon, for which
// GPU streams can wait. The client sets its own number through the page, or lets a stream write
// the number at the page's address. Order returns false without device memory. The page is valid
// until the attachment ends (see Client.Epoch).
func (c *Client) Order() (*order.Page, bool) {
	if a := c.current(); a != nil && a.Device != nil {
		return a.Device.Order, true
	}
	return nil, false
}

// ReleaseBehind releases device leases of the model's tenant once the client's number in the
// order page has reached the value of after; 0 = at once. The daemon then sets its own number to
// the value of signal, unless signal is 0, and the call returns. After ErrLate no lease was
// released.
func (m *Model) ReleaseBehind(ctx context.Context, after, signal uint64, leases ...*DeviceLease) error {
	r, k, err := m.begin(ctx, wire.OpOrder, m.client.opt.Timeouts.Transfer)
	if err != nil {
		return err
	}
	defer r.end(k)
	q := &wire.OrderRequest{After: after, Signal: signal}
	held := slices.DeleteFunc(slices.Clone(leases), func(l *DeviceLease) bool { return l == nil })
	for _, l := range held {
		id, err := l.lease(r.a)
		if err != nil {
			return err
		}
		q.Leases = append(q.Leases, id)
	}
	var reply wire.CodesReply
	if err := r.ask(ctx, k, q, &reply); err != nil {
		return err
	}
	if err := r.a.CheckRows(wire.OpOrder, len(reply.Codes), len(q.Leases)); err != nil {
		return err
	}
	for _, l := range held { // whatever its code: a lease that has expired in the meantime has ended too
		if !l.released.Swap(true) {
			l.a.Release()
		}
	}
	return nil
}
