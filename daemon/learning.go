package daemon

import (
	"sync"
	"sync/atomic"
	"time"
)

// learnTime is how long after a member's arrival its set may be missing before it is taken
// for one that does not tell it: twice what 1,000 nodes take (simulated).
const learnTime = time.Minute

// learning is which members' sets have not been read in whole since they came. While
// there are any, others are asked who holds what.
type learning struct {
	now   func() time.Time
	until atomic.Int64 // unix nanoseconds; 0 = all are known

	mu      sync.Mutex
	missing map[uint16]struct{}
}

// yet tells whether sets are missing that may still come.
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

// done notes that a member has told its set, or is gone.
func (l *learning) done(number uint16) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if delete(l.missing, number); len(l.missing) == 0 {
		l.until.Store(0)
	}
}
