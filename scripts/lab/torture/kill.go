package torture

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// event is a step of a worker at which a daemon may be killed.
type event uint8

const (
	atTime       event = iota // no event: the daemon is killed some time after the start of the round
	inFill                    // half of an item is written
	afterAck                  // a reply has just arrived
	afterRead                 // a read was requested, which may promote and evict
	afterRemoval              // a removal was requested
	events
)

// Bounds of the random moment of a kill.
const (
	earliest = 20 * time.Millisecond
	latest   = 900 * time.Millisecond
	jitter   = 1500 * time.Microsecond // largest delay after an event; the requested work takes about this long
)

// turns is the largest number of events before a kill: about as many as occur in one round.
var turns = [events]int64{inFill: 800, afterAck: 120, afterRead: 120, afterRemoval: 12}

// moment is the time of a kill: the time delay after the n-th event of a kind. If this event
// does not occur in time, the kill happens when the time limit has passed since the start of the
// round.
type moment struct {
	event event
	n     int64
	delay time.Duration
	limit time.Duration
}

func drawMoment(rng *rand.Rand) moment {
	m := moment{event: event(rng.IntN(int(events))), limit: earliest + time.Duration(rng.Int64N(int64(latest-earliest)))}
	if m.event != atTime {
		m.n = 1 + rng.Int64N(turns[m.event])
		m.delay = time.Duration(rng.Int64N(int64(jitter)))
		m.limit = latest
	}
	return m
}

func (m moment) String() string {
	what := [...]string{atTime: "", inFill: "run of bytes", afterAck: "reply", afterRead: "read", afterRemoval: "removal"}[m.event]
	if m.event == atTime {
		return fmt.Sprintf("after %d ms", m.limit.Milliseconds())
	}
	return fmt.Sprintf("%s %d + %d µs", what, m.n, m.delay.Microseconds())
}

// fuse calls kill once, at its moment.
type fuse struct {
	moment moment
	kill   func()
	count  [events]atomic.Int64
	once   sync.Once
	lit    chan struct{} // closed just before the kill
	burnt  chan struct{} // closed after the kill
}

// light returns a fuse and starts its clock.
func light(m moment, kill func()) *fuse {
	f := &fuse{moment: m, kill: kill, lit: make(chan struct{}), burnt: make(chan struct{})}
	time.AfterFunc(m.limit, f.blow) // does nothing if it has already blown
	return f
}

// blow calls kill at once.
func (f *fuse) blow() {
	f.once.Do(func() {
		close(f.lit)
		f.kill()
		close(f.burnt)
	})
}

// at counts an event.
func (f *fuse) at(e event) {
	if f.count[e].Add(1) == f.moment.n && e == f.moment.event {
		time.AfterFunc(f.moment.delay, f.blow)
	}
}

// over reports whether the kill has begun: from then on errors of workers are expected.
func (f *fuse) over() bool {
	select {
	case <-f.lit:
		return true
	default:
		return false
	}
}

// out waits until the kill has ended. If the workers ended before the moment, it kills now.
func (f *fuse) out() {
	f.blow()
	<-f.burnt
}
