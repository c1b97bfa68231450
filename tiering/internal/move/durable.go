package move

import (
	"context"
	"sync/atomic"

	"github.com/spliced-kv/spliced/tiering/internal/catalog"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Durable lets a caller wait until a published object has reached the level that its
// commits asked for. Waiting is optional: the write continues without a waiting caller.
type Durable struct {
	done    chan struct{}
	reached tier.Level       // the level reached; valid once done is closed
	counts  *catalog.Catalog // counts the result of the first Wait; nil = not counted
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
	if d.counts != nil && d.told.CompareAndSwap(false, true) {
		d.counts.Mu.Lock()
		d.counts.Counters.Acknowledged[level]++
		d.counts.Mu.Unlock()
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
