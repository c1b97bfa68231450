package settings

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

// Machine is what defaults and bounds are derived from.
type Machine struct {
	MemoryBytes Bytes  // what this process may use; 0 = unknown, then nothing is checked against it
	CPUs        int    // that Go schedules on
	UID         int    // effective
	RuntimeDir  string // $XDG_RUNTIME_DIR; empty = none
	Host        string
}

// DetectMachine reads the machine that we run on.
func DetectMachine() Machine {
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	return Machine{
		MemoryBytes: memoryLimit("/"),
		CPUs:        runtime.GOMAXPROCS(0),
		UID:         os.Geteuid(),
		RuntimeDir:  os.Getenv("XDG_RUNTIME_DIR"),
		Host:        host,
	}
}

// memoryLimit is the least of MemAvailable and the limits of our cgroup and all
// its parents (version 2 and 1). root is "/" outside of tests.
func memoryLimit(root string) Bytes {
	least := meminfo(filepath.Join(root, "proc/meminfo"), "MemAvailable:")
	groups, _ := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	for line := range strings.Lines(string(groups)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 {
			continue
		}
		mount, file := "sys/fs/cgroup", "memory.max"
		switch {
		case fields[0] == "0" && fields[1] == "":
		case strings.Contains(","+fields[1]+",", ",memory,"):
			mount, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		default:
			continue
		}
		least = lesser(least, groupLimit(filepath.Join(root, mount), fields[2], file))
	}
	return least
}

// groupLimit walks from the group to the root of the mount. In a container the
// path may be one of the host's, which does not exist here: then only the
// parents that do exist, the mount's root among them, have a say.
func groupLimit(mount, group, file string) Bytes {
	least := Bytes(0)
	for dir := filepath.Clean("/" + group); ; dir = filepath.Dir(dir) {
		text, err := os.ReadFile(filepath.Join(mount, dir, file))
		if n, bad := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64); err == nil && bad == nil {
			least = lesser(least, Bytes(n))
		}
		if dir == "/" {
			return least
		}
	}
}

// lesser treats 0, and version 1's "no limit" (about 2^63), as unknown.
func lesser(a, b Bytes) Bytes {
	if b <= 0 || b > math.MaxInt64/2 {
		return a
	}
	if a <= 0 || b < a {
		return b
	}
	return a
}

func meminfo(path, key string) Bytes {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) >= 2 && fields[0] == key {
			kib, _ := strconv.ParseInt(fields[1], 10, 64)
			return Bytes(kib) * KiB
		}
	}
	return 0
}
