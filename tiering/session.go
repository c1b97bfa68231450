package tiering

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"time"

	"github.com/spliced-kv/spliced/tiering/internal/lockhold"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/transfer"
)

// Session is what one client holds: leases, reservations and buffers. A client's
// connection has one session; nothing of it can be used through another.
type Session struct {
	store *Store
	name  string

	// Guarded by the store's lock.
	closed bool
	ended  chan struct{} // closed with closed
	leases map[tier.LeaseID]*lease
	fills  map[tier.ReservationID]*filler

	plans *plan.Session // with a lock of its own
}

// NewSession begins a session; name is recorded as the publisher of what it
// fills.
func (s *Store) NewSession(name string) *Session {
	session := &Session{store: s, name: name, ended: make(chan struct{}), leases: map[tier.LeaseID]*lease{}, fills: map[tier.ReservationID]*filler{}}
	session.plans = s.plans.NewSession(leased{session})
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		session.shutLocked()
	}
	s.sessions[session] = struct{}{}
	return session
}

// Holdings counts what the session may read or write, expired leases included.
func (c *Session) Holdings() (leases, reservations int) {
	c.store.mu.Lock()
	defer c.store.mu.Unlock()
	return len(c.leases), len(c.fills)
}

// openLocked is the first check of every call.
func (c *Session) openLocked() error {
	if c.store.closed {
		return tier.ErrUnavailable
	}
	if c.closed {
		return fmt.Errorf("session %q is closed: %w", c.name, tier.ErrGone)
	}
	return nil
}

// shutLocked lets nothing new begin, and wakes what waits for promotions.
func (c *Session) shutLocked() {
	if !c.closed {
		c.closed = true
		close(c.ended)
	}
}

// holdRows bounds the rows of one critical section: whoever looks something up waits
// for no more, whatever a client, an operator or an eviction asks for at once.
const holdRows = 16

// Close aborts the session's reservations, for all ranks that joined them, and
// gives back its leases. It never waits for operations: one that is still
// running keeps the memory it touches until it ends, and then fails with
// ErrGone where it had something to settle. Closing again does nothing.
func (c *Session) Close() {
	s := c.store
	s.mu.Lock()
	delete(s.sessions, c)
	s.mu.Unlock()
	c.end(s.dropLeaseLocked)
}

// end lets nothing new begin, aborts what is being filled and ends each lease,
// in order of ids, so that a run can be replayed.
func (c *Session) end(endLocked func(*lease)) {
	s := c.store
	s.mu.Lock()
	c.shutLocked() // so that nothing comes to them
	fills := slices.Collect(maps.Keys(c.fills))
	leases := slices.Collect(maps.Keys(c.leases))
	why := c.openLocked()
	s.mu.Unlock()
	slices.Sort(fills)
	slices.Sort(leases)
	inPieces(&s.mu, len(fills), func(i int) {
		if f := c.fills[fills[i]]; f != nil { // not killed with another rank's
			s.killLocked(f.object, causeDeath)
		}
	})
	inPieces(&s.mu, len(leases), func(i int) {
		if l := c.leases[leases[i]]; l != nil {
			endLocked(l)
		}
	})
	c.plans.Close(why)
}

// inPieces calls f for 0 to n-1 under a lock that it lets go of every few rows.
func inPieces(mu *lockhold.Mutex, n int, f func(i int)) {
	for first := 0; first < n; first += holdRows {
		if first > 0 {
			runtime.Gosched() // who waits for the lock has it before us
		}
		mu.Lock()
		for i := first; i < min(n, first+holdRows); i++ {
			f(i)
		}
		mu.Unlock()
	}
}

// inTurns calls f under the lock, once more after others had it while f answers
// errAgain.
func (s *Store) inTurns(f func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.turnsLocked(f)
}

func (s *Store) turnsLocked(f func() error) error {
	for {
		err := f()
		if err != errAgain { //nolint:errorlint // never wrapped
			return err
		}
		s.mu.Unlock()
		s.launch() // what leaves may have to be written first
		runtime.Gosched()
		s.mu.Lock()
	}
}

// Sweep ends leases and reservations that are past their time. Run calls it; it
// is exported for owners with a clock of their own.
func (s *Store) Sweep() {
	now := s.cfg.Now()
	s.sweepLower()
	s.sweepHBM()
	leases, reservations := 0, 0
	for more := true; more; {
		s.mu.Lock()
		l, r := s.sweepLocked(now)
		s.mu.Unlock()
		runtime.Gosched()
		leases, reservations = leases+l, reservations+r
		more = l+r == holdRows
	}
	if leases+reservations > 0 {
		s.cfg.Log.Warn().Int("leases", leases).Int("reservations", reservations).Msg("expired")
	}
}

func (s *Store) sweepLocked(now time.Time) (leases, reservations int) {
	for leases+reservations < holdRows {
		due := s.deadlines.First()
		if due == nil || now.Before(due.At) {
			return leases, reservations
		}
		due.Of.overdueLocked(s)
		if _, ok := due.Of.(*lease); ok {
			leases++
		} else {
			reservations++
		}
	}
	return leases, reservations
}

// timed is what ends when its deadline has passed: a lease, the filling of an
// object, or a promotion. Its end takes the deadline out of the heap.
type timed interface{ overdueLocked(s *Store) }

func (l *lease) overdueLocked(s *Store) { s.expireLocked(l) }
func (o *object) overdueLocked(s *Store) {
	if o.ahead {
		s.endReadAheadLocked(o, &s.counters.ReadAheadWasted)
	} else {
		s.killLocked(o, causeExpiry)
	}
}
func (p *promotion) overdueLocked(s *Store) { s.up.Cancel(p.Flight, transfer.ErrStopped) }
