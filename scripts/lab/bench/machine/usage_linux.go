package machine

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Usage is what a process has used so far.
type Usage struct {
	CPU     float64 // seconds, user and system
	Written int64   // bytes sent to storage
}

// Since is what was used after before was taken.
func (u Usage) Since(before Usage) Usage {
	return Usage{CPU: u.CPU - before.CPU, Written: u.Written - before.Written}
}

// CPUPerGB is seconds of processor time for 10^9 bytes of payload.
func (u Usage) CPUPerGB(payload int64) float64 { return u.CPU / (float64(payload) / 1e9) }

// Amplification is bytes written for each byte of payload.
func (u Usage) Amplification(payload int64) float64 { return float64(u.Written) / float64(payload) }

// OwnUsage is that of this process. Where the kernel keeps no account of bytes,
// Written stays 0 and WritesCounted says so.
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

// UsageOf is that of another process of ours.
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

// WritesCounted reports why write_bytes cannot be had here.
func WritesCounted() error {
	text, err := os.ReadFile("/proc/self/io")
	if err != nil {
		return fmt.Errorf("the kernel keeps no account of bytes written: %w", err)
	}
	_, err = writeBytes(string(text))
	return err
}

// writeBytes reads /proc/PID/io: what the process caused to be sent to storage,
// direct writes and pages that it dirtied.
func writeBytes(text string) (int64, error) {
	for line := range strings.Lines(text) {
		var n int64
		if got, _ := fmt.Sscanf(line, "write_bytes: %d", &n); got == 1 {
			return n, nil
		}
	}
	return 0, fmt.Errorf("no write_bytes in %q", text)
}

// clockTicks a second is what Linux shows times in /proc in, on all
// architectures that Go runs on.
const clockTicks = 100

// cpuSeconds reads /proc/PID/stat: user and system time, fields 14 and 15. The
// name in field 2 may hold anything, parentheses too.
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

// ThreadSeconds is the CPU time that f takes on this thread, which the caller
// has locked.
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
