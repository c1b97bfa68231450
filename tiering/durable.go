package tiering

import (
	"context"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// Durable is a publication on its way to the level that its commits asked for.
// It need not be waited for: the write goes on without.
type Durable struct {
	done    chan struct{}
	reached tier.Level // once done is closed
	counted bool       // among the counters of acknowledgements
}

// Done is closed when the object has reached its level, or cannot.
func (d *Durable) Done() <-chan struct{} { return d.done }

// Wait blocks until the object has reached its level, or cannot, or ctx ends,
// and answers the level reached by then; LevelMemory is what every published
// object has.
func (d *Durable) Wait(ctx context.Context) tier.Level {
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

// durableLocked asks for an object to be written and for news of it. The answer
// is final at once when the tier refuses, other than for being busy.
func (s *Store) durableLocked(o *object, level tier.Level, counted bool, b *outside) *Durable {
	d := &Durable{done: make(chan struct{}), counted: counted}
	err := s.wantLocked(o, level, true, b)
	switch {
	case o.write != nil:
		o.write.waiting = append(o.write.waiting, d)
	case err != nil:
		s.reachLocked(d, tier.LevelMemory)
	default:
		s.reachLocked(d, o.stored)
	}
	return d
}

func (s *Store) reachLocked(d *Durable, level tier.Level) {
	if d.counted {
		s.counters.Acknowledged[level]++
	}
	d.reached = level
	close(d.done)
}
