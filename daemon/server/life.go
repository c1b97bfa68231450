package server

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// state is where a connection is in its life (see the package doc).
type state uint32

const (
	serving   state = iota // requests are begun and answered
	draining               // nothing is begun or answered, work ends, leases stay
	leaving                // the same, leases are given back
	lingering              // end of file was sent, leases stay
	gone                   // end of file was sent, leases are given back
	closed                 // taken apart by its last reader
	states
)

func (s state) String() string {
	return [states]string{"serving", "draining", "leaving", "lingering", "gone", "closed"}[s]
}

// ending reports whether nothing is begun or answered any more.
func (s state) ending() bool { return s != serving }

// told reports whether the client was sent end of file.
func (s state) told() bool { return s >= lingering }

// released reports whether leases are given back.
func (s state) released() bool { return s == leaving || s >= gone }

// event is what happens to a connection.
type event uint8

const (
	onDrop    event = iota // it ends while its client lives
	onLeave                // the client closed its end or died, or the daemon stops
	onDrained              // no work is left, nor a lease
	onHeld                 // no work is left, but leases
	onClose                // the last reader takes it apart
	events
)

func (e event) String() string {
	return [events]string{"drop", "leave", "drained", "held", "close"}[e]
}

// never is the state after an event that cannot happen.
const never = states

// moves is the whole of a connection's life: the state after an event.
var moves = [states][events]state{
	//          drop       leave    drained  held       close
	serving:   {draining, leaving, never, never, never},
	draining:  {draining, leaving, gone, lingering, never},
	leaving:   {leaving, leaving, gone, gone, never},
	lingering: {lingering, gone, never, never, never},
	gone:      {gone, gone, never, never, closed},
	closed:    {closed, closed, never, never, never},
}

// life is the state of a connection. Its zero value is serving.
type life struct {
	state atomic.Uint32 // changed by move, read by everybody

	mu     sync.Mutex
	linger *time.Timer // ends lingering
}

func (l *life) now() state { return state(l.state.Load()) }

// move is the one place where a connection changes its state. What follows from
// that is conn.happened's, but for ended, which is called once, before anybody sees that
// it no longer serves. limit is how long lingering may last, and expired is called when
// it is over.
func (l *life) move(e event, ended func(), limit time.Duration, expired func()) (from, to state) {
	l.mu.Lock()
	defer l.mu.Unlock()
	from = l.now()
	to = moves[from][e]
	if from == serving && to != serving && to != never {
		ended()
	}
	switch {
	case to == never:
		panic(fmt.Sprintf("server: %v of a connection that is %v", e, from))
	case to == lingering && from != to:
		l.linger = time.AfterFunc(limit, expired)
	case from == lingering && from != to:
		l.linger.Stop()
	}
	l.state.Store(uint32(to))
	return from, to
}

// happened moves a connection on and does what follows, without a lock: what
// follows from one event may come after what follows from the next.
func (c *conn) happened(e event, cause error) {
	ended := func() { c.cancel(cause) }
	from, to := c.life.move(e, ended, c.server.config.MaxLeaseTTL, func() { c.happened(onLeave, errPeerLeft) })
	if from == to {
		return
	}
	a := c.attached.Load()
	if from == serving {
		if a != nil {
			a.session.Abandon()
			c.server.work.Leave(c.id)
		}
		c.server.conns.Go(c.drain)
	}
	if to.told() && !from.told() {
		// Not shut down for reading too: what the client does can still be seen.
		// Closed: there is nobody to tell.
		_ = c.sock.CloseWrite()
	}
	if to == leaving || to == gone {
		if a != nil {
			a.session.Close()
		}
		if to == gone {
			close(c.gone)
		}
		// Wakes the reader. Closed: it was quicker.
		_ = c.sock.CloseRead()
	}
	if invariants {
		c.checkLife(to)
	}
}

// checkLife panics when a connection that was in state s a moment ago does not keep
// to it. What is checked stays true in the states that follow.
func (c *conn) checkLife(s state) {
	broken := ""
	c.mu.Lock()
	jobs, cancels := len(c.mu.jobs), len(c.mu.cancels)
	c.mu.Unlock()
	leases := 0
	if a := c.attached.Load(); a != nil {
		leases, _ = a.session.Holdings()
	}
	switch {
	case s.ending() && c.ctx.Err() == nil:
		broken = "its context has not ended"
	case s.told() && jobs+cancels > 0:
		broken = fmt.Sprintf("%d jobs and %d cancellations are left", jobs, cancels)
	case s.released() && leases > 0:
		broken = fmt.Sprintf("%d leases are left", leases)
	}
	if broken != "" {
		panic(fmt.Sprintf("server: connection %d is %v, but %s", c.id, s, broken))
	}
}
