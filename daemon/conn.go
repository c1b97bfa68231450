package daemon

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/connector/wire/seqpacket"
)

// conn is one client. One goroutine at a time is its reader: it receives, answers
// short requests itself, and runs a long one itself or hands it to the queue
// (see job.go). The last reader takes everything of the connection apart.
//
//	accepted --hello--> attached --end of file, death, drop, stop--> ending --drained--> closed
//
// Invariant: the client sees end of file only after the last operation of the
// connection has let go of all memory, so that a client whose connection ended
// may use its own memory again.
type conn struct {
	// Fixed after accept.
	id     uint64
	server *server
	sock   *seqpacket.Conn
	peer   peer
	since  time.Time
	ctx    context.Context // ends with the connection; its cause says why
	cancel context.CancelCauseFunc

	lane lane // guarded by queue.mu

	attached atomic.Pointer[attachment] // set once, by hello
	spare    atomic.Pointer[desk]       // of a reader that was replaced
	requests atomic.Uint64
	flying   atomic.Int64 // requests in flight that were not answered yet
	ending   atomic.Bool

	work sync.WaitGroup // jobs that are in mu.jobs
	mu   struct {
		sync.Mutex
		jobs    map[uint64]*job // in flight, by request id
		cancels map[*cancellation]struct{}
	}
}

func newConn(s *server, id uint64, sock *seqpacket.Conn, p peer, now time.Time) *conn {
	c := &conn{id: id, server: s, sock: sock, peer: p, since: now}
	c.ctx, c.cancel = context.WithCancelCause(context.Background())
	c.mu.jobs = map[uint64]*job{}
	c.mu.cancels = map[*cancellation]struct{}{}
	return c
}

// errPeerLeft is the cause of contexts that a client's end has ended.
var errPeerLeft error = &refusal{code: wire.Canceled, text: "the connection ended"}

// peerGone is called by the watcher when the client sends no more or its process
// is dead. Others may still hold the socket and the memory: a client that only
// stopped sending, or children of a dead one. So end of file waits for running
// work as always; leases need not.
func (c *conn) peerGone() {
	c.drop(errPeerLeft)
	if a := c.attached.Load(); a != nil {
		a.session.Close()
	}
}

// drop ends the connection for a reason of ours. It only wakes the reader, which
// does the rest. Shutting down the reading side alone keeps end of file from the
// client until everything has drained.
func (c *conn) drop(cause error) {
	if c.ending.Swap(true) {
		return
	}
	c.cancel(cause)
	// Closed: the reader was quicker.
	_ = c.sock.CloseRead()
}

// desk is what a reader works with.
type desk struct {
	buf     []byte // one frame
	scratch scratch
}

// serve makes the calling goroutine the reader. It returns when another one has
// become it, or when the connection has been closed and all its memory given
// back.
func (c *conn) serve() {
	d := c.spare.Swap(nil)
	if d == nil {
		d = &desk{buf: make([]byte, wire.MaxFrame)}
	}
	if c.read(d) == replaced {
		c.spare.Store(d)
		return
	}
	c.drop(errPeerLeft)
	c.close()
}

// next says what becomes of a reader.
type next uint8

const (
	readOn   next = iota
	replaced      // somebody else reads now
	endOfConn
)

func (c *conn) read(d *desk) next {
	helloBy := c.since.Add(c.server.config.HelloTimeout)
	if c.attached.Load() == nil && c.sock.SetRecvTimeout(c.server.config.HelloTimeout) != nil {
		return endOfConn
	}
	for {
		n, fds, err := c.sock.Recv(d.buf)
		now := time.Now()
		if c.ending.Load() {
			seqpacket.CloseAll(fds)
			return endOfConn
		}
		outcome := readOn
		switch {
		case err == nil:
			outcome = c.handle(d.buf[:n], fds, now, &d.scratch)
		case errors.Is(err, seqpacket.ErrTimeout):
			// A signal may end a bounded wait early.
			if c.attached.Load() == nil && !now.Before(helloBy) {
				c.server.counts.dropped(dropHello)
				outcome = endOfConn
			}
		case errors.Is(err, seqpacket.ErrTruncated), errors.Is(err, seqpacket.ErrDescriptors):
			outcome = c.refuseFrame(d.buf[:n], err, &d.scratch)
		default:
			outcome = endOfConn
		}
		if outcome != readOn {
			return outcome
		}
	}
}

// refuseFrame answers a message that could not be received whole.
func (c *conn) refuseFrame(frame []byte, err error, s *scratch) next {
	h, _, _ := wire.ParseHeader(frame)
	c.replyError(&h, refuse(wire.Invalid, "%v", err), s)
	return afterRefusal(&h)
}

// afterRefusal: a peer whose header could not be read speaks something else.
func afterRefusal(h *wire.Header) next {
	if *h == (wire.Header{}) {
		return endOfConn
	}
	return readOn
}

// send sends one reply. A client that does not read its replies is dropped: the
// bound on waiting for it is SendTimeout, set on the socket.
func (c *conn) send(frame []byte, fds []int) {
	err := c.sock.Send(frame, fds)
	switch {
	case err == nil:
	case errors.Is(err, seqpacket.ErrTimeout):
		if !c.ending.Load() {
			c.server.counts.dropped(dropSlow)
		}
		c.drop(errPeerLeft)
	default:
		c.drop(errPeerLeft)
	}
}

func (c *conn) replyError(h *wire.Header, err error, s *scratch) {
	code, known := codeOf(err)
	if !known {
		c.logUnknown(h.Op, err)
	}
	reply := *h
	reply.Version, reply.Code = wire.Version, code
	c.server.counts.answered(h.Op, code)
	s.out = wire.AppendError(s.out[:0], &reply, err.Error())
	c.send(s.out, nil)
}

// logUnknown is for errors of no kind: a mistake of ours.
func (c *conn) logUnknown(op wire.Op, err error) {
	c.server.log.Error().Err(err).Str("op", op.String()).Uint64("connection", c.id).Msg("an error of no known kind, answered unavailable")
}

func (c *conn) reply(h *wire.Header, m wire.Message, fds []int, s *scratch) {
	reply := *h
	reply.Kind, reply.Code = wire.Reply, wire.OK
	frame, err := wire.AppendFrame(s.out[:0], &reply, m)
	if err != nil {
		// Handlers bound what they answer.
		panic("daemon: " + err.Error())
	}
	s.out = frame
	c.server.counts.answered(h.Op, wire.OK)
	c.send(frame, fds)
}

// close gives everything back. Leases and reservations go at once; memory that
// running work may touch is unmapped when that work has ended.
func (c *conn) close() {
	c.server.unwatch(c)
	a := c.attached.Load()
	if a != nil {
		a.session.Close()
	}
	c.dropCancels()
	c.dropQueued()
	c.work.Wait()
	if a != nil {
		a.close(c.server)
	}
	if c.peer.pidfd >= 0 {
		unix.Close(c.peer.pidfd)
	}
	c.server.forget(c)
	hangUp(c.sock)
}

// hangUp closes a socket so that what was sent last can still be read.
func hangUp(sock *seqpacket.Conn) {
	// No more can arrive after this; what had arrived must not be left unread.
	_ = sock.CloseRead()
	sock.Drain()
	sock.Close()
}
