package settings

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What does not fit is cut, and said, and nothing else changes.
func TestAmountsAreRounded(t *testing.T) {
	for want, b := range map[string]Bytes{"15.8GiB": 16556160 * KiB, "808.4MiB": 827776 * KiB, "18GiB": 18 * GiB, "0B": 0, "1023B": 1023, "1.5TiB": 1536 * GiB} {
		if got := b.Rounded(); got != want {
			t.Errorf("%v: %s, want %s", b, got, want)
		}
	}
}

func TestAConfigurationIsCutToTheMachine(t *testing.T) {
	for name, test := range map[string]struct {
		machine        Machine
		change         func(*Config)
		arena, private Bytes
		connections    int
		says           []string
	}{
		"all fits":            {Machine{MemoryBytes: 64 * GiB, Threads: 1000, CPUs: 2}, nil, 4 * GiB, 2 * GiB, 128, nil},
		"nothing is known":    {Machine{CPUs: 2}, func(c *Config) { c.Arena, c.Private = 48*GiB, 16*GiB }, 48 * GiB, 16 * GiB, 128, nil},
		"as much as there is": {Machine{MemoryBytes: 64 * GiB, CPUs: 2}, func(c *Config) { c.Arena, c.Private = 48*GiB, 16*GiB }, 48 * GiB, 16 * GiB, 128, nil},
		"pools too large": {Machine{MemoryBytes: 32 * GiB, CPUs: 2}, func(c *Config) { c.Arena, c.Private = 48*GiB, 16*GiB }, 18 * GiB, 6 * GiB, 128,
			[]string{"memory: arena 48GiB and private 16GiB exceed the 32GiB available to this process: reduced to 18GiB and 6GiB"}},
		"a pool to nothing": {Machine{MemoryBytes: GiB, CPUs: 2}, func(c *Config) { c.Arena, c.Private, c.PageBytes = TiB, 64*KiB, 64*KiB }, 768*MiB - 64*KiB, 64 * KiB, 128,
			[]string{"memory: arena 1TiB"}},
		"few threads": {Machine{MemoryBytes: 64 * GiB, Threads: 100, CPUs: 2}, nil, 4 * GiB, 2 * GiB, 39,
			[]string{"connections: 128 connections may need more than the 100 threads"}},
		"hardly any": {Machine{MemoryBytes: 64 * GiB, Threads: 10, CPUs: 2}, nil, 4 * GiB, 2 * GiB, 1, []string{"connections: 128"}},
		"few threads and a disk": {Machine{MemoryBytes: 64 * GiB, Threads: 100, CPUs: 2}, func(c *Config) { c.Disk, c.DiskWorkers = "/d", 10 }, 4 * GiB, 2 * GiB, 29,
			[]string{"connections: 128"}},
		"few descriptors": {Machine{MemoryBytes: 64 * GiB, Descriptors: 256, CPUs: 2}, nil, 4 * GiB, 2 * GiB, 86,
			[]string{"connections: 128 connections may need more than the 256 descriptors that this process may have (RLIMIT_NOFILE, which should be at least 368): reduced to 86"}},
		"hardly any descriptors and a disk": {Machine{MemoryBytes: 64 * GiB, Descriptors: 64, CPUs: 2}, func(c *Config) { c.Disk = "/d" }, 4 * GiB, 2 * GiB, 1,
			[]string{"connections: 128"}},
		"more threads than descriptors": {Machine{MemoryBytes: 64 * GiB, Threads: 200, Descriptors: 128, CPUs: 2}, nil, 4 * GiB, 2 * GiB, 33,
			[]string{"connections: 128 connections may need more than the 128 descriptors"}},
		"enough descriptors": {Machine{MemoryBytes: 64 * GiB, Descriptors: 368, CPUs: 2}, nil, 4 * GiB, 2 * GiB, 128, nil},
		"fewer asked for":    {Machine{MemoryBytes: 64 * GiB, Threads: 100, CPUs: 2}, func(c *Config) { c.MaxConnections = 39 }, 4 * GiB, 2 * GiB, 39, nil},
	} {
		c := Default()
		c.Node = "n"
		if test.change != nil {
			test.change(&c)
		}
		c.Resolve(test.machine)
		if err := c.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		short := c.Fit(test.machine)
		if c.Arena != test.arena || c.Private != test.private || c.MaxConnections != test.connections {
			t.Errorf("%s: arena %v, private %v, %d connections; want %v, %v and %d", name, c.Arena, c.Private, c.MaxConnections, test.arena, test.private, test.connections)
		}
		if len(short) != len(test.says) {
			t.Errorf("%s: says %v, want %q", name, short, test.says)
			continue
		}
		for i, s := range short {
			if text := s.Check + ": " + s.Text; !strings.HasPrefix(text, test.says[i]) {
				t.Errorf("%s: says %q, want %q", name, text, test.says[i])
			}
		}
		if again := c.Fit(test.machine); len(again) > 0 {
			t.Errorf("%s: what was cut is cut again: %v", name, again)
		}
	}
}

// Groups above ours bound us too, and what others in them use is theirs.
func TestThreadsAreThoseOfTheFullestGroup(t *testing.T) {
	for name, test := range map[string]struct {
		groups map[string]string // of pids.max and pids.current
		own    string            // /proc/self/cgroup
		want   int
	}{
		"none":               {nil, "0::/\n", 0},
		"no bound":           {map[string]string{"sys/fs/cgroup/a": "max 7"}, "0::/a\n", 0},
		"version 2":          {map[string]string{"sys/fs/cgroup/a": "100 10"}, "0::/a\n", 95},
		"version 1":          {map[string]string{"sys/fs/cgroup/pids/a": "100 10"}, "8:pids:/a\n0::/\n", 95},
		"a fuller parent":    {map[string]string{"sys/fs/cgroup/a": "1000 900", "sys/fs/cgroup/a/b": "max 5", "sys/fs/cgroup/a/b/c": "300 5"}, "0::/a/b/c\n", 105},
		"full":               {map[string]string{"sys/fs/cgroup/a": "10 20"}, "0::/a\n", 1},
		"a path of the host": {map[string]string{"sys/fs/cgroup": "50 5"}, "0::/kubepods/x\n", 50},
	} {
		root := t.TempDir()
		write := filesBelow(t, root)
		write("proc/self/cgroup", test.own)
		write(fmt.Sprintf("proc/%d/status", os.Getpid()), "Name:\tspliced\nUid:\t0\t0\t0\t0\nThreads:\t5\n")
		write("proc/999999/status", "Name:\tother\nUid:\t0\t0\t0\t0\nThreads:\t3\n")
		for dir, both := range test.groups {
			most, now, _ := strings.Cut(both, " ")
			write(filepath.Join(dir, "pids.max"), most+"\n")
			write(filepath.Join(dir, "pids.current"), now+"\n")
		}
		if got := threadLimit(root, 0, 1000); got != test.want {
			t.Errorf("%s: %d threads, want %d", name, got, test.want)
		}
	}
}

// RLIMIT_NPROC counts the threads of a user. Every process is read only where the limit is
// near: with thousands of them that takes longer than the rest of the start.
func TestThreadsOfOtherProcessesAreReadOnlyNearTheLimit(t *testing.T) {
	root, uid := t.TempDir(), os.Getuid()
	write := filesBelow(t, root)
	write("proc/self/cgroup", "0::/\n")
	write("proc/loadavg", "0.20 0.18 0.12 1/80 11206\n")
	write(fmt.Sprintf("proc/%d/status", os.Getpid()), "Name:\tspliced\nThreads:\t5\n")
	write("proc/999999/status", "Name:\tother\nThreads:\t3\n")
	user := max(1, uid)
	if user != uid {
		must(t, os.Chown(filepath.Join(root, "proc/999999"), user, -1))
	}
	for name, test := range map[string]struct {
		uid   int
		nproc uint64
		want  int
	}{
		"root":              {0, 100, 0},
		"no limit":          {user, math.MaxUint64, 0},
		"a limit far away":  {user, 95_000, 95_000 - 80},
		"a limit not far":   {user, 1000, 997},
		"another user":      {user + 1, 1000, 1000},
		"at the limit":      {user, 3, 1},
		"beyond this limit": {user, 2, 1},
	} {
		if got := threadLimit(root, test.uid, test.nproc); got != test.want {
			t.Errorf("%s: %d threads, want %d", name, got, test.want)
		}
	}
	write("proc/999999/status", "Name:\tother\nThreads:\t300\n")
	if got := threadLimit(root, user, 95_000); got != 95_000-80 {
		t.Errorf("a limit far away: %d threads, want %d without a look at other processes", got, 95_000-80)
	}
}

// The heap has half of what the pools leave of the memory, and never too little to work.
func TestTheHeapHasALimit(t *testing.T) {
	for _, test := range []struct{ memory, arena, want Bytes }{
		{0, GiB, 0}, {8 * GiB, 2 * GiB, 2*GiB + 512*MiB}, {GiB, GiB, leastHeap}, {512 * MiB, 128 * MiB, leastHeap},
	} {
		c := Config{Arena: test.arena, Private: GiB}
		if got := c.HeapLimit(Machine{MemoryBytes: test.memory}); got != test.want {
			t.Errorf("memory %v, arena %v: %v, want %v", test.memory, test.arena, got, test.want)
		}
	}
}

// filesBelow returns a function that writes files, and their directories, below a root.
func filesBelow(t *testing.T, root string) func(path, text string) {
	return func(path, text string) {
		t.Helper()
		path = filepath.Join(root, path)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, []byte(text), 0o600))
	}
}
