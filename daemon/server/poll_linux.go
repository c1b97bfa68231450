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

// poller receives from many connections and has their requests answered, on one
// goroutine at a time: while requests keep coming, no thread of ours sleeps or is
// woken for any of them. What would keep the others waiting, a job or a client
// that does not read, has another goroutine take over the polling first. While few
// connections make requests each of them is received from directly, by a goroutine
// of its own: a request is answered a system call sooner, and the kernel keeps client
// and goroutine on one processor.
//
// Set aside: such a goroutine for every connection. Once more of them are blocked in
// system calls than there are processors, each request waits until Go's
// scheduler has taken a processor away from another blocked call, and has woken a
// thread for it. Go's own poller costs two more system calls for each request and
// wakes threads that find nothing to do.
//
// Invariant: one goroutine polls, from Accept to Stop.
type poller struct {
	server *Server
	run    func() // poll
	epoll  *socket.Epoll

	active  atomic.Int32 // connections that sent something lately, as counted last
	counted atomic.Int64 // unix nanoseconds of that

	mu struct {
		sync.Mutex
		conns map[uint64]*conn // polled or not, by id
	}

	pace seqpacket.Pace // of the goroutine that polls
}

// pollersOf is how many pollers a machine gets: what remains is for clients and
// for jobs. On two cores one is faster than two, which wake each other up.
func pollersOf(processors int) int { return max(1, processors/2) }

const (
	// fewActive is how many active connections of a poller are received from
	// directly: with pollersOf, as many in all as there are processors. Measured on
	// two cores: 2 clients make twice as many requests as when they are polled, 4 clients
	// a third fewer.
	fewActive = 2
	// activeFor is how long a connection counts as active after a message, and
	// countEvery how often they are counted at most. Both are guesses.
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

// join makes a connection one of p's; leave ends that. It is polled while it is
// armed.
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

// arm begins to poll a connection; false when that cannot be.
func (p *poller) arm(c *conn) bool {
	err := p.epoll.Add(c.sock.Fd(), c.id, unix.EPOLLIN)
	if err != nil {
		p.server.log.Error().Err(err).Msg("client cannot be served")
	}
	return err == nil
}

// disarm ends arm. It is for the goroutine that polls.
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

// heard notes a message of a connection, and now and then counts who is active.
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

// replace has another goroutine poll. s is of the one that has polled.
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
		// What is left of events when p is replaced is found again by the other goroutine.
		for i := range n {
			id := socket.EventID(&events[i])
			if id == 0 || !p.serve(id, w) {
				return
			}
		}
	}
}

// serve takes one message of a connection, or begins to receive from it directly;
// false when p has been replaced.
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
	case w.scratch.poller == nil: // the answer had to wait for its client
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
