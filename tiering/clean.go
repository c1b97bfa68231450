package tiering

import (
	"context"
	"errors"
	"sync"

	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// cleaner is what it and those who wait for writes look at. Guarded by the store's
// lock.
type cleaner struct {
	cleanerIdle  bool // it waits for changed
	cleanerHolds bool // until the next sweep, since a write has failed
	writesEnded  uint64
	sweeps       uint64
	writeSweep   uint64    // sweeps when a write ended last, or the only one began
	changed      sync.Cond // one of the fields above, or room in memory
}

// trackLocked keeps the pool's policy of dirty objects up to date after
// something about o changed: it holds what the lower tier does not, suspended
// unless it could leave memory and would have to be written first.
func (s *Store) trackLocked(o *object) {
	p := o.pool
	if p.dirty == nil {
		return
	}
	next := stand(o.ranked != absent && o.stored == 0, o.pins == 0 && o.write == nil && !o.refused)
	if next == o.cleaning {
		return
	}
	var it policy.Item
	if o.cleaning == absent {
		it = s.itemLocked(o)
	}
	o.cleaning.change(next, p.dirty, o.id, it, o.used)
	d := 0
	if next == candidate {
		d = 1
	} else if o.cleaning == candidate {
		d = -1
	}
	p.dirtyBytes += int64(d) * o.pageBytes
	p.dirtyObjects += d
	o.cleaning = next
	if next == candidate && s.cleanerIdle && s.shortLocked(p) {
		s.changed.Broadcast()
	}
}

// shortLocked tells whether a pool wants dirty objects written: with
// write-behind all that an earlier refusal left, else when it is above its high
// mark and what is free, or can be dropped at once, does not reach down to the
// low one.
func (s *Store) shortLocked(p *pool) bool {
	switch {
	case p.dirtyObjects == 0:
		return false
	case s.cfg.WriteBehind:
		return true
	}
	budget := float64(p.budget)
	ready := float64(p.budget - p.pinned - p.dirtyBytes)
	return float64(p.used) > s.cfg.HighWater*budget && ready < (1-s.cfg.LowWater)*budget
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
	for _, p := range s.pools {
		if s.shortLocked(p) {
			return true
		}
	}
	return false
}

// cleanLocked begins some writes. The error is why it stopped before the pools
// had enough.
func (s *Store) cleanLocked() error {
	n := 0
	for _, p := range s.pools {
		for ; n < cleanRows && s.shortLocked(p); n++ {
			id, _ := p.dirty.Victim(func(policy.ID) bool { return true })
			o := s.objects.Get(id)
			err := s.wantLocked(o, tier.LevelLogged, false)
			switch {
			case err == nil && o.write == nil: // it was there already
			case err == nil:
				s.counters.Cleaned++
			case errors.Is(err, tier.ErrBusy), errors.Is(err, tier.ErrUnavailable):
				return err
			default: // no room for it, its tenant's quota, its own fault, or a stripped node before it
				o.refused = true
				s.rankLocked(o)
			}
		}
	}
	return nil
}

// sweepLower is what a sweep does for the lower tier: it brings tenants back
// under their quotas, which a tier that comes up late may break, and has refused
// writes asked for again.
func (s *Store) sweepLower() {
	if s.cfg.Lower == nil {
		return
	}
	s.mu.Lock()
	for _, t := range s.tenants {
		s.yieldLocked(t, s.overQuota(t, 0))
		if over := min(s.overQuota(t, 0), s.lowerUsed(t)); over > 0 {
			s.trimBelowLocked(t, over, nil)
		}
	}
	s.kickLocked()
	s.sweeps++
	s.cleanerHolds = false
	s.up.Kick()
	if s.cleanerIdle {
		s.changed.Broadcast()
	}
	s.mu.Unlock()
	s.launch()
}
