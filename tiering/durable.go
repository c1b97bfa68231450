package tiering

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Flush writes every published object that the lower tier does not have, parents first, and
// waits for the writes. It is meant for shutdown: objects published meanwhile may be left
// out. Run must still be running, since it retries writes to a busy tier. The first result
// is the number of objects that the tier accepted. The error says how many objects the tier
// refused (ErrUnavailable), or did not accept before ctx ended (the context's error).
func (s *Store) Flush(ctx context.Context) (written int, err error) {
	if s.cfg.Lower == nil {
		return 0, nil
	}
	var waits []*Durable
	for i, more := 0, true; more && ctx.Err() == nil; i += holdRows {
		s.mu.Lock()
		s.writes.kickLocked() // the tier may no longer be busy
		waits, more = s.writes.flushLocked(i, waits)
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

// Durable lets a caller wait until a published object has reached the level that its
// commits asked for. Waiting is optional: the write continues without a waiting caller.
type Durable struct {
	done    chan struct{}
	reached tier.Level // the level reached; valid once done is closed
	owner   *writes    // counts the result of the first Wait; nil = not counted
	told    atomic.Bool
}

// Done returns a channel that is closed when the object has reached its level, or cannot
// reach it any more.
func (d *Durable) Done() <-chan struct{} { return d.done }

// Wait blocks until the object has reached its level, or cannot reach it any more, or ctx
// ends. It returns the level that the object has then, at least LevelMemory. The result of
// the first call counts as acknowledged.
func (d *Durable) Wait(ctx context.Context) tier.Level {
	level := d.await(ctx)
	if d.owner != nil && d.told.CompareAndSwap(false, true) {
		d.owner.mu.Lock()
		d.owner.counters.Acknowledged[level]++
		d.owner.mu.Unlock()
	}
	return level
}

func (d *Durable) await(ctx context.Context) tier.Level {
	select {
	case <-d.done:
		return d.reached
	case <-ctx.Done():
	}
	select { // both may be ready
	case <-d.done:
		return d.reached
	default:
		return tier.LevelMemory
	}
}

func (d *Durable) reach(level tier.Level) {
	d.reached = level
	close(d.done)
}

// durableLocked requests a write of an object and returns its Durable. If the parameter
// counted is true, the first Wait counts as an acknowledgement. If the tier refuses the
// write for a reason other than being busy, the Durable is done at once.
func (wr *writes) durableLocked(o *objects.Object, level tier.Level, counted bool) *Durable {
	d := &Durable{done: make(chan struct{})}
	if counted {
		d.owner = wr
	}
	err := wr.wantLocked(o, level, true)
	switch {
	case o.Write != nil:
		w := writeOf(o)
		w.waiting = append(w.waiting, d)
	case err != nil:
		d.reach(tier.LevelMemory)
	default:
		d.reach(o.Stored)
	}
	return d
}
