package tiering

import (
	"fmt"
	"time"

	"github.com/spliced-kv/spliced/tiering/internal/deadline"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// lease is one client's right to read one rank's share of an object. A lease on
// a checkpoint covers the chain it extends. Guarded by the store's lock.
type lease struct {
	id      tier.LeaseID
	object  *object
	rank    int
	session *Session
	until   deadline.Deadline[timed]
	expired bool
}

// Acquire leases segments, one row appended to dst per key. A segment that is
// not held, or held for another tenant or profile, is a miss. One that lies in
// the lower tier begins to be promoted and is a miss as well. The error is for the
// query as a whole; nothing is leased then.
func (c *Session) Acquire(q *AcquireQuery, dst []Acquired) ([]Acquired, error) {
	return c.acquire(q, dst, nil)
}

// acquire answers what can be answered now, and joins the promotions of the rest
// if the caller is going to wait for them.
func (c *Session) acquire(q *AcquireQuery, dst []Acquired, waits *[]awaited) ([]Acquired, error) {
	s := c.store
	p, t, err := s.scope(q.Profile, q.Tenant, q.Rank)
	if err != nil {
		return dst, err
	}
	base := len(dst)
	if q.All {
		var refused bool
		if dst, refused = c.refuseTogether(q, p, t, dst); refused {
			return dst, nil
		}
	}
	now := s.cfg.Now()
	for first := 0; first < len(q.Keys); first += matchRows {
		keys := q.Keys[first:min(first+matchRows, len(q.Keys))]
		s.mu.Lock()
		err := c.openLocked()
		for i := range keys {
			if err != nil {
				dst = append(dst, Acquired{Err: err})
				continue
			}
			row, promotion := c.acquireLocked(&keys[i], q, p, t, now)
			if promotion != nil && waits != nil {
				joinPromotionLocked(promotion, len(dst), waits)
			} else if !row.Hit && row.Err == nil && !(row.Promoting && q.Again) {
				s.counters.AcquireMisses++
			}
			dst = append(dst, row)
		}
		s.mu.Unlock()
	}
	if q.All && (waits == nil || len(*waits) == 0) {
		c.settleTogether(dst[base:])
	}
	return dst, nil
}

func (c *Session) acquireLocked(key *[32]byte, q *AcquireQuery, p *profileState, t *tenant, now time.Time) (Acquired, *promotion) {
	s := c.store
	o := s.segmentLocked(key, p, t)
	switch {
	case o == nil:
		if _, ok := s.segmentBelowLocked(key, p, t); ok {
			promotion := s.promoteLocked(wanted{tier.Name{Key: *key}, p, t, true})
			return Acquired{Reason: tier.ReasonPending, Promoting: promotion != nil}, promotion
		}
		why, _ := s.ghosts.Why(key, p.id, t.ID)
		return Acquired{Reason: why}, nil
	case o.fill != nil && o.fill.promotion != nil:
		s.demandLocked(o.fill.promotion)
		return Acquired{Reason: tier.ReasonPending, Promoting: true}, o.fill.promotion
	case o.fill != nil:
		return Acquired{Reason: tier.ReasonPending}, nil
	}
	return c.leaseRowLocked(o, q, now), nil
}

// leaseRowLocked leases a published segment.
func (c *Session) leaseRowLocked(o *object, q *AcquireQuery, now time.Time) Acquired {
	s := c.store
	l, err := c.leaseLocked(o, q.Rank, q.TTL, now)
	if err != nil {
		return Acquired{Err: err}
	}
	s.counters.Acquired++
	s.counters.AcquiredTokens += uint64(o.tokens())
	sh := &o.shares[q.Rank]
	row := Acquired{
		Hit: true, Place: s.placeOf(o), Lease: l.id, Bytes: o.rankBytes,
		Begin: o.begin, Tokens: o.end - o.begin, Extents: sh.extents,
	}
	if q.Digests {
		row.Digests = sh.digests
	}
	return row
}

// Load leases the checkpoint of a prefix hash, an exact one before a spliced
// one, and answers the chain of nodes it is made of. What is in memory comes
// before what lies in the lower tier; that begins to be promoted, and is a miss.
func (c *Session) Load(q *LoadQuery) (Loaded, error) {
	return c.load(q, nil)
}

func (c *Session) load(q *LoadQuery, waits *[]awaited) (Loaded, error) {
	s := c.store
	p, t, err := s.scope(q.Profile, q.Tenant, q.Rank)
	if err != nil {
		return Loaded{}, err
	}
	if q.Accept == 0 || q.Accept&^(tier.Exact|tier.Spliced) != 0 {
		return Loaded{}, fmt.Errorf("load: accepts kinds %#x: %w", q.Accept, tier.ErrInvalid)
	}
	now := s.cfg.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := c.openLocked(); err != nil {
		return Loaded{}, err
	}
	o, why := s.bestLocked((*[32]byte)(&q.Hash), q.Accept, p, t)
	if o != nil {
		return c.loadLocked(o, q, now)
	}
	if e, ok := s.bestBelowLocked((*[32]byte)(&q.Hash), q.Accept, p, t); ok {
		promotion := s.promoteLocked(wanted{e.Name, p, t, true})
		if promotion != nil && waits != nil {
			joinPromotionLocked(promotion, 0, waits)
		} else if promotion == nil || !q.Again {
			s.counters.LoadMisses++
		}
		return Loaded{Reason: tier.ReasonPending, Promoting: promotion != nil}, nil
	}
	if why == tier.ReasonNone {
		why, _ = s.ghosts.Why((*[32]byte)(&q.Hash), p.id, t.ID)
	}
	s.counters.LoadMisses++
	return Loaded{Reason: why}, nil
}

// loadLocked leases a published checkpoint.
func (c *Session) loadLocked(o *object, q *LoadQuery, now time.Time) (Loaded, error) {
	s := c.store
	l, err := c.leaseLocked(o, q.Rank, q.TTL, now)
	if err != nil {
		return Loaded{}, err
	}
	s.counters.Loaded++
	s.counters.LoadedTokens += uint64(o.end)
	return Loaded{Hit: true, Place: s.placeOf(o), Lease: l.id, Kind: o.kind, Tokens: o.end, Nodes: chain(o, q.Rank, q.Digests)}, nil
}

// chain lists a checkpoint's nodes from the root. The rows of all of them, and the
// states of the last one, are fixed while that is held.
func chain(o *object, rank int, digests bool) []LoadedNode {
	nodes := make([]LoadedNode, o.depth)
	for i := o.depth - 1; i >= 0; i-- {
		nodes[i] = LoadedNode{Begin: o.begin, End: o.end, Extents: o.shares[rank].extents}
		if digests {
			nodes[i].Digests = o.shares[rank].digests
		}
		o = o.parent
	}
	return nodes
}

// leaseLocked makes a lease on a published object, which counts as a use.
func (c *Session) leaseLocked(o *object, rank int, ttl time.Duration, now time.Time) (*lease, error) {
	s := c.store
	if len(c.leases) >= s.cfg.MaxLeases {
		s.counters.RefusedBusy++
		return nil, fmt.Errorf("%s: session %q has %d leases: %w", o.name(), c.name, len(c.leases), tier.ErrBusy)
	}
	if ttl <= 0 {
		ttl = s.cfg.LeaseTTL
	}
	l := &lease{id: s.NewLeaseID(), object: o, rank: rank, session: c}
	l.until = deadline.Deadline[timed]{At: now.Add(min(ttl, s.cfg.MaxLeaseTTL)), Order: uint64(l.id), Of: l}
	s.deadlines.Add(&l.until)
	c.leases[l.id] = l
	o.leases++
	o.hits++
	s.counters.Leases++
	s.unaheadLocked(o, &s.counters.ReadAheadUsed)
	if o.stored != 0 {
		s.touchLocked(o.label())
	}
	s.settleLocked(o)
	s.usedLocked(o, now)
	if o.resident != nil && o.inHBM() {
		s.usedCopyLocked(o, now)
	}
	return l, nil
}

// Release gives a lease back, expired or not, or a buffer; the holder must not read
// the memory any more. ErrGone when the session has neither.
func (c *Session) Release(id tier.LeaseID) error {
	s := c.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := c.buffers[id]; b != nil {
		c.releaseBufferLocked(b)
		return nil
	}
	l := c.leases[id]
	if l == nil {
		return fmt.Errorf("lease %d: %w", id, tier.ErrGone)
	}
	s.dropLeaseLocked(l)
	return nil
}

func (s *Store) dropLeaseLocked(l *lease) {
	delete(l.session.leases, l.id)
	if l.expired {
		l.object.expired--
		s.counters.Quarantined--
	} else {
		s.deadlines.Remove(&l.until)
		l.object.leases--
		s.counters.Leases--
	}
	s.settleLocked(l.object)
}

// expireLocked quarantines a lease past its time: it is no right to anything
// any more, but its holder may still be reading, so the memory stays.
func (s *Store) expireLocked(l *lease) {
	s.deadlines.Remove(&l.until)
	l.expired = true
	l.object.leases--
	l.object.expired++
	s.counters.LeasesExpired++
	s.counters.Leases--
	s.counters.Quarantined++
	s.settleLocked(l.object)
}

// useLeaseLocked finds a live lease of this session for an operation. It does
// not tell a lease of somebody else from none.
func (c *Session) useLeaseLocked(id tier.LeaseID, sc *planScope, now time.Time) (*lease, error) {
	l := c.leases[id]
	if l == nil {
		return nil, fmt.Errorf("lease %d: %w", id, tier.ErrGone)
	}
	if !l.expired && !now.Before(l.until.At) {
		c.store.expireLocked(l) // the sweep has not come by yet
	}
	switch o := l.object; {
	case l.expired:
		return nil, fmt.Errorf("lease %d has expired: %w", id, tier.ErrGone)
	case o.tenant != sc.tenant:
		return nil, fmt.Errorf("lease %d: %w", id, tier.ErrGone)
	case o.profile != sc.profile:
		return nil, fmt.Errorf("lease %d is of profile %d, not %d: %w", id, o.profile.id, sc.profile.id, tier.ErrInvalid)
	case l.rank != sc.rank:
		return nil, fmt.Errorf("lease %d is of rank %d, not %d: %w", id, l.rank, sc.rank, tier.ErrInvalid)
	}
	return l, nil
}
