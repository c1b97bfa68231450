package connector

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/connector/wire/seqpacket"
	"github.com/spliced-kv/spliced/gpuipc"
)

// attachment is one connection to one start of a daemon, with its mappings.
//
//	attached --fail--> dead --hangup--> gone
//	    \------hangup-------------------/
//
// Dead: no more requests, callers have been answered. Gone: end of file, which
// the daemon sends when nothing there can touch our memory any more. Mappings and
// socket outlive both until the last lease is released: the daemon keeps the
// pages for as long as we go on being able to send.
type attachment struct {
	client *Client
	conn   *seqpacket.Conn // open until the last lease is released
	peer   *peer
	epoch  uint64
	grants []wire.TenantGrant // in the order of Options.Tenants
	server string

	arena  *gpuipc.Mapping
	slots  *gpuipc.Mapping
	region *gpuipc.Mapping // of staging
	lends  bool            // the daemon has a device
	device *deviceMemory   // nil = none

	deviceErr error // why not, though asked for
	staging   *staging

	flight
	owed  owed
	stall stall
	token chan struct{} // the right to read the socket; its holder owns rbuf
	rbuf  []byte

	dead  chan struct{}
	gone  chan struct{}
	left  atomic.Bool // our end was closed first: a hang-up proves nothing
	ended atomic.Bool // dead is closed

	refs    atomic.Int64 // users of the mappings, plus one until gone
	reaping atomic.Bool
}

// retain keeps the mappings; false when they are unmapped already.
func (a *attachment) retain() bool {
	for {
		n := a.refs.Load()
		if n == 0 {
			return false
		}
		if a.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (a *attachment) release() {
	if a.refs.Add(-1) > 0 {
		return
	}
	for _, m := range []*gpuipc.Mapping{a.arena, a.slots, a.region} {
		if err := m.Close(); err != nil {
			a.client.opt.Log.Error().Err(err).Msg("unmapping a region of the daemon")
		}
	}
	if a.device != nil {
		a.device.close(a.client)
	}
	// Only now: to a daemon that dropped us an open end says that somebody may
	// still look at the pages.
	a.conn.Close()
	a.peer.close()
}

// intact reports whether leased memory holds what was leased. Once the
// connection has ended the daemon may give its pages to others, unless it is
// dead: then nobody writes any more. The caller keeps the mappings.
func (a *attachment) intact() bool { return !a.ended.Load() || a.peer.gone() }

// watch waits for the daemon to hang up.
func (a *attachment) watch() {
	if err := a.conn.AwaitHangup(); err != nil && !errors.Is(err, seqpacket.ErrClosed) {
		// Not known to be gone, but of no use any more.
		a.quit(err)
		a.left.Store(true)
	}
	a.hangup()
}

// fail ends the attachment for callers.
func (a *attachment) fail(cause error) {
	err := fmt.Errorf("%v: %w", cause, ErrUnavailable)
	if !a.end(err) {
		return
	}
	a.ended.Store(true)
	close(a.dead)
	a.staging.close()
	a.client.lost(a, cause)
}

// quit ends the attachment from our side. The daemon is told, so that it gives
// everything of ours back, leases too, and hangs up.
func (a *attachment) quit(cause error) {
	a.fail(cause)
	_ = a.conn.CloseWrite() // fails only when the connection is closed already
}

// garbage quits because the daemon broke the protocol.
func (a *attachment) garbage(err error) {
	a.client.counters.malformed.Add(1)
	a.quit(err)
}

// hangup settles everything that waited for the daemon to be gone.
func (a *attachment) hangup() {
	a.fail(errors.New("the daemon is gone"))
	var unknown error
	if a.left.Load() {
		unknown = fmt.Errorf("connection closed before the daemon let go: %w", ErrUnavailable)
	}
	for _, l := range a.drain() {
		for _, p := range []*PendingWrite{l.pending, l.stops} {
			if p != nil {
				p.settle(unknown)
			}
		}
	}
	if a.device != nil {
		a.device.letGo(a.client)
	}
	close(a.gone)
	a.release()
}

// start sends the request m. On an error nothing is in flight.
func (a *attachment) start(ctx context.Context, c *call, tenant uint32, m wire.Message, fds []int) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %v: %w", c.op, context.Cause(ctx), giveUp(ctx))
	}
	if a.stall.refuses() {
		a.client.counters.stalled.Add(1)
		return errStalled
	}
	i, err := a.entry(ctx, c)
	if err != nil {
		return err
	}
	c.late.tenant = tenant
	if c.id, err = a.add(i, c.op, c, nil); err != nil {
		return fmt.Errorf("%s: %w", c.op, err)
	}
	h := wire.Header{
		Op: c.op, Request: c.id, Epoch: a.epoch, Tenant: tenant,
		Deadline: microseconds(c.deadline),
	}
	c.out, err = wire.AppendFrame(c.out[:0], &h, m)
	if err == nil {
		err = a.send(ctx, c.out, fds, c.deadline)
	}
	if err == nil {
		a.client.counters.calls.Add(1)
		return nil
	}
	a.remove(c.id)
	a.settled(c) // fail may have answered it meanwhile
	switch {
	case errors.Is(err, wire.ErrTooLarge):
		return fmt.Errorf("%v: %w", err, ErrInvalid)
	case errors.Is(err, seqpacket.ErrTimeout):
		a.client.counters.late.Add(1)
		a.stall.missed()
		return fmt.Errorf("%s: the daemon takes no requests: %w", c.op, ErrLate)
	case errors.Is(err, seqpacket.ErrClosed):
		a.fail(err)
	}
	return fmt.Errorf("%s: %v: %w", c.op, err, ErrUnavailable)
}

// entry waits for a place in the table.
func (a *attachment) entry(ctx context.Context, c *call) (uint16, error) {
	select {
	case i := <-a.free:
		return i, nil
	default:
	}
	a.client.counters.waits.Add(1)
	timer := time.NewTimer(time.Until(c.deadline))
	defer timer.Stop()
	select {
	case i := <-a.free:
		return i, nil
	case <-timer.C:
		return 0, fmt.Errorf("%s: %d requests in flight: %w", c.op, cap(a.free), ErrBusy)
	case <-a.dead:
		return 0, errNotAttached
	case <-ctx.Done():
		return 0, fmt.Errorf("%s: %v: %w", c.op, context.Cause(ctx), giveUp(ctx))
	}
}

// microseconds is a deadline as the header has it: at least 1, since 0 would mean
// the daemon's default.
func microseconds(deadline time.Time) uint32 {
	return uint32(max(1, min(time.Until(deadline).Microseconds(), 1<<32-1)))
}

func (a *attachment) send(ctx context.Context, frame []byte, fds []int, deadline time.Time) error {
	for {
		err := a.conn.TrySend(frame, fds)
		if !errors.Is(err, seqpacket.ErrTimeout) {
			return err
		}
		left := time.Until(deadline)
		if left <= 0 || ctx.Err() != nil {
			return err
		}
		if err := a.conn.AwaitWritable(min(left, readTick)); err != nil && !errors.Is(err, seqpacket.ErrTimeout) {
			return err
		}
	}
}

// finish waits for the reply of a started call: one waiting caller at a time
// holds the token and reads for all.
func (a *attachment) finish(ctx context.Context, c *call) error {
	answered, err := false, error(nil)
	select {
	case <-a.token:
	default:
		answered, err = a.follow(ctx, c)
	}
	if !answered && err == nil {
		// Here we hold the token.
		err = a.lead(ctx, c)
		a.token <- struct{}{}
	}
	if err != nil {
		return a.abandon(c, err)
	}
	return c.err
}

// follow waits while somebody else reads. Neither answered nor an error means
// that the token is ours.
func (a *attachment) follow(ctx context.Context, c *call) (answered bool, err error) {
	answered, err = a.await(ctx, c, time.Until(c.deadline))
	if err != nil && a.conn.Readable() {
		// Our reply may lie there and the reader, or this process, have been
		// held up. It costs a reader no more than this to get to it.
		if answered, again := a.await(context.Background(), c, lastWait); again == nil {
			return answered, nil
		}
	}
	return answered, err
}

// lastWait is what a call waits beyond its deadline when replies lie unread; a
// guess at how long a reader takes for them.
const lastWait = 5 * time.Millisecond

func (a *attachment) await(ctx context.Context, c *call, d time.Duration) (answered bool, err error) {
	if c.timer == nil {
		c.timer = time.NewTimer(d)
	} else {
		c.timer.Reset(d)
	}
	defer c.timer.Stop()
	select {
	case <-c.done:
		return true, nil
	case <-a.token:
		return false, nil
	case <-c.timer.C:
		return false, ErrLate
	case <-ctx.Done():
		return false, giveUp(ctx)
	}
}

// giveUp is the kind of a context's end.
func giveUp(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return ErrLate
	}
	return ErrCanceled
}

// lead reads until c is answered. At the end of its time it still takes what has
// come already: after a pause of this process the reply may have been there all
// along.
func (a *attachment) lead(ctx context.Context, c *call) error {
	for !a.settled(c) {
		left := time.Until(c.deadline)
		if left > 0 && ctx.Err() == nil {
			a.read(min(left, readTick), c)
			continue
		}
		if a.read(0, c) {
			continue
		}
		if a.settled(c) {
			return nil
		}
		if left > 0 {
			return giveUp(ctx)
		}
		return ErrLate
	}
	return nil
}

// read receives at most one frame, for at most d (0 = without waiting), and
// hands it to its owner. It reports whether there was one. The caller holds the
// token.
func (a *attachment) read(d time.Duration, self *call) bool {
	n, fds, err := 0, []int(nil), error(nil)
	if d == 0 {
		n, fds, err = a.conn.TryRecv(a.rbuf)
	} else if err = a.conn.SetRecvTimeout(d); err == nil {
		n, fds, err = a.conn.Recv(a.rbuf)
	}
	if len(fds) > 0 {
		seqpacket.CloseAll(fds)
		err = fmt.Errorf("%d descriptors that nobody asked for", len(fds))
	}
	switch {
	case err == nil:
		a.stall.heard()
		a.dispatch(a.rbuf[:n], self)
		return true
	case errors.Is(err, seqpacket.ErrTimeout):
	case errors.Is(err, seqpacket.ErrClosed):
		a.fail(err)
	default:
		a.garbage(fmt.Errorf("reply of %d bytes: %w", n, err))
	}
	return false
}

// dispatch hands a reply to its owner.
func (a *attachment) dispatch(frame []byte, self *call) {
	h, body, err := wire.ParseHeader(frame)
	switch {
	case err != nil:
	case h.Kind != wire.Reply:
		err = fmt.Errorf("a frame of kind %d", h.Kind)
	case h.Epoch != a.epoch:
		err = fmt.Errorf("reply of epoch %#x, want %#x", h.Epoch, a.epoch)
	case h.Request == 0:
		err = fmt.Errorf("the daemon could not read a request: %s", wire.ErrorText(body))
	}
	if err != nil {
		a.garbage(err)
		return
	}
	l, known, err := a.take(h, frame, self)
	switch {
	case err != nil:
		a.garbage(err)
	case !known:
		a.client.counters.unknown.Add(1)
	case l != nil:
		a.settle(l, h, body)
	}
	if h.Code == wire.Stale {
		a.quit(errors.New("the daemon does not know our epoch"))
	}
}
