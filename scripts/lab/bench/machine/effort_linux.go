package machine

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Effort is the cost of processes so far, in finer units than Usage.
type Effort struct {
	CPU      float64 // seconds, user and system
	Switches float64 // context switches, of live threads
}

// Since returns the difference between e and the earlier measurement before.
func (e Effort) Since(before Effort) Effort {
	return Effort{CPU: e.CPU - before.CPU, Switches: e.Switches - before.Switches}
}

// Plus returns the sum of both.
func (e Effort) Plus(other Effort) Effort {
	return Effort{CPU: e.CPU + other.CPU, Switches: e.Switches + other.Switches}
}

// EffortOf returns the effort of one process of ours.
func EffortOf(pid int) (Effort, error) {
	const schedulerClock = 2 // CPUCLOCK_SCHED, of all threads: /proc counts in ticks of 10 ms
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|schedulerClock), &t); err != nil {
		return Effort{}, fmt.Errorf("processor time of process %d: %w", pid, err)
	}
	e := Effort{CPU: float64(t.Nano()) / 1e9}
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil {
		return Effort{}, err
	}
	for _, path := range threads {
		if text, err := os.ReadFile(path); err == nil { // an error means that it has ended
			e.Switches += switches(string(text))
		}
	}
	return e, nil
}

// switches reads /proc/PID/task/TID/status.
func switches(status string) (sum float64) {
	for line := range strings.Lines(status) {
		name, value, _ := strings.Cut(line, ":")
		if name == "voluntary_ctxt_switches" || name == "nonvoluntary_ctxt_switches" {
			n, _ := strconv.ParseFloat(strings.TrimSpace(value), 64)
			sum += n
		}
	}
	return sum
}
