package tiering

import (
	"maps"
	"slices"

	"github.com/spliced-kv/spliced/tiering/hbm"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// sessions is the part of a store that serves its clients: it has their sessions.
type sessions struct {
	*catalog
	hbm        hbm.List
	plans      *plan.Runner
	remote     *remote
	writes     *writes
	offloads   *offloads
	evictor    *evictor
	promotions *promotions
	fills      *fills
	lookup     *lookup

	open map[*Session]struct{} // guarded by the store's lock
}

// Session holds the leases, reservations and buffers of one client. A connection has one
// session. No other session can use what belongs to it.
type Session struct {
	*Reservations
	sessions *sessions
	client   *client
	leases   map[tier.LeaseID]*lease // guarded by the store's lock
	plans    *plan.Session           // has its own lock
}

// NewSession begins a session. The name is recorded as the publisher of objects that the session
// fills.
func (ses *sessions) NewSession(name string) *Session {
	c := &client{name: name, ended: make(chan struct{})}
	session := &Session{Reservations: ses.fills.newReservations(c), sessions: ses, client: c, leases: map[tier.LeaseID]*lease{}}
	session.plans = ses.plans.NewSession(leased{session})
	session.Reservations.plans = session.plans
	ses.mu.Lock()
	defer ses.mu.Unlock()
	if ses.closed {
		c.closeLocked()
	}
	ses.open[session] = struct{}{}
	return session
}

// closeAll closes all sessions.
func (ses *sessions) closeAll() {
	ses.mu.Lock()
	open := slices.Collect(maps.Keys(ses.open))
	ses.mu.Unlock()
	for _, session := range open {
		session.Close()
	}
}

// Name returns the name given to NewSession.
func (c *Session) Name() string { return c.client.name }

// Holdings counts the session's leases, expired ones included, and reservations.
func (c *Session) Holdings() (leases, reservations int) {
	c.sessions.mu.Lock()
	defer c.sessions.mu.Unlock()
	return len(c.leases), len(c.held)
}

func (c *Session) openLocked() error { return c.sessions.openLocked(c.client) }

// Close aborts the session's reservations, for all ranks that joined them, and releases
// its leases. It does not wait for operations. A running operation keeps the memory that
// it touches until it ends; if it then has a result to record, it fails with ErrGone. A
// second Close does nothing.
func (c *Session) Close() {
	s := c.sessions
	s.mu.Lock()
	delete(s.open, c)
	s.mu.Unlock()
	c.end(s.dropLeaseLocked)
}

// end makes new calls fail, aborts fills and calls endLocked for each lease. It goes in
// order of ids, so that a run can be replayed.
func (c *Session) end(endLocked func(*lease)) {
	s := c.sessions
	s.mu.Lock()
	c.client.closeLocked() // so that no fill or lease is added
	leases := slices.Collect(maps.Keys(c.leases))
	why := c.openLocked()
	s.mu.Unlock()
	c.endAll()
	slices.Sort(leases)
	s.mu.Each(len(leases), holdRows, func(i int) {
		if l := c.leases[leases[i]]; l != nil {
			endLocked(l)
		}
	})
	c.plans.Close(why)
}

// Abandon ends a session whose client can no longer send releases but may still be
// reading. It aborts the reservations, quarantines the leases as if they had expired, and
// makes new calls fail. Close frees the memory later.
func (c *Session) Abandon() {
	c.end(func(l *lease) {
		if !l.expired {
			c.sessions.expireLocked(l)
		}
	})
}
