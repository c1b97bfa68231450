package move

import (
	"context"
	"errors"

	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// CleanRows is the maximum number of writes that one critical section of the cleaner starts.
const CleanRows = 8

// clean writes dirty objects of pools that are short of free bytes, until ctx ends. If the
// tier is busy, it continues after the next write has ended; if the tier is unavailable,
// after the next sweep.
func (wr *Writes) clean(ctx context.Context) {
	var ended, swept uint64
	var cause error
	for {
		wr.cat.Mu.Lock()
		for ctx.Err() == nil && !wr.CleanableLocked(cause, ended, swept) {
			wr.cat.CleanerIdle = true
			wr.cat.Changed.Wait()
			wr.cat.CleanerIdle = false
		}
		if ctx.Err() != nil {
			wr.cat.Mu.Unlock()
			return
		}
		ended, swept = wr.ended, wr.cat.Sweeps
		cause = wr.CleanLocked()
		wr.cat.Mu.Unlock()
		wr.cat.Launch()
	}
}

// CleanableLocked reports whether the cleaner should start writes. The parameters are the
// error with which it stopped last, and the counts of ended writes and of sweeps then.
func (wr *Writes) CleanableLocked(cause error, ended, swept uint64) bool {
	switch {
	case wr.cleanerHolds:
		return false
	case cause == nil || swept != wr.cat.Sweeps:
	case errors.Is(cause, tier.ErrBusy) && ended != wr.ended:
	default:
		return false
	}
	for _, p := range wr.cat.Objects.Pools {
		if wr.cat.Objects.Policies.ShortOf(p, &p.Dirty) {
			return true
		}
	}
	return false
}

// CleanLocked starts some writes. An error tells why it stopped although a pool is still
// short of free bytes.
func (wr *Writes) CleanLocked() error {
	n := 0
	for _, p := range wr.cat.Objects.Pools {
		for ; n < CleanRows && wr.cat.Objects.Policies.ShortOf(p, &p.Dirty); n++ {
			id, _ := p.Dirty.Victim(func(policy.ID) bool { return true })
			o := wr.cat.Objects.Table.Get(id)
			err := wr.WantLocked(o, tier.LevelLogged, false)
			switch {
			case err == nil && o.Write == nil: // the tier already has the object
			case err == nil:
				wr.cat.Counters.Cleaned++
			case errors.Is(err, tier.ErrBusy), errors.Is(err, tier.ErrUnavailable):
				return err
			default: // no room, over quota, a fault of the object, or a stripped ancestor
				o.Refused = true
				wr.cat.Objects.Policies.Rank(o)
			}
		}
	}
	return nil
}
