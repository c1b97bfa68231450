package tiering

import (
	"context"
	"errors"
	"sync"

	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// cleaner is the state of the cleaner and of others that wait for writes. Guarded by the
// store's lock.
type cleaner struct {
	cleanerIdle  bool // the cleaner waits for changed
	senderIdle   bool // the sender of copies waits for changed
	cleanerHolds bool // until the next sweep, after a failed write
	writesEnded  uint64
	sendsEnded   uint64 // offloads
	sweeps       uint64
	writeSweep   uint64    // value of sweeps when the last write ended, or when the only one began
	changed      sync.Cond // a field above has changed, or there is room in memory
}

// wakeIdleCleaner wakes the cleaner and the sender to look at a pool that has become
// short.
func (s *Store) wakeIdleCleaner() {
	if s.cleanerIdle || s.senderIdle {
		s.changed.Broadcast()
	}
}

// cleanRows bounds one critical section of the cleaner.
const cleanRows = 8

// clean writes dirty objects of pools that are short, until ctx ends. A busy tier is
// tried again after the next write, an unavailable one after the next sweep.
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

// cleanLocked starts some writes. The error says why it stopped before the pools had
// enough.
func (s *Store) cleanLocked() error {
	n := 0
	for _, p := range s.objects.Pools {
		for ; n < cleanRows && s.objects.ShortOf(p, &p.Dirty); n++ {
			id, _ := p.Dirty.Victim(func(policy.ID) bool { return true })
			o := s.objects.Table.Get(id)
			err := s.wantLocked(o, tier.LevelLogged, false)
			switch {
			case err == nil && o.Write == nil: // the tier has it already
			case err == nil:
				s.counters.Cleaned++
			case errors.Is(err, tier.ErrBusy), errors.Is(err, tier.ErrUnavailable):
				return err
			default: // no room, over quota, a fault of the object, or a stripped ancestor
				o.Refused = true
				s.objects.Rank(o)
			}
		}
	}
	return nil
}

// sweepLower does the sweep of the lower tier: it brings tenants back under their quotas,
// and retries refused writes. A tenant can be over its quota if the tier opened late, or
// was written under larger quotas or another way of counting.
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

// sweepOutlets does the sweep if there is no lower tier.
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

// trimTenantLocked brings a tenant one step closer to its quota. ErrAgain: more steps are
// needed.
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
