package daemon

import (
	"sync"
	"sync/atomic"
	"time"
)

// learnTime is the longest time that this node waits for the complete set of names of a member
// that has joined. It is twice the time that 1,000 nodes take (simulated). After that time, matches
// no longer wait for sets that are still missing.
const learnTime = time.Minute

// learning tracks the members whose set of names has not been received completely since they
// joined. While some are missing, a match does a remote lookup.
type learning struct {
	now   func() time.Time
	until atomic.Int64 // end of the wait in unix nanoseconds; 0 = all sets are known

	mu      sync.Mutex
	missing map[uint16]struct{}
}

// yet reports whether sets are missing that may still arrive.
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

// done records that a member's set is complete, or that the member is gone.
func (l *learning) done(number uint16) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if delete(l.missing, number); len(l.missing) == 0 {
		l.until.Store(0)
	}
}
