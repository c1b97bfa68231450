package lockhold

import (
	"runtime"
	"syscall"
	"time"
)

// Turns is an operation that takes a lock many times, for a few rows each, so that other
// goroutines get the lock in between.
//
// Releasing the lock is not enough if all processors are busy. The thread of a waiting
// request may be in the run queue of the processor on which the operation runs, and Linux
// lets a running thread continue until the next tick, up to 4 ms later, before it runs a
// woken thread. A long operation therefore also yields the processor while others use the
// lock. It does not yield otherwise, since unrelated threads would then take the processor
// for a whole time slice.
type Turns struct {
	mu      *Mutex
	n       int
	uses    uint64    // the lock's uses when this operation last locked it
	others  bool      // others used the lock since the previous turn
	began   time.Time // zero in the first few turns, which do not read the clock
	lately  time.Time // when others were last seen to use the lock
	gaveWay time.Time
}

const (
	shortTurns  = 8                      // an operation with fewer turns is not long
	longFrom    = 250 * time.Microsecond // nor is an operation that ends within this time after its short turns
	yieldEvery  = 15 * time.Microsecond  // about the cost of a yield when no thread is waiting
	othersWhile = 5 * time.Millisecond   // yields continue for this long after a use by others; longer than the worst wait
)

// Turns starts an operation that takes the lock in turns.
func (m *Mutex) Turns() Turns { return Turns{mu: m} }

// Each calls f(0) to f(n-1) under the lock, at most as many calls per turn as rows says.
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

// Lock locks the mutex. From the second turn on, it first lets waiting goroutines lock it.
func (t *Turns) Lock() {
	if t.n > 0 {
		t.giveWay()
	}
	t.mu.Lock()
	t.others = t.n > 0 && t.mu.uses > t.uses+1
	t.uses = t.mu.uses
	t.n++
}

// Unlock unlocks the mutex.
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
