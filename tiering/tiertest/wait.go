package tiertest

import (
	"os"
	"runtime"
	"testing"
	"time"
)

// Wait polls a condition for which there is no event. It returns false if the condition
// does not hold within patience.
func Wait(patience time.Duration, ok func() bool) bool {
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// Leaks checks that a test ends with no more goroutines and file descriptors than it began
// with. It must be called before any other cleanup is registered.
func Leaks(t testing.TB) {
	goroutines, descriptors := runtime.NumGoroutine(), openFiles(t)
	t.Cleanup(func() {
		if !Wait(10*time.Second, func() bool { return runtime.NumGoroutine() <= goroutines }) {
			buf := make([]byte, 1<<20)
			t.Errorf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), goroutines, buf[:runtime.Stack(buf, true)])
		}
		if n := openFiles(t); n > descriptors {
			t.Errorf("%d descriptors are open, %d before", n, descriptors)
		}
	})
}

func openFiles(t testing.TB) int {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skipf("descriptors cannot be counted here: %v", err)
	}
	return len(list)
}
