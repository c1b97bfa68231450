package tiering

import (
	"context"
	"time"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// awaited is a row of an Acquire, or a Load, whose object is being promoted.
// The caller counts among the promotion's waiters until settled.
type awaited struct {
	row       int
	promotion *promotion
}

// NeedsPromotion tells whether AwaitAcquire would have to wait for the lower
// tier. It looks at memory only. A query that Acquire refuses needs none.
func (s *Store) NeedsPromotion(q *AcquireQuery) bool {
	p, t, err := s.scope(q.Profile, q.Tenant, q.Rank)
	if err != nil || s.cfg.Lower == nil {
		return false
	}
	for first := 0; first < len(q.Keys); first += matchRows {
		keys := q.Keys[first:min(first+matchRows, len(q.Keys))]
		if s.anyBelow(keys, p, t) {
			return true
		}
	}
	return false
}

func (s *Store) anyBelow(keys [][32]byte, p *profileState, t *tenant) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range keys {
		o := s.segmentLocked(&keys[i], p, t)
		if o != nil {
			if o.fill != nil && o.fill.promotion != nil {
				return true
			}
			continue
		}
		if _, ok := s.segmentBelowLocked(&keys[i], p, t); ok {
			return true
		}
	}
	return false
}

// LoadNeedsPromotion tells the same of AwaitLoad.
func (s *Store) LoadNeedsPromotion(q *LoadQuery) bool {
	p, t, err := s.scope(q.Profile, q.Tenant, q.Rank)
	if err != nil || s.cfg.Lower == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if o, _ := s.bestLocked((*[32]byte)(&q.Hash), q.Accept, p, t); o != nil {
		return false
	}
	_, ok := s.bestBelowLocked((*[32]byte)(&q.Hash), q.Accept, p, t)
	return ok
}

// AwaitAcquire is Acquire that waits for what lies in the lower tier until ctx
// ends; what is not in memory by then is a miss that is Promoting, and its
// promotion goes on. It holds no lock while it waits, and what was promoted for
// it cannot be evicted before it has its lease. The end of ctx is no error.
func (c *Session) AwaitAcquire(ctx context.Context, q *AcquireQuery, dst []Acquired) ([]Acquired, error) {
	var waits []awaited
	base := len(dst)
	dst, err := c.acquire(q, dst, &waits)
	if err != nil || len(waits) == 0 {
		return dst, err
	}
	c.await(ctx, waits)
	s := c.store
	now := s.cfg.Now()
	inPieces(&s.mu, len(waits), func(i int) {
		w := &waits[i]
		dst[w.row] = c.acquireAwaitedLocked(w.promotion, &q.Keys[w.row-base], q, now)
	})
	if q.All {
		c.settleTogether(dst[base:])
	}
	return dst, nil
}

// AwaitLoad is Load that waits for what lies in the lower tier, as AwaitAcquire.
func (c *Session) AwaitLoad(ctx context.Context, q *LoadQuery) (Loaded, error) {
	var waits []awaited
	got, err := c.load(q, &waits)
	if err != nil || len(waits) == 0 {
		return got, err
	}
	c.await(ctx, waits)
	s := c.store
	now := s.cfg.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	p := waits[0].promotion
	defer s.unwaitLocked(p)
	if err := c.openLocked(); err != nil {
		return Loaded{}, err
	}
	if o := p.arrivedLocked(); o != nil {
		return c.loadLocked(o, q, now)
	}
	// It may have come another way.
	if o, _ := s.bestLocked((*[32]byte)(&q.Hash), q.Accept, p.profile, p.tenant); o != nil {
		return c.loadLocked(o, q, now)
	}
	s.counters.LoadMisses++
	why, promoting := p.missLocked()
	return Loaded{Reason: why, Promoting: promoting}, nil
}

// await returns when the promotions have ended, or ctx, or the session.
func (c *Session) await(ctx context.Context, waits []awaited) {
	for i := range waits {
		select {
		case <-waits[i].promotion.done:
		case <-ctx.Done():
			return
		case <-c.ended:
			return
		}
	}
}

// arrivedLocked is the object of a promotion that succeeded, unless an operator
// has removed it since.
func (p *promotion) arrivedLocked() *object {
	if p.state != promotionEnded || p.outcome != promoteDone || !p.object.linked {
		return nil
	}
	return p.object
}

// missLocked is why what was waited for is a miss.
func (p *promotion) missLocked() (why tier.Reason, promoting bool) {
	switch {
	case p.state != promotionEnded:
		return tier.ReasonPending, true
	case p.outcome == promoteDone:
		return tier.ReasonRemoved, false
	}
	return p.outcome.reason(), false
}

// unwaitLocked ends what counting among a promotion's waiters began.
func (s *Store) unwaitLocked(p *promotion) {
	switch {
	case p.state != promotionEnded:
		p.waiters--
	case p.outcome == promoteDone:
		p.object.ops--
		s.settleLocked(p.object)
	}
}

func (c *Session) acquireAwaitedLocked(p *promotion, key *[32]byte, q *AcquireQuery, now time.Time) Acquired {
	s := c.store
	defer s.unwaitLocked(p)
	if err := c.openLocked(); err != nil {
		return Acquired{Err: err}
	}
	o := p.arrivedLocked()
	if o == nil {
		o = s.segmentLocked(key, p.profile, p.tenant) // it may have come another way
	}
	if o == nil || o.fill != nil {
		s.counters.AcquireMisses++
		why, promoting := p.missLocked()
		return Acquired{Reason: why, Promoting: promoting}
	}
	return c.leaseRowLocked(o, q, now)
}

// joinPromotionLocked counts the caller among the waiters of a promotion.
func joinPromotionLocked(p *promotion, row int, waits *[]awaited) {
	p.waiters++
	*waits = append(*waits, awaited{row, p})
}
