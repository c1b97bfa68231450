package tiering

import (
	"context"
	"errors"
	"sync"

	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// cleaner is what it and those who wait for writes look at. Guarded by the store's
// lock.
type cleaner struct {
	cleanerIdle  bool // it waits for changed
	senderIdle   bool // so does who sends copies ahead
	cleanerHolds bool // until the next sweep, since a write has failed
	writesEnded  uint64
	sendsEnded   uint64 // of copies
	sweeps       uint64
	writeSweep   uint64    // sweeps when a write ended last, or the only one began
	changed      sync.Cond // one of the fields above, or room in memory
}

// wakeIdleCleaner has the cleaner look at a pool that has become short.
func (s *Store) wakeIdleCleaner() {
	if s.cleanerIdle || s.senderIdle {
		s.changed.Broadcast()
	}
}

// cleanRows bounds one critical section of the cleaner.
const cleanRows = 8

// clean writes dirty objects of pools that are short until ctx ends. A tier that
// is busy is asked again after the next write, one that cannot after the next
// sweep.
func (s *Store) clean(ctx context.Context) {
	var ended, swept uint64
	var cause error
	for {
		s.mu.Lock()
		for ctx.Err() == nil && !s.cleanableLocked(cause, ended, swept) {
			s.cleanerIdle = true
			s.changed.Wait()
			s.cleanerIdle = false
		}
		if ctx.Err() != nil {
			s.mu.Unlock()
			return
		}
		ended, swept = s.writesEnded, s.sweeps
		cause = s.cleanLocked()
		s.mu.Unlock()
		s.launch()
	}
}

func (s *Store) cleanableLocked(cause error, ended, swept uint64) bool {
	switch {
	case s.cleanerHolds:
		return false
	case cause == nil || swept != s.sweeps:
	case errors.Is(cause, tier.ErrBusy) && ended != s.writesEnded:
	default:
		return false
	}
	for _, p := range s.objects.Pools {
		if s.objects.ShortOf(p, &p.Dirty) {
			return true
		}
	}
	return false
}

// cleanLocked begins some writes. The error is why it stopped before the pools
// had enough.
func (s *Store) cleanLocked() error {
	n := 0
	for _, p := range s.objects.Pools {
		for ; n < cleanRows && s.objects.ShortOf(p, &p.Dirty); n++ {
			id, _ := p.Dirty.Victim(func(policy.ID) bool { return true })
			o := s.objects.Table.Get(id)
			err := s.wantLocked(o, tier.LevelLogged, false)
			switch {
			case err == nil && o.Write == nil: // it was there already
			case err == nil:
				s.counters.Cleaned++
			case errors.Is(err, tier.ErrBusy), errors.Is(err, tier.ErrUnavailable):
				return err
			default: // no room for it, its tenant's quota, its own fault, or a stripped node before it
				o.Refused = true
				s.objects.Rank(o)
			}
		}
	}
	return nil
}

// sweepLower is what a sweep does for the lower tier: it brings tenants back
// under their quotas, which a tier breaks that comes up late, or that was written under
// larger quotas or another count, and has refused writes asked for again.
func (s *Store) sweepLower() {
	if s.cfg.Lower == nil {
		s.sweepOutlets()
		return
	}
	for _, t := range s.objects.Tenants {
		_ = s.inTurns(func() error { return s.trimTenantLocked(t) })
	}
	s.mu.Lock()
	s.kickLocked()
	s.sweeps++
	s.cleanerHolds = false
	s.up.Kick()
	if s.out != nil {
		s.out.Kick()
	}
	if s.cleanerIdle || s.senderIdle {
		s.changed.Broadcast()
	}
	s.mu.Unlock()
	s.launch()
}

// sweepOutlets is sweepLower without a lower tier.
func (s *Store) sweepOutlets() {
	if s.out != nil {
		s.mu.Lock()
		s.sweeps++
		s.out.Kick()
		if s.senderIdle {
			s.changed.Broadcast()
		}
		s.mu.Unlock()
	}
	s.launch()
}

// trimTenantLocked brings a tenant a step nearer to its quota. ErrAgain is that there
// are more.
func (s *Store) trimTenantLocked(t *objects.Tenant) error {
	if s.closed {
		return nil
	}
	if _, more := s.objects.Yield(t, s.objects.OverQuota(t, 0)); more {
		return objects.ErrAgain
	}
	over := min(s.objects.OverQuota(t, 0), s.objects.UsedBelow(t))
	if over > 0 && s.trimBelowLocked(t, over, nil) {
		return objects.ErrAgain
	}
	return nil
}
