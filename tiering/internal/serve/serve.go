package serve

import (
	"fmt"
	"time"

	"github.com/spliced-kv/spliced/tiering/hbm"
	"github.com/spliced-kv/spliced/tiering/internal/catalog"
	"github.com/spliced-kv/spliced/tiering/internal/deadline"
	"github.com/spliced-kv/spliced/tiering/internal/fill"
	"github.com/spliced-kv/spliced/tiering/internal/move"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Lookup is the part of a store that answers which objects the store has. It has no state.
type Lookup struct {
	cat        *catalog.Catalog
	hbm        hbm.List
	remote     *move.Remote
	promotions *move.Promotions
}

// Sessions is the part of a store that serves its clients: it has their sessions.
type Sessions struct {
	cat        *catalog.Catalog
	hbm        hbm.List
	plans      *plan.Runner
	remote     *move.Remote
	writes     *move.Writes
	offloads   *move.Offloads
	evictor    *move.Evictor
	promotions *move.Promotions
	fills      *fill.Fills
	lookup     *Lookup

	open map[*Session]struct{} // guarded by the store's lock
}

// Session holds the leases, reservations and buffers of one client. A connection has one
// session. No other session can use what belongs to it.
type Session struct {
	*fill.Reservations
	sessions *Sessions
	client   *catalog.Client
	leases   map[tier.LeaseID]*lease // guarded by the store's lock
	plans    *plan.Session           // has its own lock
}

// lease is one client's right to read one rank's share of an object. A lease on a
// checkpoint also covers its ancestors. Guarded by the store's lock.
type lease struct {
	id      tier.LeaseID
	object  *objects.Object
	rank    int
	session *Session
	since   time.Time
	until   deadline.Deadline[any] // set until the lease expires or is released
}

// expired reports whether a lease that is not released has expired.
func (l *lease) expired() bool { return !l.until.Set() }

// New returns the parts that serve clients.
func New(c *catalog.Catalog, devices hbm.List, plans *plan.Runner, m *move.Mover, f *fill.Fills) (*Lookup, *Sessions) {
	l := &Lookup{cat: c, hbm: devices, remote: m.Remote, promotions: m.Promotions}
	return l, &Sessions{
		cat: c, hbm: devices, plans: plans, remote: m.Remote, writes: m.Writes, offloads: m.Offloads, evictor: m.Evictor,
		promotions: m.Promotions, fills: f, lookup: l, open: map[*Session]struct{}{},
	}
}

func (c *Session) openLocked() error { return c.sessions.cat.OpenLocked(c.client) }

// ErrNoDevice is the error of a query that names an unknown device.
func ErrNoDevice(id tier.DeviceID) error {
	return fmt.Errorf("the store has no device %d: %w", id, tier.ErrUnavailable)
}

// MatchRows bounds the keys of one critical section of Match; longer queries take several
// sections. A section looks up all its keys before it reads the objects. The processor
// then waits for many of their cache lines at once: with 10^5 segments, 32 keys take 1.9
// us instead of 3.4 (measured).
const MatchRows = 2 * catalog.HoldRows
