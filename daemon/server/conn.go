package server

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/connector/wire/seqpacket"
	"github.com/spliced-kv/spliced/daemon/codes"
	"github.com/spliced-kv/spliced/daemon/queue"
	"github.com/spliced-kv/spliced/daemon/socket"
)

// conn is the connection of one client. One goroutine at a time is its reader (see poll_linux.go).
// The reader receives, answers short requests, and runs a long request itself or queues it (see
// task.go). The last reader closes the connection. life.go has the states.
//
// Invariant: the client sees end of file only after the last operation of the connection has
// released all memory, so that a client whose connection ended may reuse its own memory.
//
// Invariant: the arena pages of a lease are not reused before the client has closed its end or
// died. Once the daemon cannot observe that any more, it keeps the pages for endGrace after the
// client stopped sending, or for MaxLeaseTTL after a drop.
type conn struct {
	// Fixed after accept.
	id     uint64
	server *Server
	sock   *seqpacket.Conn
	peer   socket.Peer
	poller *poller
	since  time.Time
	ctx    context.Context // ends with the connection; context.Cause has the reason
	cancel context.CancelCauseFunc

	lane queue.Lane[*task] // joined by hello; guarded by the queue
	// deviceLanes are the lanes in the queues of the devices, for connections that attached one.
	deviceLanes []queue.Lane[*task]

	attached atomic.Pointer[attachment] // set once, by hello; nil before
	heardAt  atomic.Int64               // unix nanoseconds of the last message
	requests atomic.Uint64
	flying   atomic.Int64 // unanswered requests in flight

	life life
	gone chan struct{} // closed when the connection enters state gone

	// answering is locked by the reader while it answers a frame; drain waits for it.
	answering sync.Mutex
	work      sync.WaitGroup // requests in flight; grows only under answering

	mu struct {
		sync.Mutex
		inFlight map[uint64]*task // by request id
		cancels  map[*cancellation]struct{}
		late     int // refusals of late cancellations that are being sent
	}

	sending sync.Mutex // locked while a send may block
}

func newConn(s *Server, id uint64, sock *seqpacket.Conn, p socket.Peer, now time.Time) *conn {
	c := &conn{id: id, server: s, sock: sock, peer: p, since: now, gone: make(chan struct{})}
	c.ctx, c.cancel = context.WithCancelCause(context.Background())
	c.mu.inFlight = map[uint64]*task{}
	c.mu.cancels = map[*cancellation]struct{}{}
	return c
}

// errStopping is the cause of contexts that end because the daemon stops.
var errStopping = codes.Refuse(wire.Unavailable, "the daemon is stopping")

// errPeerLeft is the cause of contexts that end because the client disconnected.
var errPeerLeft = codes.Refuse(wire.Canceled, "the connection ended")

// endGrace is the time that leases stay after a client has stopped sending, since the client may
// still be reading. The value is a guess at the longest read. If the client closes its end
// completely, its leases are released at once.
const endGrace = time.Second

// PeerGone is called by the watcher when the process that connected is dead. It releases the leases
// at once. The socket is still closed only after running work has ended, since other processes may
// hold the socket and the engine memory.
func (c *conn) PeerGone() { c.leave(errPeerLeft) }

// PeerEnded is called when the client stops sending. The parameter hungUp states that the client
// has stopped receiving too. After the daemon itself has shut the socket down, hungUp is always
// true and says nothing about the client.
func (c *conn) PeerEnded(hungUp bool) {
	switch s := c.life.now(); {
	case hungUp && !s.told():
		c.leave(errPeerLeft)
	case s.released(): // caused by the daemon's own shutdown of the socket
	default:
		c.drop(errPeerLeft)
		time.AfterFunc(endGrace, func() { c.leave(errPeerLeft) })
	}
}

// drop ends the connection although its client may be alive.
func (c *conn) drop(cause error) { c.happened(onDrop, cause) }

// leave ends the connection and releases its leases.
func (c *conn) leave(cause error) { c.happened(onLeave, cause) }

// ending reports whether the connection has stopped starting and answering requests.
func (c *conn) ending() bool { return c.life.now().ending() }

// drain waits for all work of an ending connection and releases the client's memory. It runs once,
// after the connection has stopped serving.
func (c *conn) drain() {
	c.answering.Lock() // from here on the reader starts nothing
	c.dropCancels()
	c.answering.Unlock()
	c.tellDetached()
	c.work.Wait()
	if a := c.attached.Load(); a != nil {
		a.close(c.server)
	}
	if c.holdsLeases() {
		c.happened(onHeld, nil)
	} else {
		c.happened(onDrained, nil)
	}
}

// holdsLeases reports whether leases, slots or device memory must stay until the client releases
// them.
func (c *conn) holdsLeases() bool {
	a := c.attached.Load()
	if a == nil {
		return false
	}
	if l := a.gpu.Load(); l != nil && l.outlives() {
		return true
	}
	leases, _ := a.session.Holdings()
	results, _ := a.slots.Held()
	return leases+results > 0
}

// workspace holds the buffers of a goroutine that receives frames.
type workspace struct {
	buf     []byte // one frame
	scratch scratch
}

// serve receives the hello and hands the connection to a poller.
func (c *conn) serve() {
	w := c.server.workspaces.Get().(*workspace)
	outcome := readOn
	if c.sock.SetRecvTimeout(c.server.config.HelloTimeout) != nil {
		outcome = endOfConn
	}
	for outcome == readOn && c.attached.Load() == nil {
		n, fds, err := c.sock.Recv(w.buf)
		outcome = c.received(w, n, fds, err)
	}
	c.server.workspaces.Put(w)
	c.goOn(outcome)
}

// goOn hands the receiving back to the poller, or ends the connection.
func (c *conn) goOn(outcome next) {
	if outcome == endOfConn || !c.poller.arm(c) {
		c.end()
	}
}

// end closes the connection. No other goroutine receives from it any more.
func (c *conn) end() {
	defer c.server.conns.Done()
	c.poller.leave(c)
	c.drop(errPeerLeft)
	c.linger()
	c.close()
}

// next says how receiving continues after a frame.
type next uint8

const (
	readOn   next = iota
	replaced      // another goroutine receives now
	endOfConn
)

// received handles one result of Recv.
func (c *conn) received(w *workspace, n int, fds []int, err error) next {
	now := time.Now()
	if c.ending() {
		seqpacket.CloseAll(fds)
		return endOfConn
	}
	switch {
	case err == nil:
		return c.receive(w, n, fds, now)
	case errors.Is(err, seqpacket.ErrTimeout):
		// A signal may end a wait before its timeout, so the clock decides.
		if c.attached.Load() == nil && !now.Before(c.since.Add(c.server.config.HelloTimeout)) {
			c.server.counts.dropped(dropHello)
			return endOfConn
		}
		return readOn
	case errors.Is(err, seqpacket.ErrTruncated), errors.Is(err, seqpacket.ErrDescriptors):
		return c.refuseFrame(w.buf[:n], codes.Refuse(wire.Invalid, "%v", err), &w.scratch)
	case errors.Is(err, seqpacket.ErrNoRoom):
		return c.refuseFrame(w.buf[:n], codes.Refuse(wire.Full, "%v", err), &w.scratch)
	default:
		c.PeerEnded(c.hungUp())
		return endOfConn
	}
}

// receive answers one frame. If its request is a job that the reader may run, it runs the job.
func (c *conn) receive(w *workspace, n int, fds []int, now time.Time) next {
	c.answering.Lock()
	if c.ending() {
		c.answering.Unlock()
		seqpacket.CloseAll(fds)
		return endOfConn
	}
	c.poller.heard(c, now)
	outcome, mine := c.handle(w.buf[:n], fds, now, &w.scratch)
	c.answering.Unlock()
	if mine != nil {
		return c.runHere(mine, &w.scratch, now)
	}
	return outcome
}

// hungUp reports whether the other end has closed both directions. Only the reader may call it,
// since the reader closes the descriptor.
func (c *conn) hungUp() bool {
	fds := []unix.PollFd{{Fd: int32(c.sock.Fd())}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n == 1 && fds[0].Revents&unix.POLLHUP != 0
}

// scrapEvery is the shortest interval at which messages of an ending connection are discarded.
const scrapEvery = 10 * time.Millisecond

// linger waits until the client of an ending connection releases its leases. Messages that still
// arrive are discarded slowly, so that a client that keeps sending must wait.
func (c *conn) linger() {
	var scrap [1]byte
	for {
		_, fds, err := c.sock.Recv(scrap[:])
		seqpacket.CloseAll(fds)
		switch {
		case err == nil, errors.Is(err, seqpacket.ErrTimeout), errors.Is(err, seqpacket.ErrTruncated),
			errors.Is(err, seqpacket.ErrDescriptors), errors.Is(err, seqpacket.ErrNoRoom):
			select {
			case <-c.gone:
			case <-time.After(scrapEvery):
			}
			continue
		}
		if !c.life.now().released() { // otherwise it is usually the daemon's own shutdown
			c.PeerEnded(c.hungUp())
		}
		<-c.gone
		return
	}
}

// refuseFrame answers a message that was not received completely.
func (c *conn) refuseFrame(frame []byte, err error, s *scratch) next {
	h, _, _ := wire.ParseHeader(frame)
	c.replyError(&h, err, s)
	return afterRefusal(&h)
}

// afterRefusal ends a connection if the header of its frame could not be read, since the peer then
// speaks another protocol.
func afterRefusal(h *wire.Header) next {
	if *h == (wire.Header{}) {
		return endOfConn
	}
	return readOn
}

// send sends one reply. A client that does not read its replies is dropped after SendTimeout, which
// is set on the socket. Before a polling goroutine or a worker blocks in a send, another goroutine
// takes its place.
func (c *conn) send(frame []byte, fds []int, s *scratch) {
	err := c.sock.TrySend(frame, fds) // costs less than a send that may block
	if errors.Is(err, seqpacket.ErrTimeout) {
		switch {
		case s.poller != nil:
			s.poller.disarm(c)
			s.poller.replace(s)
		case s.worker != nil:
			s.worker.Spawn()
			s.worker = nil
		}
		// A send that blocks occupies a thread, of which a process has at most 10,000. One reply waits
		// for the client, and others wait for that one. If it is not read, all of them are dropped.
		c.sending.Lock()
		defer c.sending.Unlock()
		if c.ctx.Err() != nil {
			return
		}
		err = c.sock.Send(frame, fds)
	}
	switch {
	case err == nil:
	case errors.Is(err, seqpacket.ErrTimeout):
		if !c.ending() {
			c.server.counts.dropped(dropSlow)
		}
		c.drop(errPeerLeft)
	default:
		c.drop(errPeerLeft)
	}
}

func (c *conn) replyError(h *wire.Header, err error, s *scratch) {
	code, known := codes.Of(err)
	if !known {
		c.logUnknown(h.Op, err)
	}
	reply := *h
	reply.Version, reply.Code = wire.Version, code
	c.answered(h.Op, code)
	s.out = wire.AppendError(s.out[:0], &reply, codes.Text(code, err))
	c.send(s.out, nil, s)
}

// logUnknown logs an error that has no code, which is a bug of the daemon.
func (c *conn) logUnknown(op wire.Op, err error) {
	c.server.log.Error().Err(err).Str("op", op.String()).Uint64("connection", c.id).Msg("unexpected error, answered with unavailable")
}

func (c *conn) reply(h *wire.Header, m wire.Message, fds []int, s *scratch) {
	reply := *h
	reply.Kind, reply.Code = wire.Reply, wire.OK
	frame, err := wire.AppendFrame(s.out[:0], &reply, m)
	if err != nil {
		// Handlers bound the size of replies.
		panic("daemon: " + err.Error())
	}
	s.out = frame
	c.answered(h.Op, wire.OK)
	c.send(frame, fds, s)
}

// close releases the resources of a connection that is gone.
func (c *conn) close() {
	c.happened(onClose, nil)
	c.server.watcher.Remove(c.id, c.sock.Fd(), c.peer.Pidfd)
	if a := c.attached.Load(); a == nil {
		c.admitted() // the connection ended without a hello
	} else {
		a.closeGPU(c.server)
		// Clients of a stopping daemon may continue to read their memory.
		a.closeShared(c.server, !c.server.stopping.Load())
		c.server.queue.Part(&c.lane)
		for i, q := range c.server.deviceQueues {
			q.Part(&c.deviceLanes[i])
		}
	}
	if c.peer.Pidfd >= 0 {
		unix.Close(c.peer.Pidfd)
	}
	c.server.forget(c)
	hangUp(c.sock)
}

// hangUp closes a socket so that the peer can still read the last message.
func hangUp(sock *seqpacket.Conn) {
	// After CloseRead no more messages arrive. The messages that have arrived must be read before the
	// close; otherwise the peer may get an error instead of the last message.
	_ = sock.CloseRead()
	sock.Drain()
	sock.Close()
}
