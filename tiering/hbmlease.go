package tiering

import (
	"context"
	"fmt"
	"time"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// hbmWait is a row whose copy is being promoted: into HBM, or first into memory. The
// caller counts among the promotion's waiters until settled.
type hbmWait struct {
	row   int
	above *hbmPromotion
	below *promotion
}

// AcquireResident is Acquire of copies in HBM for the query's rank: rows have
// PlaceHBM and extents of DeviceArena. What has no copy there begins to be promoted
// and is a miss that is Promoting; once the device is lost everything is a miss.
// ErrUnavailable: there is no HBM.
func (c *Session) AcquireResident(q *AcquireQuery, dst []Acquired) ([]Acquired, error) {
	return c.acquireResident(context.Background(), q, dst, false)
}

// AwaitAcquireResident is AcquireResident that waits for promotions until ctx ends,
// as AwaitAcquire.
func (c *Session) AwaitAcquireResident(ctx context.Context, q *AcquireQuery, dst []Acquired) ([]Acquired, error) {
	return c.acquireResident(ctx, q, dst, true)
}

func (c *Session) acquireResident(ctx context.Context, q *AcquireQuery, dst []Acquired, wait bool) ([]Acquired, error) {
	s := c.store
	p, t, err := s.scopeHBM(q.Profile, q.Tenant, q.Rank)
	if err != nil {
		return dst, fmt.Errorf("acquire in HBM: %w", err)
	}
	base, now := len(dst), s.cfg.Now()
	var waits []hbmWait
	inPieces(&s.mu, len(q.Keys), func(i int) {
		row, w := c.acquireAboveLocked(&q.Keys[i], q, p, t, now)
		if wait {
			waits = w.joinLocked(i, waits)
		}
		dst = append(dst, row)
	})
	rows := dst[base:]
	for len(waits) > 0 {
		again := waits
		waits = nil
		ended := c.awaitHBM(ctx, again)
		now = s.cfg.Now()
		inPieces(&s.mu, len(again), func(i int) {
			w := &again[i]
			row, next := c.settleWaitLocked(w, &q.Keys[w.row], q, p, t, now)
			if !ended {
				waits = next.joinLocked(w.row, waits)
			}
			rows[w.row] = row
		})
	}
	s.countMisses(rows, q.Again)
	if q.All {
		c.settleTogether(rows)
	}
	return dst, nil
}

// scopeHBM is scope for what needs HBM.
func (s *Store) scopeHBM(id tier.ProfileID, tenant tier.TenantID, rank int) (*profileState, *tenant, error) {
	p, t, err := s.scope(id, tenant, rank)
	if err == nil && s.hbm == nil {
		err = errNoHBM
	}
	return p, t, err
}

func (s *Store) countMisses(rows []Acquired, again bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range rows {
		if r := &rows[i]; !r.Hit && r.Err == nil && !(r.Promoting && again) {
			s.counters.HBM.AcquireMisses++
		}
	}
}

// joinLocked counts the caller among the waiters of a row's promotion, if it has one.
func (w hbmWait) joinLocked(row int, waits []hbmWait) []hbmWait {
	w.row = row
	switch {
	case w.above != nil:
		w.above.waiters++
	case w.below != nil:
		w.below.waiters++
	default:
		return waits
	}
	return append(waits, w)
}

// awaitHBM returns when the promotions have ended, or ctx, or the session; ended
// tells that nothing more is to be waited for.
func (c *Session) awaitHBM(ctx context.Context, waits []hbmWait) (ended bool) {
	for i := range waits {
		done := waits[i].done()
		select {
		case <-done:
		case <-ctx.Done():
			return true
		case <-c.ended:
			return true
		}
	}
	return false
}

func (w *hbmWait) done() <-chan struct{} {
	if w.above != nil {
		return w.above.done
	}
	return w.below.done
}

// acquireAboveLocked leases a segment's copy, or begins what brings it to HBM.
func (c *Session) acquireAboveLocked(key *[32]byte, q *AcquireQuery, p *profileState, t *tenant, now time.Time) (Acquired, hbmWait) {
	s := c.store
	if err := c.openLocked(); err != nil {
		return Acquired{Err: err}, hbmWait{}
	}
	name := tier.Name{Key: *key}
	k := copyKey{residentKey{name, p, t}, q.Rank}
	if copied := s.copyLocked(k.residentKey, q.Rank); copied != nil {
		row := c.leaseRowLocked(copied, q, now)
		if row.Hit {
			s.counters.HBM.Acquired++
			s.counters.HBM.AcquiredTokens += uint64(row.Tokens)
		}
		return row, hbmWait{}
	}
	o := s.segmentLocked(key, p, t)
	switch {
	case s.hbm.lost:
		return Acquired{Reason: tier.ReasonEvicted}, hbmWait{}
	case o == nil:
		if _, ok := s.segmentBelowLocked(key, p, t); !ok {
			why, _ := s.ghosts.Why(key, p.id, t.ID)
			return Acquired{Reason: why}, hbmWait{}
		}
	case o.fill != nil && o.fill.promotion == nil:
		return Acquired{Reason: tier.ReasonPending}, hbmWait{}
	}
	w := s.raiseLocked(k, o)
	return Acquired{Reason: tier.ReasonPending, Promoting: w.above != nil || w.below != nil}, w
}

// raiseLocked begins the promotion of an object into HBM, which may have to come into
// memory first; o is what memory has of it.
func (s *Store) raiseLocked(k copyKey, o *object) hbmWait {
	if o != nil && s.promotableLocked(o) {
		return hbmWait{above: s.promoteHBMLocked(k, true)}
	}
	below := s.promoteLocked(wanted{k.name, k.profile, k.tenant, true})
	if below != nil {
		below.further = append(below.further, k.rank)
	}
	return hbmWait{below: below}
}

// furtherLocked promotes what has come into memory on its way to HBM.
func (s *Store) furtherLocked(p *promotion, o *object) {
	for _, rank := range p.further {
		if o.resident == nil || o.resident.copies[rank] == nil {
			s.promoteHBMLocked(copyKey{o.residence(), rank}, true)
		}
	}
}

// settleWaitLocked answers a row after its promotion, or when its caller waits no
// longer; it may have to wait for the next one.
func (c *Session) settleWaitLocked(w *hbmWait, key *[32]byte, q *AcquireQuery, p *profileState, t *tenant, now time.Time) (Acquired, hbmWait) {
	defer c.store.unwaitHBMLocked(w)
	if err := c.openLocked(); err != nil {
		return Acquired{Err: err}, hbmWait{}
	}
	if why, promoting, failed := w.missLocked(); failed {
		return Acquired{Reason: why, Promoting: promoting}, hbmWait{}
	}
	return c.acquireAboveLocked(key, q, p, t, now)
}

// missLocked is why what was waited for is a miss, if it is one for good.
func (w *hbmWait) missLocked() (why tier.Reason, promoting, failed bool) {
	if p := w.above; p != nil {
		switch {
		case p.state != promotionEnded:
			return tier.ReasonPending, true, true
		case p.outcome != hbmDone:
			return p.outcome.reason(), false, true
		}
		return tier.ReasonNone, false, false
	}
	if p := w.below; p.state != promotionEnded || p.outcome != promoteDone {
		why, promoting = p.missLocked()
		return why, promoting, true
	}
	return tier.ReasonNone, false, false
}

// unwaitHBMLocked ends what joining began.
func (s *Store) unwaitHBMLocked(w *hbmWait) {
	switch p := w.above; {
	case p == nil:
		s.unwaitLocked(w.below)
	case p.state != promotionEnded:
		p.waiters--
	case p.outcome == hbmDone:
		s.unuseLocked(p.object)
	}
}

// LoadResident is Load of a copy in HBM. It is one node: the states of the
// checkpoint, and the rows of its whole chain, as profile.CheckpointLayout(Tokens).
func (c *Session) LoadResident(q *LoadQuery) (Loaded, error) {
	return c.loadResident(context.Background(), q, false)
}

// AwaitLoadResident is LoadResident that waits, as AwaitAcquireResident.
func (c *Session) AwaitLoadResident(ctx context.Context, q *LoadQuery) (Loaded, error) {
	return c.loadResident(ctx, q, true)
}

func (c *Session) loadResident(ctx context.Context, q *LoadQuery, wait bool) (got Loaded, err error) {
	s := c.store
	p, t, err := s.scopeHBM(q.Profile, q.Tenant, q.Rank)
	if err == nil && (q.Accept == 0 || q.Accept&^(tier.Exact|tier.Spliced) != 0) {
		err = fmt.Errorf("accepts kinds %#x: %w", q.Accept, tier.ErrInvalid)
	}
	if err != nil {
		return Loaded{}, fmt.Errorf("load in HBM: %w", err)
	}
	got, waits, err := c.loadAbove(q, p, t, nil, wait)
	for err == nil && len(waits) > 0 {
		ended := c.awaitHBM(ctx, waits)
		got, waits, err = c.loadAbove(q, p, t, &waits[0], !ended)
	}
	if err == nil && !got.Hit && !(got.Promoting && q.Again) {
		s.mu.Lock()
		s.counters.HBM.LoadMisses++
		s.mu.Unlock()
	}
	return got, err
}

// loadAbove is one turn of a load: after is what it has waited for.
func (c *Session) loadAbove(q *LoadQuery, p *profileState, t *tenant, after *hbmWait, wait bool) (got Loaded, waits []hbmWait, err error) {
	s := c.store
	now := s.cfg.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if after != nil {
		defer s.unwaitHBMLocked(after)
	}
	if err := c.openLocked(); err != nil {
		return Loaded{}, nil, err
	}
	if after != nil {
		if why, promoting, failed := after.missLocked(); failed {
			return Loaded{Reason: why, Promoting: promoting}, nil, nil
		}
	}
	got, w, err := c.loadAboveLocked(q, p, t, now)
	if wait && err == nil {
		waits = w.joinLocked(0, waits)
	}
	return got, waits, err
}

// loadAboveLocked leases a checkpoint's copy, or begins what brings it to HBM. It
// serves the one that Load would.
func (c *Session) loadAboveLocked(q *LoadQuery, p *profileState, t *tenant, now time.Time) (Loaded, hbmWait, error) {
	s := c.store
	hash := (*[32]byte)(&q.Hash)
	o, why := s.bestLocked(hash, q.Accept, p, t)
	var name tier.Name
	if o != nil {
		name = o.label()
	} else if e, ok := s.bestBelowLocked(hash, q.Accept, p, t); ok {
		name = e.Name
	} else {
		if why == tier.ReasonNone {
			why, _ = s.ghosts.Why(hash, p.id, t.ID)
		}
		return Loaded{Reason: why}, hbmWait{}, nil
	}
	k := copyKey{residentKey{name, p, t}, q.Rank}
	if copied := s.copyLocked(k.residentKey, q.Rank); copied != nil {
		got, err := c.loadLocked(copied, q, now)
		if err == nil {
			s.counters.HBM.Loaded++
			s.counters.HBM.LoadedTokens += uint64(got.Tokens)
		}
		return got, hbmWait{}, err
	}
	if s.hbm.lost {
		return Loaded{Reason: tier.ReasonEvicted}, hbmWait{}, nil
	}
	w := s.raiseLocked(k, o)
	return Loaded{Reason: tier.ReasonPending, Promoting: w.above != nil || w.below != nil}, w, nil
}

// NeedsHBMPromotion tells whether AwaitAcquireResident would have to wait. It looks
// at memory only. A query that AcquireResident refuses needs none.
func (s *Store) NeedsHBMPromotion(q *AcquireQuery) bool {
	p, t, err := s.scopeHBM(q.Profile, q.Tenant, q.Rank)
	if err != nil {
		return false
	}
	needs := false
	inPieces(&s.mu, len(q.Keys), func(i int) {
		needs = needs || s.needsAboveLocked(copyKey{residentKey{tier.Name{Key: q.Keys[i]}, p, t}, q.Rank})
	})
	return needs
}

// LoadNeedsHBMPromotion tells the same of AwaitLoadResident.
func (s *Store) LoadNeedsHBMPromotion(q *LoadQuery) bool {
	p, t, err := s.scopeHBM(q.Profile, q.Tenant, q.Rank)
	if err != nil {
		return false
	}
	hash := (*[32]byte)(&q.Hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	var name tier.Name
	if o, _ := s.bestLocked(hash, q.Accept, p, t); o != nil {
		name = o.label()
	} else if e, ok := s.bestBelowLocked(hash, q.Accept, p, t); ok {
		name = e.Name
	} else {
		return false
	}
	return s.needsAboveLocked(copyKey{residentKey{name, p, t}, q.Rank})
}

// needsAboveLocked tells whether something has no copy and could have one.
func (s *Store) needsAboveLocked(k copyKey) bool {
	if s.hbm.lost || s.copyLocked(k.residentKey, k.rank) != nil {
		return false
	}
	o := s.namedLocked(k.name, k.profile, k.tenant)
	if o != nil && (s.promotableLocked(o) || o.fill != nil && o.fill.promotion != nil) {
		return true
	}
	if o != nil && !o.thin {
		return false
	}
	_, held := s.lookupLocked(k.name, k.profile, k.tenant)
	return held
}
