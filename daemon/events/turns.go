package events

import (
	"sync"
	"time"
)

// Bounds of answers that are all that is told.
const (
	maxTurns  = 8           // that are sent at once
	turnRate  = 1 << 20     // bytes a second that keep a turn while somebody waits for one
	turnGrace = time.Second // before they count, and for which nothing may be taken
	turnPoll  = 50 * time.Millisecond
)

// turns are those of connections that are sent all that is told. Who waits for a turn ends
// the connection that is furthest behind turnRate, or has taken nothing for longest, if there
// is one that does: so whoever does not read keeps others waiting for about turnGrace.
type turns struct {
	mu   sync.Mutex
	held map[*turn]struct{}
}

type turn struct {
	wire  *wire
	begun time.Time // of sending; zero = what is sent is not there yet, which is no fault of the reader
	base  int64     // bytes that were sent before
}

// behind is how much too slowly the connection takes what it is sent; 0 and less is well.
func (t *turn) behind(now time.Time) time.Duration {
	if t.begun.IsZero() {
		return 0
	}
	rate := time.Duration(float64(t.wire.sent.Load()-t.base) / turnRate * float64(time.Second))
	return max(now.Sub(t.begun)-rate, now.Sub(time.Unix(0, max(t.wire.last.Load(), t.begun.UnixNano())))) - turnGrace
}

// take returns a turn for a connection, nil while there is none.
// Sending begins with start.
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
		slowest.wire.Close() // its turn ends with it
	}
	return nil
}

// start begins the time in which a turn's connection has to take what it is sent.
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
