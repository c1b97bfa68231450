package tiering

import (
	"context"
	"errors"

	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/tiering/tier"
)

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
