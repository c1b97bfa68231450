package server

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// state is the state of a connection (see the package doc).
type state uint32

const (
	serving   state = iota // requests are started and answered
	draining               // no request is started or answered, running work finishes, leases stay
	leaving                // like draining, but leases are released
	lingering              // all work has ended, end of file was sent, leases stay
	gone                   // all work has ended, end of file was sent, leases are released
	closed                 // freed by its last reader
	states
)

func (s state) String() string {
	return [states]string{"serving", "draining", "leaving", "lingering", "gone", "closed"}[s]
}

// ending reports whether requests are no longer started or answered.
func (s state) ending() bool { return s != serving }

// told reports whether the client was sent end of file.
func (s state) told() bool { return s >= lingering }

// released reports whether leases are released.
func (s state) released() bool { return s == leaving || s >= gone }

// event is an event in the life of a connection.
type event uint8

const (
	onDrop    event = iota // the connection ends although its client may be alive
	onLeave                // the client closed its end or died, or the daemon stops
	onDrained              // all work has ended, no lease is held
	onHeld                 // all work has ended, but leases are held
	onClose                // the last reader frees the connection
	events
)

func (e event) String() string {
	return [events]string{"drop", "leave", "drained", "held", "close"}[e]
}

// never is the state after an event that cannot happen.
const never = states

// moves is the state table: moves[s][e] is the state that follows s after event e.
var moves = [states][events]state{
	//          drop       leave    drained  held       close
	serving:   {draining, leaving, never, never, never},
	draining:  {draining, leaving, gone, lingering, never},
	leaving:   {leaving, leaving, gone, gone, never},
	lingering: {lingering, gone, never, never, never},
	gone:      {gone, gone, never, never, closed},
	closed:    {closed, closed, never, never, never},
}

// life holds the state of a connection. Its zero value is the state serving.
type life struct {
	state atomic.Uint32 // changed by move, read by all

	mu     sync.Mutex
	linger *time.Timer // timer that ends the state lingering
}

func (l *life) now() state { return state(l.state.Load()) }

// move applies an event. No other function changes the state of a connection. When the connection
// stops serving, move calls the function ended a single time, before the new state becomes visible.
// When the connection begins to linger, move starts a timer, which calls the function expired after
// the duration limit. All other effects of an event are in conn.happened.
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

// happened applies an event and its effects. It holds no lock, so the effects of an event may
// happen after those of the next event.
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
		// The reading side stays open, so that the daemon can still observe the client. An error means that
		// the socket is closed already.
		_ = c.sock.CloseWrite()
	}
	if to == leaving || to == gone {
		if a != nil {
			a.session.Close()
		}
		if to == gone {
			close(c.gone)
		}
		// This wakes the reader. An error means that the reader has already closed the socket.
		_ = c.sock.CloseRead()
	}
	if invariants {
		c.checkLife(to)
	}
}

// checkLife panics if the connection does not have the properties of state s. The connection may
// have left s meanwhile, but these properties hold in all later states too.
func (c *conn) checkLife(s state) {
	broken := ""
	c.mu.Lock()
	flying, cancels := len(c.mu.inFlight), len(c.mu.cancels)
	c.mu.Unlock()
	leases := 0
	if a := c.attached.Load(); a != nil {
		leases, _ = a.session.Holdings()
	}
	switch {
	case s.ending() && c.ctx.Err() == nil:
		broken = "its context has not ended"
	case s.told() && flying+cancels > 0:
		broken = fmt.Sprintf("%d requests and %d cancellations are left", flying, cancels)
	case s.released() && leases > 0:
		broken = fmt.Sprintf("%d leases are left", leases)
	}
	if broken != "" {
		panic(fmt.Sprintf("server: connection %d is %v, but %s", c.id, s, broken))
	}
}
