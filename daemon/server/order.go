package server

import (
	"context"
	"errors"
	"slices"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/codes"
	"github.com/spliced-kv/spliced/gpuipc/cuda/order"
)

// turn is the place of an order request in the line of its connection. They take
// effect one after another, as they came: a number in the daemon's slot says that
// the leases of all requests up to it are released.
type turn struct {
	ended chan struct{}
	// before, set when ended is closed, is who else the next in line waits for:
	// a request gave up while the one before it still waited.
	before *turn
}

// wait waits for those before.
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

// order releases leases once the client's stream has passed a point. It waits on
// the host, in a goroutine of its own, and never makes a stream wait.
func (t *task) order() (wire.Message, error) {
	m := &t.scratch.order
	if err := m.Decode(t.body); err != nil {
		return nil, err
	}
	l, err := t.attachedDevice()
	switch {
	case err != nil:
		return nil, err
	case m.After >= order.Released || m.Signal >= order.Released:
		return nil, codes.Refuse(wire.Invalid, "after %d, signal %d: numbers are below %d", m.After, m.Signal, order.Released)
	case !t.conn.mayWait():
		return nil, codes.Refuse(wire.Busy, "%d requests are in flight, the most of a connection", t.conn.server.config.MaxInFlight)
	}
	own := &turn{ended: make(chan struct{})}
	l.mu.Lock()
	before := l.mu.last
	l.mu.last = own
	l.mu.Unlock()
	t.rest = l.inTurn(own, before, wire.OrderRequest{After: m.After, Signal: m.Signal, Leases: slices.Clone(m.Leases)})
	return nil, nil
}

// inTurn is the rest of an order request. It always runs.
func (l *attachedGPU) inTurn(own, before *turn, m wire.OrderRequest) rest {
	return func(t *task) (wire.Message, error) {
		defer close(own.ended)
		if err := before.wait(t.ctx); err != nil {
			own.before = before
			return nil, err
		}
		return t.ordered(l, &m)
	}
}

// ordered waits for the client's number, releases, and writes ours.
func (t *task) ordered(l *attachedGPU, m *wire.OrderRequest) (wire.Message, error) {
	if m.Signal != 0 && m.Signal <= l.signalled {
		return nil, codes.Refuse(wire.Invalid, "signal %d after %d", m.Signal, l.signalled)
	}
	if m.After != 0 {
		if err := l.passed(t.ctx, m.After); err != nil {
			return nil, err
		}
	}
	// From here on nothing is late: leases are gone once they are released.
	if err := t.ctx.Err(); err != nil {
		return nil, err
	}
	out := &wire.CodesReply{}
	for _, id := range m.Leases {
		out.Codes = append(out.Codes, t.row(t.releaseOne(id)))
	}
	if m.Signal == 0 {
		return out, nil
	}
	ctx, stop := context.WithTimeout(context.WithoutCancel(t.ctx), t.conn.server.config.HBMTimeout)
	defer stop()
	if err := l.signal(ctx, m.Signal); err != nil {
		// Streams wait for the number, and nobody will write it: the client lets
		// them go when it finds the connection ended.
		t.conn.server.log.Warn().Err(err).Str("tier", "hbm").Uint64("connection", t.conn.id).Msg("a number for a client's streams could not be written: its connection ends")
		t.conn.drop(errNoSignal)
		return out, nil
	}
	l.signalled = m.Signal
	return out, nil
}

var errNoSignal = errors.New("a number for the client's streams could not be written")

// passed waits for the client's number, and where that says no more than that an
// event was recorded, for the event.
func (l *attachedGPU) passed(ctx context.Context, v uint64) error {
	_, err := l.order.Wait(ctx, order.Client, v)
	if e := l.pair.events; e != nil && err == nil {
		e.Announced(v)
		err = e.Wait(ctx, v)
	}
	return err
}

// signal writes the daemon's number: nothing that it speaks of runs any more.
func (l *attachedGPU) signal(ctx context.Context, v uint64) error {
	if e := l.pair.events; e != nil {
		if err := e.Signal(v); err != nil {
			return err
		}
	}
	return l.order.Signal(ctx, order.Daemon, v)
}
