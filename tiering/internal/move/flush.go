package move

import (
	"context"
	"fmt"

	"github.com/spliced-kv/spliced/tiering/internal/catalog"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Flush writes what the lower tier does not have, see Store.Flush.
func (wr *Writes) Flush(ctx context.Context) (written int, err error) {
	if wr.cat.Config.Lower == nil {
		return 0, nil
	}
	var waits []*Durable
	for i, more := 0, true; more && ctx.Err() == nil; i += catalog.HoldRows {
		wr.cat.Mu.Lock()
		wr.kickLocked() // the tier may no longer be busy
		waits, more = wr.FlushLocked(i, waits)
		wr.cat.Mu.Unlock()
		wr.cat.Launch()
	}
	for _, d := range waits {
		if d.Wait(ctx) >= tier.LevelLogged {
			written++
		}
	}
	left := len(waits) - written
	switch {
	case ctx.Err() != nil:
		return written, fmt.Errorf("flush: %d of %d objects are not written: %w", left, len(waits), ctx.Err())
	case left > 0:
		return written, fmt.Errorf("flush: %d of %d objects are not written: %w", left, len(waits), tier.ErrUnavailable)
	}
	return written, nil
}

// FlushLocked examines up to HoldRows places of the table, from the place numbered first.
// It starts writes of the dirty objects at these places, and adds their Durables to waits.
// It reports whether the table has more places.
func (wr *Writes) FlushLocked(first int, waits []*Durable) ([]*Durable, bool) {
	places := wr.cat.Objects.Table.Places()
	for _, o := range places[min(first, len(places)):min(first+catalog.HoldRows, len(places))] {
		if o == nil || o.Phase != objects.Whole || o.InHBM() {
			continue
		}
		if e, held := wr.cat.Objects.Below.Of(o); held && e.Level >= tier.LevelLogged && o.Write == nil || wr.remote.elsewhereLocked(o) {
			continue
		}
		waits = append(waits, wr.DurableLocked(o, tier.LevelLogged, false))
	}
	return waits, first+catalog.HoldRows < len(places)
}
