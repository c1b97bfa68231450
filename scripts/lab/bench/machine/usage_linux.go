package machine

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Usage is the resources that a process has used so far.
type Usage struct {
	CPU     float64 // seconds, user and system
	Written int64   // bytes sent to storage
}

// Since returns the difference between u and the earlier measurement before.
func (u Usage) Since(before Usage) Usage {
	return Usage{CPU: u.CPU - before.CPU, Written: u.Written - before.Written}
}

// CPUPerGB returns seconds of processor time per 10^9 bytes of payload.
func (u Usage) CPUPerGB(payload int64) float64 { return u.CPU / (float64(payload) / 1e9) }

// Amplification returns the bytes written per byte of payload.
func (u Usage) Amplification(payload int64) float64 { return float64(u.Written) / float64(payload) }

// OwnUsage returns the usage of this process. If the kernel does not count bytes, Written stays
// 0 and WritesCounted returns an error.
func OwnUsage() Usage {
	var r unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &r) // cannot fail for this process
	u := Usage{CPU: seconds(r.Utime) + seconds(r.Stime)}
	if text, err := os.ReadFile("/proc/self/io"); err == nil {
		u.Written, _ = writeBytes(string(text))
	}
	return u
}

func seconds(t unix.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }

// UsageOf returns the usage of another process of ours.
func UsageOf(pid int) (Usage, error) {
	dir := fmt.Sprintf("/proc/%d/", pid)
	text, err := os.ReadFile(dir + "io")
	if err != nil {
		return Usage{}, err
	}
	var u Usage
	if u.Written, err = writeBytes(string(text)); err != nil {
		return Usage{}, err
	}
	stat, err := os.ReadFile(dir + "stat")
	if err != nil {
		return Usage{}, err
	}
	u.CPU, err = cpuSeconds(string(stat))
	return u, err
}

// WritesCounted returns an error that says why the kernel does not report write_bytes, or nil if
// it does.
func WritesCounted() error {
	text, err := os.ReadFile("/proc/self/io")
	if err != nil {
		return fmt.Errorf("the kernel keeps no account of bytes written: %w", err)
	}
	_, err = writeBytes(string(text))
	return err
}

// writeBytes reads /proc/PID/io: the bytes that the process caused to be sent to storage,
// by direct writes and dirtied pages.
func writeBytes(text string) (int64, error) {
	for line := range strings.Lines(text) {
		var n int64
		if got, _ := fmt.Sscanf(line, "write_bytes: %d", &n); got == 1 {
			return n, nil
		}
	}
	return 0, fmt.Errorf("no write_bytes in %q", text)
}

// clockTicks is the number of ticks per second; /proc reports times in ticks. It is the same on
// all architectures that Go supports.
const clockTicks = 100

// cpuSeconds reads /proc/PID/stat: user and system time, fields 14 and 15. The name in
// field 2 may contain anything, including parentheses.
func cpuSeconds(stat string) (float64, error) {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) < 13 {
		return 0, fmt.Errorf("no times in %q", stat)
	}
	var user, system int64
	if _, err := fmt.Sscan(fields[11]+" "+fields[12], &user, &system); err != nil {
		return 0, fmt.Errorf("times in %q: %w", stat, err)
	}
	return float64(user+system) / clockTicks, nil
}

// ThreadSeconds returns the CPU time of f on this thread, which the caller has locked.
func ThreadSeconds(f func()) (float64, error) {
	var begin, end unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &begin); err != nil {
		return 0, err
	}
	f()
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &end); err != nil {
		return 0, err
	}
	return float64(end.Nano()-begin.Nano()) / 1e9, nil
}
