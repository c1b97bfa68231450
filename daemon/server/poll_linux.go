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

// poller receives from many connections and answers their requests, on one goroutine at a time.
// While requests keep arriving, no thread of the daemon sleeps or is woken for them. Before the
// goroutine would block, for example for a job or for a client that does not read, another
// goroutine takes over polling. While few connections make requests, each connection has a
// dedicated goroutine that receives from it directly. That saves one system call per request, and
// the kernel keeps client and goroutine on one processor.
//
// Rejected: a dedicated goroutine for every connection. If more of them are blocked in system calls
// than there are processors, each request waits until Go's scheduler has taken a processor from
// another blocked call and woken a thread. Also rejected: Go's own poller, which costs two more
// system calls per request and wakes threads that find nothing to do.
//
// Invariant: exactly one goroutine polls, from Accept to Stop.
type poller struct {
	server *Server
	run    func() // the method poll
	epoll  *socket.Epoll

	active  atomic.Int32 // connections that were active at the last count
	counted atomic.Int64 // time of the last count, in unix nanoseconds

	mu struct {
		sync.Mutex
		conns map[uint64]*conn // all connections of the poller by id, polled or not
	}

	pace seqpacket.Pace // used by the polling goroutine only
}

// pollersOf returns the number of pollers for a machine. Half of the processors are left for
// clients and jobs. On two cores one poller is faster than two, which wake each other up.
func pollersOf(processors int) int { return max(1, processors/2) }

const (
	// fewActive is the largest number of active connections per poller for which each connection
	// has a dedicated goroutine. With the number of pollers from pollersOf, there are then as many
	// dedicated goroutines as processors. Measured on two cores: with dedicated goroutines, two
	// clients make twice as many requests as without, and four clients a third fewer.
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

// join adds a connection to p, and leave removes it. The poller receives from the connection only
// after arm, until disarm.
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

// crowded reports whether more than fewActive connections make requests.
func (p *poller) crowded() bool { return p.active.Load() > fewActive }

// heard records that a connection has sent a message. It also counts the active connections, at
// most once per countEvery.
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

// replace starts another polling goroutine. s belongs to the goroutine that has polled so far.
func (p *poller) replace(s *scratch) {
	s.poller = nil
	p.server.polling.Go(p.run)
}

// poll serves the connections that have messages, one message of each at a time. It returns when
// another goroutine has replaced it, or after stop.
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
		// If another goroutine takes over, it receives the remaining events again.
		for i := range n {
			id := socket.EventID(&events[i])
			if id == 0 || !p.serve(id, w) {
				return
			}
		}
	}
}

// serve handles one message of a connection, or makes this goroutine its dedicated reader. It
// returns false if another goroutine polls now.
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
	case w.scratch.poller == nil: // the reply had to wait for the client
		c.goOn(outcome)
		return false
	case outcome == endOfConn:
		p.disarm(c)
		go c.end()
	}
	return true
}

// serveDirectly is the dedicated reader of a connection, until the connection is idle or too many
// connections are active.
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
