package peer

import (
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// Told is an Index that knows some holders by themselves, before the other one has learnt
// of them: a node that was asked for something says when it has it.
//
// What is told holds for a few seconds, and maxTold at a time are remembered: more, and
// those that were told first are forgotten. That costs the delay of the other index.
type Told struct {
	Index
	names *Names
	now   func() time.Time
	n     atomic.Int32 // of latest
	// latest maps tags to holders; it is replaced under mu, never changed.
	latest atomic.Pointer[map[uint64]holder]
	mu     sync.Mutex
}

type holder struct {
	node  Node
	until time.Time
}

const (
	maxTold  = 1024
	toldTime = 10 * time.Second // an index follows within seconds
)

// NewTold wraps an index; now is time.Now where it is nil.
func NewTold(of Index, names *Names, now func() time.Time) *Told {
	if now == nil {
		now = time.Now
	}
	t := &Told{Index: of, names: names, now: now}
	t.latest.Store(&map[uint64]holder{})
	return t
}

// Prefetch implements Index.
func (t *Told) Prefetch(tags []uint64) { t.Index.Prefetch(tags) }

// Tell says that a member holds an object now.
func (t *Told) Tell(w *tier.Want, node Node) {
	tag, ok := t.names.Tag(w)
	if !ok {
		return
	}
	now := t.now()
	t.mu.Lock()
	defer t.mu.Unlock()
	next := maps.Clone(*t.latest.Load())
	for k, h := range next {
		if !now.Before(h.until) || len(next) >= maxTold && h.until.Sub(now) < toldTime/2 {
			delete(next, k)
		}
	}
	if len(next) >= maxTold {
		clear(next) // all of them within seconds
	}
	next[tag] = holder{node, now.Add(toldTime)}
	t.latest.Store(&next)
	t.n.Store(int32(len(next)))
}

// Holders implements Index.
func (t *Told) Holders(tag uint64, dst []Node) int {
	if t.n.Load() == 0 {
		return t.Index.Holders(tag, dst)
	}
	h, ok := (*t.latest.Load())[tag]
	if !ok || !t.now().Before(h.until) || len(dst) == 0 {
		return t.Index.Holders(tag, dst)
	}
	dst[0] = h.node
	n := t.Index.Holders(tag, dst[1:])
	for i := range min(n, len(dst)-1) {
		if dst[1+i] == h.node { // once is enough
			copy(dst[1+i:], dst[2+i:min(n+1, len(dst))])
			return n
		}
	}
	return n + 1
}
