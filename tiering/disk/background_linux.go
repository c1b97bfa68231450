package disk

import (
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// background is threads for work that nobody should wait behind: digests and
// coding of what goes to the disk or comes from it. Their scheduling class is
// SCHED_IDLE where the kernel allows it. A thread of the usual class that wakes up,
// because a request came, takes the core of such a thread at once; that of a usual
// one it gets when the slice runs out, and a digest of 1 MiB is well within a slice.
//
// What runs there takes no lock and allocates next to nothing: somebody who waited
// for it would wait for a thread that the kernel runs last.
type background struct {
	jobs    chan job
	over    chan struct{}
	threads sync.WaitGroup
}

// job is one piece of work; done is closed after it.
type job struct {
	do   func()
	done chan struct{}
}

// backgroundThreads leaves half of the runtime's places free: a thread that the
// kernel does not run keeps its place, and others need one to answer requests.
func backgroundThreads(workers int) int {
	return max(min(runtime.GOMAXPROCS(0)/2, 2*workers), 1)
}

func startBackground(threads int) *background {
	b := &background{jobs: make(chan job), over: make(chan struct{})}
	for range threads {
		b.threads.Go(b.serve)
	}
	return b
}

// end lets threads finish what they have begun, and waits for them. Work that
// comes later is done by who brings it.
func (b *background) end() {
	close(b.over)
	b.threads.Wait()
}

// serve does work until the end. The thread is never unlocked, so that it dies with
// the goroutine instead of serving others in its class.
func (b *background) serve() {
	runtime.LockOSThread()
	beIdle()
	for {
		select {
		case j := <-b.jobs:
			j.do()
			close(j.done)
		case <-b.over:
			return
		}
	}
}

// beIdle puts the calling thread into the class that runs when no other wants to.
// A kernel or a sandbox that refuses leaves it in the usual one.
func beIdle() {
	attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE}
	switch os.Getenv("XPOL") {
	case "none":
		return
	case "slice":
		attr.Policy = 0
		attr.Runtime = 100e6
	case "batch":
		attr.Policy = 3
		attr.Runtime = 100e6
	}
	_ = unix.SchedSetAttr(0, &attr, 0)
}

// run does f on a thread of the background and returns when it is done: in the
// caller where there is no background, or none any more.
func (b *background) run(f func()) {
	if b == nil {
		f()
		return
	}
	j := job{f, make(chan struct{})}
	select {
	case b.jobs <- j:
		<-j.done
	case <-b.over:
		f()
	}
}
