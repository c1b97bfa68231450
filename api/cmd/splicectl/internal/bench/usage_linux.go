package bench

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// usage is what a process has used so far.
type usage struct {
	cpu     float64 // seconds, user and system
	written int64   // bytes sent to storage
}

func (u usage) since(before usage) usage {
	return usage{cpu: u.cpu - before.cpu, written: u.written - before.written}
}

// cpuPerGB is seconds of processor time for 10^9 bytes of payload.
func (u usage) cpuPerGB(payload int64) float64 { return u.cpu / (float64(payload) / 1e9) }

// amplification is bytes written for each byte of payload.
func (u usage) amplification(payload int64) float64 { return float64(u.written) / float64(payload) }

// ownUsage is that of this process. Where the kernel keeps no account of bytes,
// written stays 0 and writesCounted says so.
func ownUsage() usage {
	var r unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &r) // cannot fail for this process
	u := usage{cpu: seconds(r.Utime) + seconds(r.Stime)}
	if text, err := os.ReadFile("/proc/self/io"); err == nil {
		u.written, _ = writeBytes(string(text))
	}
	return u
}

func seconds(t unix.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }

// usageOf is that of another process of ours.
func usageOf(pid int) (usage, error) {
	dir := fmt.Sprintf("/proc/%d/", pid)
	text, err := os.ReadFile(dir + "io")
	if err != nil {
		return usage{}, err
	}
	var u usage
	if u.written, err = writeBytes(string(text)); err != nil {
		return usage{}, err
	}
	stat, err := os.ReadFile(dir + "stat")
	if err != nil {
		return usage{}, err
	}
	u.cpu, err = cpuSeconds(string(stat))
	return u, err
}

// writesCounted reports why write_bytes cannot be had here.
func writesCounted() error {
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
