package link

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// errStalled is what calls get from a daemon that has stopped answering.
var errStalled = fmt.Errorf("the daemon has stopped answering: %w", ErrUnavailable)

// After stallCalls calls in a row that got no answer while nothing at all came
// from the daemon, further ones fail at once instead of costing their time-out
// each. Any frame ends that. The replies that are outstanding would do; a call
// each stallProbe is let through all the same, in case they never come.
const (
	StallCalls = 3           // one may be bad luck (a guess)
	stallProbe = time.Second // bounds how long a miss may be needless
)

// stall watches for a daemon that is connected and silent.
type stall struct {
	frames atomic.Uint64 // received so far
	on     atomic.Bool
	probe  atomic.Int64 // when the next call may try, Unix nanoseconds

	mu struct {
		sync.Mutex
		frames uint64 // when the first of late came
		late   int
	}
}

// heard notes a frame.
func (s *stall) heard() {
	s.frames.Add(1)
	if s.on.Load() {
		s.on.Store(false)
	}
}

// missed notes a call without an answer.
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
		s.on.Store(false) // heard ran between the two
	}
}

// refuses reports whether a call should not even try.
func (s *stall) refuses() bool {
	if !s.on.Load() {
		return false
	}
	now := time.Now().UnixNano()
	at := s.probe.Load()
	return now < at || !s.probe.CompareAndSwap(at, now+int64(stallProbe))
}
