package link

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// errStalled is the error of calls to a daemon that has stopped answering.
var errStalled = fmt.Errorf("the daemon has stopped answering: %w", ErrUnavailable)

// If StallCalls calls in a row get no answer and no other frame arrives, the daemon counts as
// stalled. Further calls then fail at once instead of waiting for their timeout, until any frame
// arrives, which may be a late reply. If no reply is outstanding, no frame would ever arrive;
// one call per stallProbe is therefore sent nevertheless, as a probe.
const (
	StallCalls = 3           // fewer could be chance (a guess)
	stallProbe = time.Second // bounds how long calls miss after the daemon has recovered
)

// stall detects a daemon that is connected but silent.
type stall struct {
	frames atomic.Uint64 // received so far
	on     atomic.Bool
	probe  atomic.Int64 // when the next probe is allowed, Unix nanoseconds

	mu struct {
		sync.Mutex
		frames uint64 // value of stall.frames when the first call of late was counted
		late   int
	}
}

// heard records a frame.
func (s *stall) heard() {
	s.frames.Add(1)
	if s.on.Load() {
		s.on.Store(false)
	}
}

// missed records a call without an answer.
func (s *stall) missed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.frames.Load()
	if now != s.mu.frames {
		s.mu.frames, s.mu.late = now, 0
	}
	if s.mu.late++; s.mu.late < StallCalls || s.on.Load() {
		return
	}
	s.probe.Store(time.Now().Add(stallProbe).UnixNano())
	s.on.Store(true)
	if s.frames.Load() != now {
		s.on.Store(false) // heard ran between the load of now and the store of on
	}
}

// refuses reports whether a call should fail without being sent.
func (s *stall) refuses() bool {
	if !s.on.Load() {
		return false
	}
	now := time.Now().UnixNano()
	at := s.probe.Load()
	return now < at || !s.probe.CompareAndSwap(at, now+int64(stallProbe))
}
