package server

import (
	"context"
	"errors"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/codes"
	"github.com/spliced-kv/spliced/gpuipc/cuda/order"
)

// turn is the position of an order request in the sequence of its connection. Requests take effect
// in order of arrival. A number in the daemon's slot of the order page means that the leases of all
// requests up to that number are released.
type turn struct {
	ended chan struct{}
	// before is set before ended is closed. It is nil if all earlier turns had ended by then. If it
	// is not nil, this turn's request gave up while it waited for that earlier turn, and the next
	// turn must wait for the earlier turn too.
	before *turn
}

// wait waits until x and all earlier turns have ended.
func (x *turn) wait(ctx context.Context) error {
	for x != nil {
		select {
		case <-x.ended:
			x = x.before
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// order releases leases once the client's stream has passed a point. It waits on the host, in a
// separate goroutine, and does not block a stream.
func (t deviceOps) order(m *wire.OrderRequest) (wire.Message, error) {
	l, err := t.attachedDevice()
	switch {
	case err != nil:
		return nil, err
	case m.After >= order.Released || m.Signal >= order.Released:
		return nil, codes.Refuse(wire.Invalid, "after %d, signal %d: numbers are below %d", m.After, m.Signal, order.Released)
	case !t.mayWait():
		return nil, codes.Refuse(wire.Busy, "%d requests are in flight, the maximum of a connection", t.conn.server.config.MaxInFlight)
	}
	own := &turn{ended: make(chan struct{})}
	l.mu.Lock()
	before := l.mu.last
	l.mu.last = own
	l.mu.Unlock()
	t.rest = on(func(t deviceOps) (wire.Message, error) {
		defer close(own.ended) // always, since every continuation runs
		if err := before.wait(t.ctx); err != nil {
			own.before = before
			return nil, err
		}
		return t.ordered(l)
	})
	return nil, nil
}

// ordered waits for the client's number, releases the leases, and writes the daemon's number.
func (t deviceOps) ordered(l *attachedGPU) (wire.Message, error) {
	m, err := decode[wire.OrderRequest](t.task)
	if err != nil {
		return nil, err
	}
	if m.Signal != 0 && m.Signal <= l.signalled {
		return nil, codes.Refuse(wire.Invalid, "signal %d after %d", m.Signal, l.signalled)
	}
	if m.After != 0 {
		if err := l.passed(t.ctx, m.After); err != nil {
			return nil, err
		}
	}
	// From here on the deadline does not apply: released leases cannot be restored.
	if err := t.ctx.Err(); err != nil {
		return nil, err
	}
	out := &wire.CodesReply{}
	for _, id := range m.Leases {
		out.Codes = append(out.Codes, t.row(leaseOps(t).releaseOne(id)))
	}
	if m.Signal == 0 {
		return out, nil
	}
	ctx, stop := context.WithTimeout(context.WithoutCancel(t.ctx), t.conn.server.config.HBMTimeout)
	defer stop()
	if err := l.signal(ctx, m.Signal); err != nil {
		// Streams wait for a number that will not be written. The client ends these waits when it sees that
		// the connection has ended.
		t.conn.server.log.Warn().Err(err).Str("tier", "hbm").Uint64("connection", t.conn.id).Msg("cannot write a stream signal of a client, closing its connection")
		t.conn.drop(errNoSignal)
		return out, nil
	}
	l.signalled = m.Signal
	return out, nil
}

var errNoSignal = errors.New("cannot write a stream signal of the client")

// passed waits until the client's stream has reached v. On a device with events, the number in the
// order page only says that the client has recorded an event; passed then waits for the event.
func (l *attachedGPU) passed(ctx context.Context, v uint64) error {
	_, err := l.order.Wait(ctx, order.Client, v)
	if e := l.pair.events; e != nil && err == nil {
		e.Announced(v)
		err = e.Wait(ctx, v)
	}
	return err
}

// signal writes the daemon's number v. No work that v covers is running any more.
func (l *attachedGPU) signal(ctx context.Context, v uint64) error {
	if e := l.pair.events; e != nil {
		if err := e.Signal(v); err != nil {
			return err
		}
	}
	return l.order.Signal(ctx, order.Daemon, v)
}
