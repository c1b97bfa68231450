package daemon

import (
	"sync"
	"sync/atomic"
	"time"
)

// learnTime is the time after a member's arrival within which its set must arrive; then it
// is assumed not to send one: twice what 1,000 nodes take (simulated).
const learnTime = time.Minute

// learning tracks the members whose sets have not been read completely since they arrived.
// While there are any, a match does a remote lookup.
type learning struct {
	now   func() time.Time
	until atomic.Int64 // unix nanoseconds; 0 = all sets are known

	mu      sync.Mutex
	missing map[uint16]struct{}
}

// yet reports whether missing sets may still arrive.
func (l *learning) yet() bool {
	until := l.until.Load()
	return until != 0 && l.now().UnixNano() < until
}

func (l *learning) joined(number uint16) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.missing == nil {
		l.missing = map[uint16]struct{}{}
	}
	l.missing[number] = struct{}{}
	l.until.Store(l.now().Add(learnTime).UnixNano())
}

// done records that a member's set is complete, or that it is gone.
func (l *learning) done(number uint16) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if delete(l.missing, number); len(l.missing) == 0 {
		l.until.Store(0)
	}
}
