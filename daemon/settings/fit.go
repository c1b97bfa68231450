package settings

import "fmt"

// Shortfall is a setting that exceeds what the machine provides. The daemon starts with what is
// available: a node that is fuller than last time must not take the engine's pod down.
type Shortfall struct {
	Check string // the readiness check that reports it: memory or connections
	Text  string
}

// Fit reduces a validated configuration to the machine.
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

// fitPools reduces pools that exceed the memory to three quarters of it, in the configured
// proportion. Touching more would get us or the engine killed, at an unpredictable time.
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
		arena, private, m.MemoryBytes, c.Arena, c.Private)}, true
}

// leastHeap is a heap size that suffices on any machine.
const leastHeap = 128 * MiB

// HeapLimit returns the heap size above which the collector should work harder: half of the
// memory that the pools leave, but at least the known need of the heap. The other half is
// for memory written by clients. It is a soft limit. 0 = none, since the memory is unknown.
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

// Threads that we may need; the Go runtime aborts if it gets none. Each connection needs
// one that receives and one that sends; the rest is for everything else, with a margin.
const (
	threadsOfConnection = 2
	threadsBeside       = 16
)

// Descriptors that are open before any client: measured, with a margin. A connection has its
// socket and its client's pidfd; descriptors of mappings are closed after they are sent.
const (
	descriptorsOfConnection = 2
	descriptorsBeside       = 20
	descriptorsOfDisk       = 20
	descriptorsOfDevice     = 32
)

// ClientDescriptors returns how many of limit descriptors clients and those open before
// them may take. The rest is for the disk's files and admin connections.
func ClientDescriptors(limit int) int {
	return limit - max(limit/4, min(64, limit/3))
}

// fitConnections lowers the limit of connections to the available threads and descriptors.
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

// enoughDescriptors returns the limit that suffices for a number of connections: the
// inverse of ClientDescriptors.
func enoughDescriptors(connections, open int) int {
	clients := connections*descriptorsOfConnection + open
	return max(clients+64, (clients*4+2)/3)
}
