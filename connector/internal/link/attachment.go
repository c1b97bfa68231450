package link

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

// Attachment is one connection to one start of a daemon, with its mappings.
//
//	attached --fail--> dead --hangup--> gone
//	    \------hangup-------------------/
//
// A dead attachment accepts no more requests and has answered all callers. An attachment that is
// gone has read end of file, which the daemon sends when it can no longer access our memory.
// Mappings and socket stay open until the last lease is released, because the daemon keeps
// leased pages unchanged for as long as our end of the socket is open.
type Attachment struct {
	host   *Host
	conn   *seqpacket.Conn // open until the last lease is released
	peer   *peer
	Epoch  uint64
	Grants []wire.TenantGrant // in the order of host.tenants
	Server string

	Arena     *gpuipc.Mapping
	Slots     *gpuipc.Mapping
	region    *gpuipc.Mapping // mapping of the staging region
	hasDevice bool            // the daemon has a device
	HasKnown  bool            // the daemon finds segments by the tokens of a prompt
	HasRows   bool            // the daemon keeps checkpoints as rows
	HasPacked bool            // the daemon packs transitions and end-states
	// HasPrimers: the daemon supports segments that were captured after a primer.
	HasPrimers bool
	// HasLosses: the daemon keeps the losses of splices, and answers loss limits.
	HasLosses bool
	Device    *DeviceMemory // nil = none

	deviceErr error // why Device is nil although the host requested one
	Staging   *Staging

	flight
	owed  owed
	stall stall
	token chan struct{} // the right to read the socket; its holder owns rbuf
	rbuf  []byte
	pace  seqpacket.Pace // of the holder of token

	Dead  chan struct{}
	gone  chan struct{}
	left  atomic.Bool // our end was closed first: a hang-up proves nothing
	ended atomic.Bool // dead is closed

	refs    atomic.Int64 // users of the mappings, plus one until gone
	reaping atomic.Bool
}

// ErrNotAttached is the error of calls while no daemon is attached.
var ErrNotAttached = fmt.Errorf("no daemon attached: %w", ErrUnavailable)

const (
	readTick    = 20 * time.Millisecond // longest time until a reader notices that its context has ended
	maxInFlight = 256                   // limit on requests in flight, even if the daemon allows more
)

// Retain keeps the mappings until Release. It returns false if they are already unmapped.
func (a *Attachment) Retain() bool {
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

func (a *Attachment) Release() {
	if a.refs.Add(-1) > 0 {
		return
	}
	for _, m := range []*gpuipc.Mapping{a.Arena, a.Slots, a.region} {
		if err := m.Close(); err != nil {
			a.host.Log.Error().Err(err).Msg("unmapping a region of the daemon")
		}
	}
	if a.Device != nil {
		a.Device.close(a.host)
	}
	// The socket is closed last: while it is open, a daemon that dropped this client assumes
	// that the client may still read the pages.
	a.conn.Close()
	a.peer.close()
}

// Intact reports whether leased memory still holds the leased bytes. Once the connection has
// ended, a living daemon may reuse the pages; a dead daemon cannot. The caller must hold the
// mappings (see Retain).
func (a *Attachment) Intact() bool { return !a.ended.Load() || a.peer.gone() }

// CountCorrupt counts a chunk whose digest did not match.
func (a *Attachment) CountCorrupt() { a.host.Counters.Corrupt.Add(1) }

// NewEnded returns an attachment that has already ended and whose memory no process writes. Tests
// use it to decode replies without a daemon.
func NewEnded(arena, slots *gpuipc.Mapping) (*Attachment, error) {
	conn, peers, err := seqpacket.Pair()
	if err != nil {
		return nil, err
	}
	conn.Close()
	peers.Close()
	a := &Attachment{
		conn: conn,
		host: &Host{Counters: &Counters{}}, peer: &peer{fd: -1}, Arena: arena, Slots: slots,
		Dead: make(chan struct{}), Staging: newStaging(nil),
	}
	a.peer.dead.Store(true)
	a.flight.init(4)
	a.flight.mu.ended = ErrNotAttached
	a.ended.Store(true)
	a.refs.Store(1)
	return a, nil
}

// HasEnded reports whether the attachment refuses calls because it is dead.
func (a *Attachment) HasEnded() bool { return a.ended.Load() }

// Users returns the number of holders of the mappings, plus one until the daemon is gone.
func (a *Attachment) Users() int64 { return a.refs.Load() }

// BeReader takes the right to read the socket, until stop is called.
func (a *Attachment) BeReader() (stop func()) {
	<-a.token
	return func() { a.token <- struct{}{} }
}

// KnowsPeer reports whether the kernel identified the daemon's process.
func (a *Attachment) KnowsPeer() bool { return a.peer.fd >= 0 }

// Watch waits for the daemon to hang up.
func (a *Attachment) Watch() {
	if err := a.conn.AwaitHangup(); err != nil && !errors.Is(err, seqpacket.ErrClosed) {
		// The daemon may still live, but the connection cannot be used any more.
		a.Quit(err)
		a.left.Store(true)
	}
	a.hangup()
}

// fail makes the attachment dead: it answers all callers with an error and refuses further
// calls.
func (a *Attachment) fail(cause error) {
	err := fmt.Errorf("%v: %w", cause, ErrUnavailable)
	if !a.end(err) {
		return
	}
	a.ended.Store(true)
	close(a.Dead)
	a.Staging.close()
	a.host.Lost(a, cause)
}

// Quit ends the attachment from our side. The daemon sees the end of the connection, frees
// everything that belongs to it, including leases, and hangs up.
func (a *Attachment) Quit(cause error) {
	a.fail(cause)
	_ = a.conn.CloseWrite() // fails only when the connection is closed already
}

// BrokeProtocol quits because the daemon broke the protocol.
func (a *Attachment) BrokeProtocol(err error) {
	a.host.Counters.Malformed.Add(1)
	a.Quit(err)
}

// hangup resolves everything that waited for the daemon to be gone.
func (a *Attachment) hangup() {
	a.fail(errors.New("the daemon is gone"))
	var unknown error
	if a.left.Load() {
		unknown = fmt.Errorf("connection closed before the daemon ended: %w", ErrUnavailable)
	}
	for _, l := range a.drain() {
		for _, p := range []*PendingWrite{l.pending, l.stops} {
			if p != nil {
				p.resolve(unknown)
			}
		}
	}
	if a.Device != nil {
		a.Device.letGo(a.host)
	}
	close(a.gone)
	a.Release()
}

// Close closes our end. If the daemon may still write into engine memory, Close first waits
// until the daemon has hung up, or until the context limit has ended.
func (a *Attachment) Close(limit context.Context) {
	if a.writing() {
		select {
		case <-a.gone:
		case <-limit.Done():
		}
	}
	a.left.Store(true)
	a.conn.Close()
	<-a.gone
}

// Start sends the request m. On an error nothing is in flight.
func (a *Attachment) Start(ctx context.Context, c *Call, tenant uint32, m wire.Message, fds []int) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %v: %w", c.Op, context.Cause(ctx), giveUp(ctx))
	}
	if a.stall.refuses() {
		a.host.Counters.Stalled.Add(1)
		return errStalled
	}
	i, err := a.entry(ctx, c)
	if err != nil {
		return err
	}
	c.Late.tenant = tenant
	if c.id, err = a.add(i, c.Op, c, nil); err != nil {
		return fmt.Errorf("%s: %w", c.Op, err)
	}
	h := wire.Header{
		Op: c.Op, Request: c.id, Epoch: a.Epoch, Tenant: tenant,
		Deadline: microseconds(c.Deadline),
	}
	c.out, err = wire.AppendFrame(c.out[:0], &h, m)
	if err == nil {
		err = a.send(ctx, c.out, fds, c.Deadline)
	}
	if err == nil {
		a.host.Counters.Calls.Add(1)
		return nil
	}
	a.remove(c.id)
	a.answered(c) // fail may have answered c in the meantime
	switch {
	case errors.Is(err, wire.ErrTooLarge):
		return fmt.Errorf("%v: %w", err, ErrInvalid)
	case errors.Is(err, seqpacket.ErrTimeout):
		a.host.Counters.Late.Add(1)
		a.stall.missed()
		return fmt.Errorf("%s: the daemon is not accepting requests: %w", c.Op, ErrLate)
	case errors.Is(err, seqpacket.ErrClosed):
		a.fail(err)
	}
	return fmt.Errorf("%s: %v: %w", c.Op, err, ErrUnavailable)
}

// entry waits for a free entry in the table of requests.
func (a *Attachment) entry(ctx context.Context, c *Call) (uint16, error) {
	select {
	case i := <-a.free:
		return i, nil
	default:
	}
	timer := time.NewTimer(time.Until(c.Deadline))
	defer timer.Stop()
	select {
	case i := <-a.free:
		return i, nil
	case <-timer.C:
		return 0, fmt.Errorf("%s: %d requests in flight: %w", c.Op, cap(a.free), ErrBusy)
	case <-a.Dead:
		return 0, ErrNotAttached
	case <-ctx.Done():
		return 0, fmt.Errorf("%s: %v: %w", c.Op, context.Cause(ctx), giveUp(ctx))
	}
}

// microseconds returns the time until deadline for the header's Deadline field. It is at least
// 1, because 0 would mean the daemon's default.
func microseconds(deadline time.Time) uint32 {
	return uint32(max(1, min(time.Until(deadline).Microseconds(), 1<<32-1)))
}

func (a *Attachment) send(ctx context.Context, frame []byte, fds []int, deadline time.Time) error {
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

// finish waits for the reply of a started call. One waiting caller at a time holds the token
// (the channel Attachment.token) and reads the socket for all callers.
func (a *Attachment) finish(ctx context.Context, c *Call) error {
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

// follow waits for the reply while another goroutine reads the socket. If it returns false and
// no error, the caller now holds the token and must read the socket itself.
func (a *Attachment) follow(ctx context.Context, c *Call) (answered bool, err error) {
	answered, err = a.await(ctx, c, time.Until(c.Deadline))
	if err != nil && a.conn.Readable() {
		// The socket has unread replies, perhaps ours, because the reader or this process was held up.
		// The reader needs at most about lastWait to handle them.
		if answered, again := a.await(context.Background(), c, lastWait); again == nil {
			return answered, nil
		}
	}
	return answered, err
}

// lastWait is the time that a call waits beyond its deadline for unread replies. It is an
// estimate of the time in which a reader handles them.
const lastWait = 5 * time.Millisecond

func (a *Attachment) await(ctx context.Context, c *Call, d time.Duration) (answered bool, err error) {
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

// giveUp returns the error for an ended context: ErrLate after its deadline, else ErrCanceled.
func giveUp(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return ErrLate
	}
	return ErrCanceled
}

// lead reads the socket until c is answered. At the deadline of c, or when ctx ends, it still
// reads all queued replies: if this process was paused, the reply may have arrived in time.
func (a *Attachment) lead(ctx context.Context, c *Call) error {
	for !a.answered(c) {
		left := time.Until(c.Deadline)
		if left > 0 && ctx.Err() == nil {
			a.read(min(left, readTick), c)
			continue
		}
		if a.read(0, c) {
			continue
		}
		if a.answered(c) {
			return nil
		}
		if left > 0 {
			return giveUp(ctx)
		}
		return ErrLate
	}
	return nil
}

// read receives at most one frame and hands it to the call that it answers. It waits at most d
// (0 = does not wait) and reports whether a frame arrived. The caller holds the token. self is
// the caller's own call, which needs no wake-up; nil = none.
func (a *Attachment) read(d time.Duration, self *Call) bool {
	n, fds, err := 0, []int(nil), error(nil)
	if d == 0 {
		n, fds, err = a.conn.TryRecv(a.rbuf)
	} else if err = a.conn.SetRecvTimeout(d); err == nil {
		a.pace.Pace()
		n, fds, err = a.conn.Recv(a.rbuf)
	}
	if len(fds) > 0 {
		seqpacket.CloseAll(fds)
		err = fmt.Errorf("%d unexpected descriptors", len(fds))
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
		a.BrokeProtocol(fmt.Errorf("reply of %d bytes: %w", n, err))
	}
	return false
}

// dispatch hands a reply to the call that it answers.
func (a *Attachment) dispatch(frame []byte, self *Call) {
	h, body, err := wire.ParseHeader(frame)
	switch {
	case err != nil:
	case h.Kind != wire.Reply:
		err = fmt.Errorf("a frame of kind %d", h.Kind)
	case h.Epoch != a.Epoch:
		err = fmt.Errorf("reply of epoch %#x, want %#x", h.Epoch, a.Epoch)
	case h.Request == 0:
		err = fmt.Errorf("the daemon could not read a request: %s", wire.ErrorText(body))
	}
	if err != nil {
		a.BrokeProtocol(err)
		return
	}
	l, known, err := a.take(h, frame, self)
	switch {
	case err != nil:
		a.BrokeProtocol(err)
	case !known:
		a.host.Counters.Unknown.Add(1)
	case l != nil:
		a.lateReply(l, h, body)
	}
	if h.Code == wire.Stale {
		a.Quit(errors.New("the daemon has another boot epoch"))
	}
}
