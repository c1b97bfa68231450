package gpuipc

import (
	"math"
	"os"
	"path/filepath"
	"strings"
)

const cgroupRoot = "/sys/fs/cgroup"

// MemoryLimit returns the most bytes that this process may use: the smallest memory.max
// from its control group (version 2) up to the root, or the machine's memory if that is
// smaller. The second result is false if neither can be read.
func MemoryLimit() (int64, bool) {
	limit, known := int64(math.MaxInt64), false
	if kib, ok := memInfo("MemTotal:"); ok {
		limit, known = kib<<10, true
	}
	for _, dir := range cgroupDirs() {
		if n, ok := readNumber(filepath.Join(dir, "memory.max")); ok { // "max" is not a number
			limit, known = min(limit, n), true
		}
	}
	return limit, known
}

// cgroupRoom returns the smallest difference between limit and use over our control groups.
// It returns false if none of them has a limit.
func cgroupRoom(limitFile, useFile string) (room int64, limited bool) {
	room = math.MaxInt64
	for _, dir := range cgroupDirs() {
		if n, ok := readNumber(filepath.Join(dir, limitFile)); ok {
			used, _ := readNumber(filepath.Join(dir, useFile))
			room, limited = min(room, n-used), true
		}
	}
	return room, limited
}

// cgroupDirs returns the directories of our version 2 control group and of those above it.
// In a container with its own control group namespace, our group is the root, which has the
// container's limits.
func cgroupDirs() []string {
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(b)) {
		path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !ok {
			continue
		}
		var dirs []string
		for path = filepath.Clean("/" + path); path != "/"; path = filepath.Dir(path) {
			dirs = append(dirs, cgroupRoot+path)
		}
		return append(dirs, cgroupRoot)
	}
	return nil
}

// memInfo reads one line of /proc/meminfo, in KiB.
func memInfo(key string) (int64, bool) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) >= 2 && f[0] == key {
			var n int64
			for _, c := range f[1] {
				n = n*10 + int64(c-'0')
			}
			return n, true
		}
	}
	return 0, false
}
