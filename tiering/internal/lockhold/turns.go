package lockhold

import (
	"runtime"
	"syscall"
	"time"
)

// Turns are those of an operation that takes a lock many times, a few rows each, and
// lets others have it in between.
//
// That is not enough where all processors are busy: whoever makes a request may be on
// the run queue of our processor, and Linux lets a thread run on to the next tick, 4 ms,
// before another one that was woken. So an operation that has become long also yields
// the processor while others use the lock: beside nobody else it would go to strangers
// who compute, for a whole slice.
type Turns struct {
	mu      *Mutex
	n       int
	uses    uint64    // of the lock, when we had it last
	others  bool      // used it since the turn before
	began   time.Time // zero in the first few turns, which ask no clock
	lately  time.Time // when others were seen to use it
	gaveWay time.Time
}

const (
	shortTurns  = 8                      // as many are no long operation
	longFrom    = 250 * time.Microsecond // nor is what ends in this time after them
	yieldEvery  = 15 * time.Microsecond  // a yield costs one when there is nobody
	othersWhile = 5 * time.Millisecond   // others count after a use; longer than they wait at worst
)

// Turns begins an operation.
func (m *Mutex) Turns() Turns { return Turns{mu: m} }

// Each calls f for 0 to n-1 under the lock, with at most rows of them a turn.
func (m *Mutex) Each(n, rows int, f func(i int)) {
	t := m.Turns()
	for i := 0; i < n; {
		t.Lock()
		for end := min(i+rows, n); i < end; i++ {
			f(i)
		}
		t.Unlock()
	}
}

// Lock takes the lock; from the second time on, whoever waits for it has it first.
func (t *Turns) Lock() {
	if t.n > 0 {
		t.giveWay()
	}
	t.mu.Lock()
	t.others = t.n > 0 && t.mu.uses > t.uses+1
	t.uses = t.mu.uses
	t.n++
}

// Unlock lets go of it.
func (t *Turns) Unlock() { t.mu.Unlock() }

func (t *Turns) giveWay() {
	runtime.Gosched()
	if t.n < shortTurns {
		return
	}
	now := time.Now()
	if t.began.IsZero() {
		t.began = now
	}
	if t.others {
		t.lately = now
	}
	if now.Sub(t.began) < longFrom || now.Sub(t.gaveWay) < yieldEvery || now.Sub(t.lately) > othersWhile {
		return
	}
	_, _, _ = syscall.Syscall(syscall.SYS_SCHED_YIELD, 0, 0, 0) // never fails
	t.gaveWay = time.Now()
}
