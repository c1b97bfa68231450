package volume

import (
	"sync"
	"sync/atomic"
	"time"
)

// StallAfter is the duration after which a running disk operation counts as hanging. The
// largest operations are a read of 1 MiB, a write of one object, the creation of a slab,
// a batch of rows and a sync. Each takes seconds only if the disk is about to fail, or if
// a network below it is down. Linux itself aborts a command after 30 seconds and then
// retries it. The limit is not shorter because a slow but healthy disk, which writes a
// queue of 256 MiB at 50 MB/s, would then count as hanging.
const StallAfter = 5 * time.Second

// Operations tracks the running reads, or the running writes, of a volume in a list, oldest
// first. Its lock is held for a few instructions only, and no other lock is taken under it.
type Operations struct {
	now     func() time.Time
	running atomic.Int32
	mu      sync.Mutex
	oldest  *operation
	newest  *operation
}

type operation struct {
	began        time.Time
	older, newer *operation
}

// Begin adds a running operation. The caller calls the returned function when the operation
// has ended.
func (o *Operations) Begin() (end func()) {
	p := &operation{began: o.now()}
	o.mu.Lock()
	defer o.mu.Unlock()
	if p.older = o.newest; p.older != nil {
		p.older.newer = p
	} else {
		o.oldest = p
	}
	o.newest = p
	o.running.Add(1)
	return func() { o.end(p) }
}

func (o *Operations) end(p *operation) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if p.older != nil {
		p.older.newer = p.newer
	} else {
		o.oldest = p.newer
	}
	if p.newer != nil {
		p.newer.older = p.older
	} else {
		o.newest = p.older
	}
	o.running.Add(-1)
}

// Stalled returns the age of the oldest running operation, or 0 if that is less than
// StallAfter. It reads the clock only if an operation is running.
func (o *Operations) Stalled() time.Duration {
	if o.running.Load() == 0 {
		return 0
	}
	o.mu.Lock()
	var age time.Duration
	if o.oldest != nil {
		age = o.now().Sub(o.oldest.began)
	}
	o.mu.Unlock()
	if age < StallAfter {
		return 0
	}
	return age
}
