package seqpacket

import (
	"runtime"
	"time"
)

// Pace reduces the scheduling cost of a goroutine that does little but blocking system calls.
// Such a goroutine never yields its processor voluntarily. After 10 ms Go's monitor therefore
// looks every 20 µs and takes the processor (P) from the goroutine in each blocked call that it
// finds. That causes three thread wake-ups per message, and more than doubles the processor time
// when 16 clients share two cores. Yielding between two calls, every few milliseconds, avoids
// that.
//
// The zero value is ready. It is for one goroutine at a time.
type Pace struct {
	calls int
	since time.Time
}

const (
	paceCalls = 32                   // fewer are no significant load
	paceEvery = 5 * time.Millisecond // half of the monitor's 10 ms
)

// Pace yields if it is due. It is called before each call that may block.
func (p *Pace) Pace() {
	if p.calls++; p.calls < paceCalls {
		return
	}
	if now := time.Now(); now.Sub(p.since) >= paceEvery {
		p.calls, p.since = 0, now
		runtime.Gosched()
	}
}
