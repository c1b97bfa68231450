package events

import (
	"sync"
	"time"
)

// Bounds of answers with everything published.
const (
	maxTurns  = 8           // sent at once
	turnRate  = 1 << 20     // bytes per second that keep a turn while others wait for one
	turnGrace = time.Second // before the rate is enforced, and the longest time without progress
	turnPoll  = 50 * time.Millisecond
)

// turns limit the connections that are sent everything published. A connection that waits
// for a turn ends the one furthest below turnRate, or without progress for longest, if any.
// So a client that does not read delays others by about turnGrace.
type turns struct {
	mu   sync.Mutex
	held map[*turn]struct{}
}

type turn struct {
	wire  *wire
	begun time.Time // start of sending; zero = nothing was ready to send, which is not the reader's fault
	base  int64     // bytes sent before
}

// behind returns how far the connection lags behind turnRate; 0 or less means that it keeps up.
func (t *turn) behind(now time.Time) time.Duration {
	if t.begun.IsZero() {
		return 0
	}
	rate := time.Duration(float64(t.wire.sent.Load()-t.base) / turnRate * float64(time.Second))
	return max(now.Sub(t.begun)-rate, now.Sub(time.Unix(0, max(t.wire.last.Load(), t.begun.UnixNano())))) - turnGrace
}

// take returns a turn for a connection, nil if none is free. Sending begins with start.
func (t *turns) take(w *wire, now time.Time) *turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.held) < maxTurns {
		if t.held == nil {
			t.held = map[*turn]struct{}{}
		}
		mine := &turn{wire: w}
		t.held[mine] = struct{}{}
		return mine
	}
	var slowest *turn
	var most time.Duration
	for other := range t.held {
		if behind := other.behind(now); behind > most {
			slowest, most = other, behind
		}
	}
	if slowest != nil {
		slowest.wire.Close() // this ends its turn
	}
	return nil
}

// start begins the time in which a turn's connection has to read what it is sent.
func (t *turns) start(mine *turn, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	mine.begun, mine.base = now, mine.wire.sent.Load()
}

func (t *turns) leave(mine *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.held, mine)
}
