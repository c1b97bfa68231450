package settings

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Machine is what defaults and bounds are derived from.
type Machine struct {
	MemoryBytes Bytes  // what this process may use; 0 = unknown, then nothing is checked against it
	Threads     int    // that this process may have; 0 = unknown, then nothing is checked against it
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
		Threads:     threadLimit("/", os.Getuid()),
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
	eachGroup(root, "memory", func(dir string, v2 bool) {
		file := "memory.limit_in_bytes"
		if v2 {
			file = "memory.max"
		}
		if n, ok := number(filepath.Join(dir, file)); ok {
			least = lesser(least, Bytes(n))
		}
	})
	return least
}

// threadLimit is how many threads we may have: by our cgroup and its parents, whose
// other members keep theirs, and by RLIMIT_NPROC, which does not hold for root. 0 =
// unknown.
func threadLimit(root string, uid int) int {
	own, others := threads(root, uid)
	least := 0
	lower := func(n int64) {
		if n = max(n, 1); least == 0 || n < int64(least) {
			least = int(n)
		}
	}
	eachGroup(root, "pids", func(dir string, _ bool) {
		most, bounded := number(filepath.Join(dir, "pids.max"))
		now, known := number(filepath.Join(dir, "pids.current"))
		if bounded && known {
			lower(most - now + int64(own))
		}
	})
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NPROC, &limit) == nil && uid != 0 && limit.Cur < math.MaxInt32 {
		lower(int64(limit.Cur) - int64(others))
	}
	return least
}

// threads counts ours, and those of other processes of a user as far as they are seen
// from here.
func threads(root string, uid int) (own, others int) {
	statuses, _ := filepath.Glob(filepath.Join(root, "proc/[0-9]*/status"))
	self := filepath.Join(root, "proc", strconv.Itoa(os.Getpid()), "status")
	for _, path := range statuses {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		n, of := 0, -1
		for line := range strings.Lines(string(text)) {
			switch fields := strings.Fields(line); {
			case len(fields) > 1 && fields[0] == "Threads:":
				n, _ = strconv.Atoi(fields[1])
			case len(fields) > 1 && fields[0] == "Uid:":
				of, _ = strconv.Atoi(fields[1])
			}
		}
		switch {
		case path == self:
			own = n
		case of == uid:
			others += n
		}
	}
	return own, others
}

// eachGroup calls f with the directories of our group and its parents that have a
// controller. In a container the path may be one of the host's, which does not exist
// here: then only the parents that do exist, the mount's root among them, have a say.
func eachGroup(root, controller string, f func(dir string, v2 bool)) {
	groups, _ := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	for line := range strings.Lines(string(groups)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 {
			continue
		}
		v2 := fields[0] == "0" && fields[1] == ""
		mount := filepath.Join(root, "sys/fs/cgroup")
		switch {
		case v2:
		case strings.Contains(","+fields[1]+",", ","+controller+","):
			mount = filepath.Join(mount, controller)
		default:
			continue
		}
		for dir := filepath.Clean("/" + fields[2]); ; dir = filepath.Dir(dir) {
			f(filepath.Join(mount, dir), v2)
			if dir == "/" {
				break
			}
		}
	}
}

// number reads a file with one; false for none, or "max".
func number(path string) (int64, bool) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64)
	return n, err == nil
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
