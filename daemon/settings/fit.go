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

// Threads that we may need, and the Go runtime aborts when it gets none: of each
// connection one that receives and one that sends, and those of everything else, with
// room.
const (
	threadsOfConnection = 2
	threadsBeside       = 16
)

// fitConnections lowers the bound on connections to what there are threads for.
func (c *Config) fitConnections(m Machine) (Shortfall, bool) {
	beside := threadsBeside + 2*m.CPUs + c.Workers
	if c.Disk != "" {
		beside += 2 * c.DiskWorkers
	}
	beside += c.Devices() * c.Workers
	most := max(1, (m.Threads-beside)/threadsOfConnection)
	if m.Threads == 0 || c.MaxConnections <= most {
		return Shortfall{}, false
	}
	wished := c.MaxConnections
	c.MaxConnections = most
	return Shortfall{"connections", fmt.Sprintf("%d connections may need more than the %d threads that this process may have (pids.max of its control group, or RLIMIT_NPROC): cut to %d",
		wished, m.Threads, most)}, true
}
