package events

import (
	"sync"
	"time"
)

// Limits of snapshots and replays, which may contain everything published.
const (
	maxTurns  = 8           // connections that are sent to at once
	turnRate  = 1 << 20     // bytes per second that a connection must read to keep its turn while others wait
	turnGrace = time.Second // time before turnRate is enforced, and longest time without progress
	turnPoll  = 50 * time.Millisecond
)

// turns limit how many connections are sent snapshots or replays at once. If no turn is free, the
// method take closes the connection that is furthest behind, unless all keep up. The connection
// that needs a turn tries again until it gets one. So a client that does not read delays other
// clients by about turnGrace.
type turns struct {
	mu   sync.Mutex
	held map[*turn]struct{}
}

type turn struct {
	wire  *wire
	begun time.Time // start of sending; zero = nothing was ready to send, so that the client is not behind
	base  int64     // bytes sent on the connection before this turn
}

// behind returns how late a connection is: the time by which it lags behind a client that reads
// turnRate, or the time since its last progress if that is more, minus turnGrace. 0 or less means
// that it keeps up.
func (t *turn) behind(now time.Time) time.Duration {
	if t.begun.IsZero() {
		return 0
	}
	rate := time.Duration(float64(t.wire.sent.Load()-t.base) / turnRate * float64(time.Second))
	return max(now.Sub(t.begun)-rate, now.Sub(time.Unix(0, max(t.wire.last.Load(), t.begun.UnixNano())))) - turnGrace
}

// take returns a turn for a connection; nil = none is free. Sending begins with start.
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
		slowest.wire.Close() // this ends the connection and its turn
	}
	return nil
}

// start records that sending begins, so that from now on the client must read.
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
