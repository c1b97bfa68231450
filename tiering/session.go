package tiering

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/stats"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/transfer"
)

// Session holds the leases, reservations and buffers of one client. A connection has one
// session. No other session can use what belongs to it.
type Session struct {
	store *Store
	name  string

	// Guarded by the store's lock.
	closed bool
	ended  chan struct{} // closed when closed is set
	leases map[tier.LeaseID]*lease
	fills  map[tier.ReservationID]*objects.Filler

	plans *plan.Session // has its own lock
}

// NewSession begins a session. The name is recorded as the publisher of objects that the session
// fills.
func (s *Store) NewSession(name string) *Session {
	session := &Session{store: s, name: name, ended: make(chan struct{}), leases: map[tier.LeaseID]*lease{}, fills: map[tier.ReservationID]*objects.Filler{}}
	session.plans = s.plans.NewSession(leased{session})
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		session.closeLocked()
	}
	s.sessions[session] = struct{}{}
	return session
}

// Name returns the name given to NewSession.
func (c *Session) Name() string { return c.name }

// Holdings counts the session's leases, expired ones included, and reservations.
func (c *Session) Holdings() (leases, reservations int) {
	c.store.mu.Lock()
	defer c.store.mu.Unlock()
	return len(c.leases), len(c.fills)
}

// openLocked returns an error if the store or the session is closed. Every call of a
// session checks it first.
func (c *Session) openLocked() error {
	if c.store.closed {
		return tier.ErrUnavailable
	}
	if c.closed {
		return fmt.Errorf("session %q is closed: %w", c.name, tier.ErrGone)
	}
	return nil
}

// closeLocked makes new calls fail and wakes the calls that wait for promotions.
func (c *Session) closeLocked() {
	if !c.closed {
		c.closed = true
		close(c.ended)
	}
}

// holdRows is the maximum number of rows that one critical section handles. It bounds how long a
// lookup waits for the lock, however much a client, an operator or an eviction asks for at once.
const holdRows = 16

// Close aborts the session's reservations, for all ranks that joined them, and releases
// its leases. It does not wait for operations. A running operation keeps the memory that
// it touches until it ends; if it then has a result to record, it fails with ErrGone. A
// second Close does nothing.
func (c *Session) Close() {
	s := c.store
	s.mu.Lock()
	delete(s.sessions, c)
	s.mu.Unlock()
	c.end(s.dropLeaseLocked)
}

// end makes new calls fail, aborts fills and calls endLocked for each lease. It goes in
// order of ids, so that a run can be replayed.
func (c *Session) end(endLocked func(*lease)) {
	s := c.store
	s.mu.Lock()
	c.closeLocked() // so that no fill or lease is added
	fills := slices.Collect(maps.Keys(c.fills))
	leases := slices.Collect(maps.Keys(c.leases))
	why := c.openLocked()
	s.mu.Unlock()
	slices.Sort(fills)
	slices.Sort(leases)
	s.mu.Each(len(fills), holdRows, func(i int) {
		if f := c.fills[fills[i]]; f != nil { // nil if it ended together with another rank's share
			s.fills.killLocked(f.Object, stats.CauseDeath)
		}
	})
	s.mu.Each(len(leases), holdRows, func(i int) {
		if l := c.leases[leases[i]]; l != nil {
			endLocked(l)
		}
	})
	c.plans.Close(why)
}

// Sweep ends expired leases and reservations, and does the other periodic work of a store.
// Run calls it. It is exported for callers that use another clock.
func (s *Store) Sweep() {
	now := s.cfg.Now()
	s.sweepLower()
	s.settleBudgets()
	s.sweepPins()
	s.remote.sweepBeyond(now)
	s.sweepHBM()
	for _, ps := range *s.profiles.Load() {
		ps.Costs.Forget(now)
	}
	leases, reservations := 0, 0
	_ = s.inTurns(func() error {
		l, r := s.sweepLocked(now)
		leases, reservations = leases+l, reservations+r
		if l+r == holdRows {
			return objects.ErrAgain
		}
		return nil
	})
	if leases+reservations > 0 {
		s.cfg.Log.Warn().Int("leases", leases).Int("reservations", reservations).Msg("expired")
	}
}

func (s *Store) sweepLocked(now time.Time) (leases, reservations int) {
	for range holdRows { // expired pins are not counted; the next sweep ends the rest
		due := s.objects.Deadlines.First()
		if due == nil || now.Before(due.At) {
			return leases, reservations
		}
		switch of := due.Of.(type) {
		case *lease:
			s.expireLocked(of)
			leases++
			continue
		case *pin:
			s.setPinLocked(of.object, time.Time{}, "")
			continue
		case *objects.Object:
			s.overdueLocked(of)
		case *promotion:
			s.promotions.engine.Cancel(of.Flight, transfer.ErrStopped)
		case *search:
			s.remote.engine.Cancel(of.Flight, errFindTime)
		}
		reservations++
	}
	return leases, reservations
}

// overdueLocked ends the fill of an object, or its status as read ahead, at its deadline.
func (s *Store) overdueLocked(o *objects.Object) {
	if o.Ahead {
		s.objects.EndReadAhead(o, &s.counters.ReadAheadWasted)
	} else {
		s.fills.killLocked(o, stats.CauseExpiry)
	}
}

// Abandon ends a session whose client can no longer send releases but may still be
// reading. It aborts the reservations, quarantines the leases as if they had expired, and
// makes new calls fail. Close frees the memory later.
func (c *Session) Abandon() {
	c.end(func(l *lease) {
		if !l.expired {
			c.store.expireLocked(l)
		}
	})
}
