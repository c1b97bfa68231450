package seqpacket

import (
	"runtime"
	"time"
)

// Pace keeps a goroutine that does little but blocking system calls on the
// scheduler's good side. Such a goroutine never gives its processor back of its own
// accord. After 10 ms Go's monitor therefore takes the processor away in
// every call that it finds blocked, and looks every 20 µs: three wake-ups of
// threads for each message, more than twice the processor time where 16 clients
// share two cores. Giving it back now and then, between two calls, avoids that.
//
// The zero value is ready. It is for one goroutine at a time.
type Pace struct {
	calls int
	since time.Time
}

const (
	paceCalls = 32                   // fewer are no load to speak of
	paceEvery = 5 * time.Millisecond // half of the monitor's patience
)

// Pace is called before each call that may block.
func (p *Pace) Pace() {
	if p.calls++; p.calls < paceCalls {
		return
	}
	if now := time.Now(); now.Sub(p.since) >= paceEvery {
		p.calls, p.since = 0, now
		runtime.Gosched()
	}
}
