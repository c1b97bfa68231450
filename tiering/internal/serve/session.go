package serve

import (
	"maps"
	"slices"

	"github.com/spliced-kv/spliced/tiering/internal/catalog"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// NewSession begins a session. The name is recorded as the publisher of objects that the session
// fills.
func (ses *Sessions) NewSession(name string) *Session {
	c := &catalog.Client{Name: name, Ended: make(chan struct{})}
	session := &Session{sessions: ses, client: c, leases: map[tier.LeaseID]*lease{}}
	session.plans = ses.plans.NewSession(leased{session})
	session.Reservations = ses.fills.NewReservations(c, session.plans)
	ses.cat.Mu.Lock()
	defer ses.cat.Mu.Unlock()
	if ses.cat.Closed {
		c.CloseLocked()
	}
	ses.open[session] = struct{}{}
	return session
}

// CloseAll closes all sessions.
func (ses *Sessions) CloseAll() {
	ses.cat.Mu.Lock()
	open := slices.Collect(maps.Keys(ses.open))
	ses.cat.Mu.Unlock()
	for _, session := range open {
		session.Close()
	}
}

// Name returns the name given to NewSession.
func (c *Session) Name() string { return c.client.Name }

// Holdings counts the session's leases, expired ones included, and reservations.
func (c *Session) Holdings() (leases, reservations int) {
	c.sessions.cat.Mu.Lock()
	defer c.sessions.cat.Mu.Unlock()
	return len(c.leases), c.sessions.fills.CountLocked(c.Reservations)
}

// Close aborts the session's reservations, for all ranks that joined them, and releases
// its leases. It does not wait for operations. A running operation keeps the memory that
// it touches until it ends; if it then has a result to record, it fails with ErrGone. A
// second Close does nothing.
func (c *Session) Close() {
	s := c.sessions
	s.cat.Mu.Lock()
	delete(s.open, c)
	s.cat.Mu.Unlock()
	c.end(s.dropLeaseLocked)
}

// end makes new calls fail, aborts fills and calls endLocked for each lease. It goes in
// order of ids, so that a run can be replayed.
func (c *Session) end(endLocked func(*lease)) {
	s := c.sessions
	s.cat.Mu.Lock()
	c.client.CloseLocked() // so that no fill or lease is added
	leases := slices.Collect(maps.Keys(c.leases))
	why := c.openLocked()
	s.cat.Mu.Unlock()
	s.fills.EndAll(c.Reservations)
	slices.Sort(leases)
	s.cat.Mu.Each(len(leases), catalog.HoldRows, func(i int) {
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
		if !l.expired() {
			c.sessions.expireLocked(l)
		}
	})
}
