package tiering

import (
	"runtime"
	"syscall"
	"time"
)

// turns are those of a long operation, which lets others have the lock in between.
//
// That is not enough where all processors are busy: whoever makes a request may be on
// the run queue of our processor, and Linux lets a thread run on to the next tick, 4 ms,
// before another one that was woken. So we also yield the processor, while others use
// the store: beside nobody else it would go to strangers who compute, for a whole slice.
type turns struct {
	uses    uint64    // of the lock, when it was taken for the last turn
	others  time.Time // when others were seen to use it
	gaveWay time.Time
}

const (
	yieldEvery  = 15 * time.Microsecond // a yield costs one when there is nobody
	othersWhile = 5 * time.Millisecond  // others count after a use; longer than they wait at worst
)

// giveWay is called between two turns, with how often the lock was taken by the end of
// the last one.
func (t *turns) giveWay(uses uint64) {
	runtime.Gosched()
	now := time.Now()
	if uses > t.uses+1 {
		t.others = now
	}
	t.uses = uses
	if now.Sub(t.gaveWay) < yieldEvery || now.Sub(t.others) > othersWhile {
		return
	}
	_, _, _ = syscall.Syscall(syscall.SYS_SCHED_YIELD, 0, 0, 0) // never fails
	t.gaveWay = time.Now()
}
