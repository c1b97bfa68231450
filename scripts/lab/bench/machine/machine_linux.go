package machine

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// Describe returns the processor, its number of cores, memory, kernel and compiler.
func Describe() string {
	var u unix.Utsname
	release := "unknown kernel"
	if unix.Uname(&u) == nil {
		release = "Linux " + unix.ByteSliceToString(u.Release[:])
	}
	var info unix.Sysinfo_t
	memory := ""
	if unix.Sysinfo(&info) == nil {
		memory = fmt.Sprintf(", %.0f GiB", float64(info.Totalram)*float64(info.Unit)/(1<<30))
	}
	return fmt.Sprintf("%s, %d cores%s, %s, %s %s", processor(), runtime.NumCPU(), memory, release, runtime.Version(), runtime.GOARCH)
}

func processor() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return "unknown processor"
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if name, value, ok := strings.Cut(s.Text(), ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown processor"
}

// Resident is the resident memory of a process, in bytes.
type Resident struct {
	All     int64
	Private int64 // neither from a file nor shared
}

// ResidentOf reads the status of a process in /proc.
func ResidentOf(pid int) (r Resident, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return r, err
	}
	for line := range strings.Lines(string(text)) {
		var kib int64
		if n, _ := fmt.Sscanf(line, "VmRSS: %d kB", &kib); n == 1 {
			r.All = kib << 10
		}
		if n, _ := fmt.Sscanf(line, "RssAnon: %d kB", &kib); n == 1 {
			r.Private = kib << 10
		}
	}
	if r.All == 0 || r.Private == 0 {
		return r, fmt.Errorf("no VmRSS and RssAnon in /proc/%d/status", pid)
	}
	return r, nil
}
