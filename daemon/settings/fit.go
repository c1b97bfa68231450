package settings

import "fmt"

// Shortfall is a setting that exceeds what the machine provides. The daemon reports it and starts
// with less. If it refused to start when the machine has less free memory than the last time, the
// engine's pod would be down too.
type Shortfall struct {
	Check string // readiness check that reports it: memory or connections
	Text  string
}

// Fit reduces a validated configuration to what the machine provides.
func (c *Config) Fit(m Machine) []Shortfall {
	var short []Shortfall
	if s, ok := c.fitPools(m); ok {
		short = append(short, s)
	}
	if s, ok := c.fitConnections(m); ok {
		short = append(short, s)
	}
	return short
}

// fitPools reduces pools that exceed the memory to three quarters of the memory, and keeps their
// proportion. With larger pools, the kernel could kill the daemon or the engine at any time.
func (c *Config) fitPools(m Machine) (Shortfall, bool) {
	total := c.Arena + c.Private
	if m.MemoryBytes == 0 || total <= m.MemoryBytes {
		return Shortfall{}, false
	}
	arena, private := c.Arena, c.Private
	share := float64(m.MemoryBytes) / 4 * 3 / float64(total)
	c.Arena = max(c.PageBytes, roundDown(Bytes(float64(arena)*share), c.PageBytes))
	c.Private = max(c.PageBytes, roundDown(Bytes(float64(private)*share), c.PageBytes))
	return Shortfall{"memory", fmt.Sprintf("arena %v and private %v exceed the %v available to this process: reduced to %v and %v",
		arena, private, m.MemoryBytes.Rounded(), c.Arena.Rounded(), c.Private.Rounded())}, true
}

// leastHeap is a heap size that is enough on any machine.
const leastHeap = 128 * MiB

// HeapLimit returns a soft limit: the heap size in bytes above which the garbage collector should
// work harder; 0 = no limit, since the memory of the machine is unknown. The limit is half of the
// memory that the pools leave free, since the other half is for memory that clients write. If the
// heap is known to need more, the limit is that need.
func (c *Config) HeapLimit(m Machine) Bytes {
	if m.MemoryBytes == 0 {
		return 0
	}
	need := leastHeap
	if c.EventsBind.IsValid() {
		need += 2 * c.EventsMemory
	}
	return max(need, (m.MemoryBytes-c.Arena-c.Private)/2)
}

// Threads that the daemon may need. The Go runtime aborts if it cannot get one. Each connection
// needs one thread that receives and one that sends. threadsBeside is for everything else that is
// not counted separately, with a margin.
const (
	threadsOfConnection = 2
	threadsBeside       = 16
)

// Descriptors that are open before any client connects: measured, with a margin. A connection has
// its socket and its client's pidfd. Descriptors of mappings are closed after they are sent.
const (
	descriptorsOfConnection = 2
	descriptorsBeside       = 20
	descriptorsOfDisk       = 20
	descriptorsOfDevice     = 32
)

// ClientDescriptors returns how many descriptors of a process with the given limit are for clients
// and for what is open before any client connects. The remaining descriptors are for the disk's
// files and for admin connections.
func ClientDescriptors(limit int) int {
	return limit - max(limit/4, min(64, limit/3))
}

// fitConnections reduces the limit of connections to what the threads and descriptors allow.
func (c *Config) fitConnections(m Machine) (Shortfall, bool) {
	threads := threadsBeside + 2*m.CPUs + c.Workers + c.Devices()*c.Workers
	open := descriptorsBeside + c.Devices()*descriptorsOfDevice
	if c.Disk != "" {
		threads += 2 * c.DiskWorkers
		open += descriptorsOfDisk
	}
	wished, cause := c.MaxConnections, ""
	lower := func(most int, format string, a ...any) {
		if most = max(1, most); most < c.MaxConnections {
			c.MaxConnections, cause = most, fmt.Sprintf(format, a...)
		}
	}
	if m.Threads > 0 {
		lower((m.Threads-threads)/threadsOfConnection, "%d threads that this process may have (pids.max of its control group, or RLIMIT_NPROC)", m.Threads)
	}
	if m.Descriptors > 0 {
		lower((ClientDescriptors(m.Descriptors)-open)/descriptorsOfConnection, "%d descriptors that this process may have (RLIMIT_NOFILE, which should be at least %d)",
			m.Descriptors, enoughDescriptors(wished, open))
	}
	if cause == "" {
		return Shortfall{}, false
	}
	return Shortfall{"connections", fmt.Sprintf("%d connections may need more than the %s: reduced to %d", wished, cause, c.MaxConnections)}, true
}

// enoughDescriptors returns the descriptor limit that is enough for a number of connections. It is
// the inverse of ClientDescriptors.
func enoughDescriptors(connections, open int) int {
	clients := connections*descriptorsOfConnection + open
	return max(clients+64, (clients*4+2)/3)
}
