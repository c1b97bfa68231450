package tiering

import (
	"context"
	"sync/atomic"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// Durable is a publication on its way to the level that its commits asked for.
// It need not be waited for: the write goes on without.
type Durable struct {
	done    chan struct{}
	reached tier.Level // once done is closed
	store   *Store     // whose counters of acknowledgements the first Wait is among; nil = none
	told    atomic.Bool
}

// Done is closed when the object has reached its level, or cannot.
func (d *Durable) Done() <-chan struct{} { return d.done }

// Wait blocks until the object has reached its level, or cannot, or ctx ends,
// and answers the level reached by then; LevelMemory is what every published
// object has. What the first call answers is counted as acknowledged.
func (d *Durable) Wait(ctx context.Context) tier.Level {
	level := d.await(ctx)
	if d.store != nil && d.told.CompareAndSwap(false, true) {
		d.store.mu.Lock()
		d.store.counters.Acknowledged[level]++
		d.store.mu.Unlock()
	}
	return level
}

func (d *Durable) await(ctx context.Context) tier.Level {
	select {
	case <-d.done:
		return d.reached
	case <-ctx.Done():
	}
	select { // both may have come
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

// durableLocked asks for an object to be written and for news of it, to be counted
// as acknowledged or not. The answer is final at once when the tier refuses, other
// than for being busy.
func (s *Store) durableLocked(o *object, level tier.Level, counted bool) *Durable {
	d := &Durable{done: make(chan struct{})}
	if counted {
		d.store = s
	}
	err := s.wantLocked(o, level, true)
	switch {
	case o.write != nil:
		o.write.waiting = append(o.write.waiting, d)
	case err != nil:
		d.reach(tier.LevelMemory)
	default:
		d.reach(o.stored)
	}
	return d
}
