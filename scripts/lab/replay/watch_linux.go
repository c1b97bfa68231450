package replay

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// watch measures the CPU time of a piece of work, independent of other load.
type watch struct{ began time.Duration }

// startWatch starts a watch. It locks the goroutine to its thread until stop.
func startWatch() watch {
	runtime.LockOSThread()
	return watch{threadTime()}
}

func (w watch) stop() time.Duration {
	defer runtime.UnlockOSThread()
	return threadTime() - w.began
}

func threadTime() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}
