package server

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/connector/wire/seqpacket"
	"github.com/spliced-kv/spliced/daemon/socket"
)

// poller receives from many connections and answers their requests, on one goroutine at a
// time: while requests keep arriving, none of our threads sleeps or is woken for them.
// Before anything that would block the others, such as a job or a client that does not
// read, another goroutine takes over polling. While few connections make requests, each has
// a dedicated goroutine that receives from it directly: a request is answered one system
// call sooner, and the kernel keeps client and goroutine on one processor.
//
// Rejected: such a goroutine for every connection. Once more of them are blocked in system
// calls than there are processors, each request waits until Go's scheduler has taken a
// processor from another blocked call and woken a thread. Go's own poller costs two more
// system calls per request and wakes threads that find nothing to do.
//
// Invariant: one goroutine polls, from Accept to Stop.
type poller struct {
	server *Server
	run    func() // poll
	epoll  *socket.Epoll

	active  atomic.Int32 // connections that sent something recently, at the last count
	counted atomic.Int64 // unix nanoseconds of the last count

	mu struct {
		sync.Mutex
		conns map[uint64]*conn // polled or not, by id
	}

	pace seqpacket.Pace // of the polling goroutine
}

// pollersOf returns the number of pollers for a machine; the remaining processors are for
// clients and jobs. On two cores one is faster than two, which wake each other up.
func pollersOf(processors int) int { return max(1, processors/2) }

const (
	// fewActive is the number of active connections per poller up to which each is received from
	// directly: with pollersOf, as many in total as there are processors. Measured on two cores:
	// 2 clients make twice as many requests as when polled, 4 clients a third fewer.
	fewActive = 2
	// activeFor is the time for which a connection counts as active after a message.
	// countEvery is the shortest interval between counts. Both are guesses.
	activeFor  = 50 * time.Millisecond
	countEvery = 2 * time.Millisecond
)

func newPoller(s *Server) (*poller, error) {
	epoll, err := socket.NewEpoll()
	if err != nil {
		return nil, err
	}
	p := &poller{server: s, epoll: epoll}
	p.run = p.poll
	p.mu.conns = map[uint64]*conn{}
	return p, nil
}

// join adds a connection to p; leave removes it. It is polled while it is armed.
func (p *poller) join(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.conns[c.id] = c
}

func (p *poller) leave(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.mu.conns, c.id)
}

// arm starts polling a connection and reports whether that succeeded.
func (p *poller) arm(c *conn) bool {
	err := p.epoll.Add(c.sock.Fd(), c.id, unix.EPOLLIN)
	if err != nil {
		p.server.log.Error().Err(err).Msg("cannot serve a client")
	}
	return err == nil
}

// disarm undoes arm. Only the polling goroutine may call it.
func (p *poller) disarm(c *conn) { p.epoll.Remove(c.sock.Fd()) }

func (p *poller) find(id uint64) *conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.conns[id]
}

func (p *poller) length() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.mu.conns)
}

// crowded reports whether more than a few connections make requests.
func (p *poller) crowded() bool { return p.active.Load() > fewActive }

// heard records a message of a connection, and periodically counts the active connections.
func (p *poller) heard(c *conn, now time.Time) {
	at := now.UnixNano()
	c.heardAt.Store(at)
	if last := p.counted.Load(); at-last < int64(countEvery) || !p.counted.CompareAndSwap(last, at) {
		return
	}
	active := int32(0)
	p.mu.Lock()
	for _, other := range p.mu.conns {
		if at-other.heardAt.Load() < int64(activeFor) {
			active++
		}
	}
	p.mu.Unlock()
	p.active.Store(active)
}

// replace starts another polling goroutine. s belongs to the one that polled before.
func (p *poller) replace(s *scratch) {
	s.poller = nil
	p.server.polling.Go(p.run)
}

// poll serves connections, one message of each at a time, until it is replaced
// or stop is called.
func (p *poller) poll() {
	w := p.server.workspaces.Get().(*workspace)
	w.scratch.poller = p
	defer func() {
		w.scratch.poller = nil
		p.server.workspaces.Put(w)
	}()
	var events [32]unix.EpollEvent
	for {
		p.pace.Pace()
		n, err := p.epoll.Wait(events[:], -1)
		if err != nil {
			panic("daemon: " + err.Error())
		}
		// The goroutine that replaces this one sees the remaining events again.
		for i := range n {
			id := socket.EventID(&events[i])
			if id == 0 || !p.serve(id, w) {
				return
			}
		}
	}
}

// serve handles one message of a connection, or starts receiving from it directly. It
// returns false if p has been replaced.
func (p *poller) serve(id uint64, w *workspace) bool {
	c := p.find(id)
	if c == nil {
		return true
	}
	if !p.crowded() {
		p.disarm(c)
		p.replace(&w.scratch)
		p.serveDirectly(c, w)
		return false
	}
	n, fds, err := c.sock.TryRecv(w.buf)
	outcome := c.received(w, n, fds, err)
	switch {
	case outcome == replaced:
		return false
	case w.scratch.poller == nil: // the reply had to wait for its client
		c.goOn(outcome)
		return false
	case outcome == endOfConn:
		p.disarm(c)
		go c.end()
	}
	return true
}

// serveDirectly serves a connection that makes requests while few others do.
func (p *poller) serveDirectly(c *conn, w *workspace) {
	var pace seqpacket.Pace
	outcome, idle := readOn, false
	for outcome == readOn && !idle && !p.crowded() {
		pace.Pace()
		n, fds, err := c.sock.Recv(w.buf)
		outcome, idle = c.received(w, n, fds, err), errors.Is(err, seqpacket.ErrTimeout)
	}
	if outcome != replaced {
		c.goOn(outcome)
	}
}

// stop makes poll return.
func (p *poller) stop() error { return p.epoll.Stop() }

func (p *poller) close() { p.epoll.Close() }
