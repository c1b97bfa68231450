package tiering

import (
	"context"
	"fmt"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// Flush writes every published object that the lower tier does not hold, those
// first that others extend, and waits until it does. It is for the end: what is
// published meanwhile may be left out, and Run is to run still, since it asks a tier
// again that was busy. written is how many objects the tier took;
// the error says how many it did not, or not before ctx ended, and what wraps is
// ErrUnavailable or the context's error.
func (s *Store) Flush(ctx context.Context) (written int, err error) {
	if s.cfg.Lower == nil {
		return 0, nil
	}
	var waits []*Durable
	for i, more := 0, true; more && ctx.Err() == nil; i += holdRows {
		s.mu.Lock()
		s.kickLocked() // the tier may not be busy any more
		waits, more = s.flushLocked(i, waits)
		s.mu.Unlock()
		s.launch()
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

// flushLocked begins to write the dirty ones of some places of the table.
func (s *Store) flushLocked(first int, waits []*Durable) ([]*Durable, bool) {
	places := s.objects.Places()
	for _, o := range places[min(first, len(places)):min(first+holdRows, len(places))] {
		if o == nil || o.phase != whole || o.inHBM() {
			continue
		}
		if e, held := s.belowLocked(o); held && e.Level >= tier.LevelLogged && o.write == nil {
			continue
		}
		waits = append(waits, s.durableLocked(o, tier.LevelLogged, false))
	}
	return waits, first+holdRows < len(places)
}
