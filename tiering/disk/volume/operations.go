package volume

import (
	"sync"
	"sync/atomic"
	"time"
)

// StallAfter is the duration after which a running disk operation counts as hanging. An
// operation is at most a MiB read, one object written, one slab created, one batch of
// rows or one sync. It takes seconds only if a disk is about to fail, or a network below
// it is down. Linux itself aborts a command after 30 seconds and then retries it. With a
// shorter limit, a disk that works off its queue of 256 MiB at 50 MB/s would count as
// dead.
const StallAfter = 5 * time.Second

// Operations tracks the running operations of one direction, oldest first. Its lock is
// held for a few instructions, inside all others.
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

// Begin counts an operation until end is called.
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

// Stalled returns the age of the oldest operation once it has reached StallAfter, else 0.
// While none is running it does not read the clock.
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
