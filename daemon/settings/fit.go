package settings

import "fmt"

// Shortfall is what the machine does not give of what was set. The daemon starts with
// what there is: a node that is fuller than the last time must not take the engine's
// pod down.
type Shortfall struct {
	Check string // of readiness that says so: memory or connections
	Text  string
}

// Fit cuts a validated configuration down to the machine.
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

// fitPools makes pools that exceed the memory take three quarters of it, in the
// proportion they were set in. Touching more gets us or the engine killed, at a time of
// the kernel's choosing.
func (c *Config) fitPools(m Machine) (Shortfall, bool) {
	total := c.Arena + c.Private
	if m.MemoryBytes == 0 || total <= m.MemoryBytes {
		return Shortfall{}, false
	}
	arena, private := c.Arena, c.Private
	share := float64(m.MemoryBytes) / 4 * 3 / float64(total)
	c.Arena = max(c.PageBytes, roundDown(Bytes(float64(arena)*share), c.PageBytes))
	c.Private = max(c.PageBytes, roundDown(Bytes(float64(private)*share), c.PageBytes))
	return Shortfall{"memory", fmt.Sprintf("arena %v and private %v are more than the %v that this process may use: cut to %v and %v",
		arena, private, m.MemoryBytes, c.Arena, c.Private)}, true
}

// leastHeap is a heap that the daemon works with on any machine.
const leastHeap = 128 * MiB

// HeapLimit returns the size at which the collector should work harder instead of letting
// the heap grow: half of the memory that the pools leave, the other half being for what
// clients write, and never less than the heap is known to need. It is a soft limit. 0 = the
// memory is unknown, and there is none.
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

// Threads that we may need, and the Go runtime aborts when it gets none: of each
// connection one that receives and one that sends, and those of everything else, with
// room.
const (
	threadsOfConnection = 2
	threadsBeside       = 16
)

// Descriptors that are open before any client: measured, with room. A connection has its
// socket and its client's pidfd; what it maps is closed when it was sent.
const (
	descriptorsOfConnection = 2
	descriptorsBeside       = 20
	descriptorsOfDisk       = 20
	descriptorsOfDevice     = 32
)

// ClientDescriptors returns how many of limit descriptors clients may take, and those open
// before them. The rest is for the disk's files and the admin's connections.
func ClientDescriptors(limit int) int {
	return limit - max(limit/4, min(64, limit/3))
}

// fitConnections lowers the bound on connections to what there are threads and descriptors
// for.
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
	return Shortfall{"connections", fmt.Sprintf("%d connections may need more than the %s: cut to %d", wished, cause, c.MaxConnections)}, true
}

// enoughDescriptors is the inverse of ClientDescriptors for so many connections.
func enoughDescriptors(connections, open int) int {
	clients := connections*descriptorsOfConnection + open
	return max(clients+64, (clients*4+2)/3)
}
