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

// Machine describes the machine. Defaults and limits are derived from it.
type Machine struct {
	MemoryBytes Bytes  // available to this process; 0 = unknown, and nothing is checked against it
	Threads     int    // available to this process; 0 = unknown, and nothing is checked against it
	Descriptors int    // RLIMIT_NOFILE; 0 = unknown, and nothing is checked against it
	CPUs        int    // used by Go's scheduler
	UID         int    // effective user id
	RuntimeDir  string // $XDG_RUNTIME_DIR; "" = not set
	Host        string
}

// DetectMachine returns the current machine.
func DetectMachine() Machine {
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	return Machine{
		MemoryBytes: memoryLimit("/"),
		Threads:     threadLimit("/", os.Getuid(), processLimit()),
		Descriptors: DescriptorLimit(),
		CPUs:        runtime.GOMAXPROCS(0),
		UID:         os.Geteuid(),
		RuntimeDir:  os.Getenv("XDG_RUNTIME_DIR"),
		Host:        host,
	}
}

// memoryLimit returns the least of MemAvailable and the limits of this process's cgroup and its
// parents (versions 1 and 2), in bytes. root is "/" except in tests.
func memoryLimit(root string) Bytes {
	least := Bytes(numberAfter(filepath.Join(root, "proc/meminfo"), "MemAvailable:")) * KiB
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

// threadLimit returns how many threads this process may have; 0 = unknown. It is limited by nproc
// (RLIMIT_NPROC), which does not apply to root, and by the cgroup and its parents. Threads that
// other processes have now are subtracted.
func threadLimit(root string, uid int, nproc uint64) int {
	least := 0
	lower := func(n int64) {
		if n = max(n, 1); least == 0 || n < int64(least) {
			least = int(n)
		}
	}
	own := 0 // threads of this process, read when first needed; 0 = not yet
	eachGroup(root, "pids", func(dir string, _ bool) {
		most, bounded := number(filepath.Join(dir, "pids.max"))
		now, known := number(filepath.Join(dir, "pids.current"))
		if !bounded || !known {
			return
		}
		if own == 0 {
			own = threadsOf(root, strconv.Itoa(os.Getpid()))
		}
		lower(most - now + int64(own))
	})
	if uid == 0 || nproc >= math.MaxInt32 {
		return least
	}
	// One file has the number of all threads on the machine, which is at least the number of this
	// user's threads. Every process is examined only if that number comes near the limit: on a
	// machine with thousands of processes, examining them takes longer than the remaining start.
	if all, ok := allThreads(root); ok && int64(nproc)-int64(all) >= plentyThreads {
		lower(int64(nproc) - int64(all))
	} else {
		lower(int64(nproc) - int64(threadsOfOthers(root, uid)))
	}
	return least
}

// plentyThreads is more than any configuration needs: 4,096 connections, and 4,096 workers of each
// kind.
const plentyThreads = 32 << 10

// allThreads returns the number of threads on the machine. In loadavg, it is the number after the
// slash in the fourth field, as in "0.20 0.18 0.12 1/80 11206".
func allThreads(root string) (int, bool) {
	text, err := os.ReadFile(filepath.Join(root, "proc/loadavg"))
	fields := strings.Fields(string(text))
	if err != nil || len(fields) < 4 {
		return 0, false
	}
	_, all, _ := strings.Cut(fields[3], "/")
	n, err := strconv.Atoi(all)
	return n, err == nil
}

// threadsOfOthers counts the threads of the user's other visible processes. A process belongs to
// the owner of its directory in /proc.
func threadsOfOthers(root string, uid int) (n int) {
	processes, _ := filepath.Glob(filepath.Join(root, "proc/[0-9]*"))
	self := strconv.Itoa(os.Getpid())
	for _, dir := range processes {
		var info unix.Stat_t
		if pid := filepath.Base(dir); pid != self && unix.Stat(dir, &info) == nil && int(info.Uid) == uid {
			n += threadsOf(root, pid)
		}
	}
	return n
}

// threadsOf returns the number of threads of a process; 0 = it has ended.
func threadsOf(root, pid string) int {
	return int(numberAfter(filepath.Join(root, "proc", pid, "status"), "Threads:"))
}

// DescriptorLimit returns RLIMIT_NOFILE; 0 = unknown. The Go runtime has raised it to the hard
// limit.
func DescriptorLimit() int {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return 0
	}
	return int(min(limit.Cur, 1<<30))
}

// processLimit returns RLIMIT_NPROC.
func processLimit() uint64 {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NPROC, &limit) != nil {
		return unix.RLIM_INFINITY
	}
	return limit.Cur
}

// eachGroup calls f with the directories of this process's cgroup and its parents, for one
// controller. In a container, the cgroup's path may be one of the host, so that some of these
// directories do not exist in the container. f then finds limits only in those that exist; the root
// of the mount always exists.
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

// number reads a file that contains a number. It returns false if there is no number, for example
// for "max".
func number(path string) (int64, bool) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64)
	return n, err == nil
}

// lesser returns the lesser of two limits. It treats a limit as unknown if it is 0 or cgroup v1's
// "no limit" (about 2^63).
func lesser(a, b Bytes) Bytes {
	if b <= 0 || b > math.MaxInt64/2 {
		return a
	}
	if a <= 0 || b < a {
		return b
	}
	return a
}

// numberAfter returns the number after a word that begins a line of a file; 0 = there is none.
func numberAfter(path, word string) int64 {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) >= 2 && fields[0] == word {
			n, _ := strconv.ParseInt(fields[1], 10, 64)
			return n
		}
	}
	return 0
}
