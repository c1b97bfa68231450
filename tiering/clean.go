package tiering

import (
	"context"
	"errors"

	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// cleanRows is the maximum number of writes that one critical section of the cleaner starts.
const cleanRows = 8

// clean writes dirty objects of pools that are short of free bytes, until ctx ends. If the
// tier is busy, it continues after the next write has ended; if the tier is unavailable,
// after the next sweep.
func (wr *writes) clean(ctx context.Context) {
	var ended, swept uint64
	var cause error
	for {
		wr.mu.Lock()
		for ctx.Err() == nil && !wr.cleanableLocked(cause, ended, swept) {
			wr.cleanerIdle = true
			wr.changed.Wait()
			wr.cleanerIdle = false
		}
		if ctx.Err() != nil {
			wr.mu.Unlock()
			return
		}
		ended, swept = wr.ended, wr.sweeps
		cause = wr.cleanLocked()
		wr.mu.Unlock()
		wr.launch()
	}
}

func (wr *writes) cleanableLocked(cause error, ended, swept uint64) bool {
	switch {
	case wr.cleanerHolds:
		return false
	case cause == nil || swept != wr.sweeps:
	case errors.Is(cause, tier.ErrBusy) && ended != wr.ended:
	default:
		return false
	}
	for _, p := range wr.objects.Pools {
		if wr.objects.Policies.ShortOf(p, &p.Dirty) {
			return true
		}
	}
	return false
}

// cleanLocked starts some writes. An error tells why it stopped although a pool is still
// short of free bytes.
func (wr *writes) cleanLocked() error {
	n := 0
	for _, p := range wr.objects.Pools {
		for ; n < cleanRows && wr.objects.Policies.ShortOf(p, &p.Dirty); n++ {
			id, _ := p.Dirty.Victim(func(policy.ID) bool { return true })
			o := wr.objects.Table.Get(id)
			err := wr.wantLocked(o, tier.LevelLogged, false)
			switch {
			case err == nil && o.Write == nil: // the tier already has the object
			case err == nil:
				wr.counters.Cleaned++
			case errors.Is(err, tier.ErrBusy), errors.Is(err, tier.ErrUnavailable):
				return err
			default: // no room, over quota, a fault of the object, or a stripped ancestor
				o.Refused = true
				wr.objects.Policies.Rank(o)
			}
		}
	}
	return nil
}

// sweepLower does the part of a sweep that concerns the lower tier: it brings tenants back
// under their quotas, and retries refused writes. A tenant can be over its quota if the tier
// opened late, or if its entries were written under a larger quota or counted in another way.
func (s *Store) sweepLower() {
	if s.cfg.Lower == nil {
		s.sweepOutlets()
		return
	}
	for _, t := range s.objects.Tenants {
		_ = s.inTurns(func() error { return s.evictor.trimTenantLocked(t) })
	}
	s.mu.Lock()
	s.writes.kickLocked()
	s.sweeps++
	s.writes.cleanerHolds = false
	s.promotions.engine.Kick()
	if s.offloads.engine != nil {
		s.offloads.engine.Kick()
	}
	if s.cleanerIdle || s.senderIdle {
		s.changed.Broadcast()
	}
	s.mu.Unlock()
	s.launch()
}

// sweepOutlets does the work of sweepLower if there is no lower tier: it retries copies to
// outlets.
func (s *Store) sweepOutlets() {
	if s.offloads.engine != nil {
		s.mu.Lock()
		s.sweeps++
		s.offloads.engine.Kick()
		if s.senderIdle {
			s.changed.Broadcast()
		}
		s.mu.Unlock()
	}
	s.launch()
}

// trimTenantLocked brings a tenant one step closer to its quota. ErrAgain means that more
// steps are needed.
func (ev *evictor) trimTenantLocked(t *objects.Tenant) error {
	if ev.closed {
		return nil
	}
	if _, more := ev.objects.HBM.Yield(t, ev.objects.Quotas.Over(t, 0)); more {
		return objects.ErrAgain
	}
	over := min(ev.objects.Quotas.Over(t, 0), ev.objects.Below.Used(t))
	if over > 0 && ev.trimBelowLocked(t, over, nil) {
		return objects.ErrAgain
	}
	return nil
}
