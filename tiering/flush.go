package tiering

import (
	"context"
	"fmt"

	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// flush writes every published object that the lower tier does not have, parents first, and
// waits for the writes. It is meant for shutdown: objects published meanwhile may be left
// out. Run must still be running, since it retries writes to a busy tier. The first result
// is the number of objects that the tier accepted. The error says how many objects the tier
// refused (ErrUnavailable), or did not accept before ctx ended (the context's error).
func (wr *writes) flush(ctx context.Context) (written int, err error) {
	if wr.cfg.Lower == nil {
		return 0, nil
	}
	var waits []*Durable
	for i, more := 0, true; more && ctx.Err() == nil; i += holdRows {
		wr.mu.Lock()
		wr.kickLocked() // the tier may no longer be busy
		waits, more = wr.flushLocked(i, waits)
		wr.mu.Unlock()
		wr.launch()
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

// flushLocked examines up to holdRows places of the table, from the place numbered first.
// It starts writes of the dirty objects at these places, and adds their Durables to waits.
// It reports whether the table has more places.
func (wr *writes) flushLocked(first int, waits []*Durable) ([]*Durable, bool) {
	places := wr.objects.Table.Places()
	for _, o := range places[min(first, len(places)):min(first+holdRows, len(places))] {
		if o == nil || o.Phase != objects.Whole || o.InHBM() {
			continue
		}
		if e, held := wr.objects.Below.Of(o); held && e.Level >= tier.LevelLogged && o.Write == nil || wr.remote.elsewhereLocked(o) {
			continue
		}
		waits = append(waits, wr.durableLocked(o, tier.LevelLogged, false))
	}
	return waits, first+holdRows < len(places)
}
