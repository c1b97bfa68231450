package tiering

import (
	"fmt"
	"time"
)

// Session is what one client holds: leases and reservations. A client's
// connection has one session; nothing of it can be used through another.
type Session struct {
	store *Store
	name  string

	// Guarded by the store's lock.
	closed bool
	leases map[LeaseID]*lease
	fills  map[ReservationID]*filler
}

// NewSession begins a session; name is recorded as the publisher of what it
// fills.
func (s *Store) NewSession(name string) *Session {
	session := &Session{store: s, name: name, leases: map[LeaseID]*lease{}, fills: map[ReservationID]*filler{}}
	s.mu.Lock()
	defer s.mu.Unlock()
	session.closed = s.closed
	s.sessions[session] = struct{}{}
	return session
}

// Holdings counts what the session holds, expired leases included.
func (c *Session) Holdings() (leases, reservations int) {
	c.store.mu.Lock()
	defer c.store.mu.Unlock()
	return len(c.leases), len(c.fills)
}

// openLocked is the first check of every call.
func (c *Session) openLocked() error {
	if c.store.closed {
		return ErrUnavailable
	}
	if c.closed {
		return fmt.Errorf("session %q is closed: %w", c.name, ErrGone)
	}
	return nil
}

// closeRows bounds one critical section of Close.
const closeRows = 1024

// Close aborts the session's reservations, for all ranks that joined them, and
// gives back its leases. It never waits for operations: one that is still
// running keeps the memory it touches until it ends, and then fails with
// ErrGone where it had something to settle. Closing again does nothing.
func (c *Session) Close() {
	s := c.store
	s.mu.Lock()
	defer s.mu.Unlock()
	c.closed = true
	done := 0
	breathe := func() {
		if done++; done%closeRows == 0 {
			s.mu.Unlock()
			s.mu.Lock()
		}
	}
	// A kill may remove other reservations of this session (of other ranks of
	// the same object): deleting while ranging is defined to allow that.
	for _, f := range c.fills {
		s.killLocked(f.object, causeDeath)
		breathe()
	}
	for _, l := range c.leases {
		s.dropLeaseLocked(c, l)
		breathe()
	}
	delete(s.sessions, c)
}

// Sweep expires leases and reservations that are past their time. Run calls it;
// it is exported for owners with a clock of their own.
func (s *Store) Sweep() {
	now := s.cfg.Now()
	s.mu.Lock()
	open := make([]*Session, 0, len(s.sessions))
	for session := range s.sessions {
		open = append(open, session)
	}
	s.mu.Unlock()
	expired, killed := 0, 0
	for _, session := range open {
		e, k := session.sweep(now)
		expired, killed = expired+e, killed+k
	}
	if expired+killed > 0 {
		s.cfg.Log.Warn().Int("leases", expired).Int("reservations", killed).Msg("expired")
	}
}

func (c *Session) sweep(now time.Time) (expired, killed int) {
	s := c.store
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range c.leases {
		if s.expireLocked(l, now) {
			expired++
		}
	}
	for _, f := range c.fills {
		if !now.Before(f.object.fill.until) {
			s.killLocked(f.object, causeExpiry)
			killed++
		}
	}
	return expired, killed
}
