// Package connector is the Go client of spliced: what an engine uses to look
// up, read, write and place cached state.
//
// It is made to sit inside an engine. Every call ends within a bound, a dead or
// slow daemon reads as a miss, nothing panics, and Open succeeds whether or not
// a daemon is there: one goroutine attaches, and attaches again after a
// restart, while calls made meanwhile return ErrUnavailable at once.
//
//	c, err := connector.Open(connector.Options{Socket: path})
//	m, err := c.Register(profile, connector.Binding{Rank: 0})
//	err = m.Match(ctx, &query, &found)
//	leases, err := m.Acquire(ctx, keys, connector.AcquireOptions{})
//
// Memory: a Lease, Checkpoint or Slot gives views of memory that the daemon
// owns and that is mapped here. They are valid until Release or until their
// connection ends, except that the memory of a daemon that has died stays as it
// was; Valid tells. After Release they may be unmapped and must not be touched.
// Views can only be read: writing to one is a fault.
//
// All methods may be called by several goroutines at once. Calls of one client
// share one socket: whoever waits reads, and hands over what belongs to others,
// so that a lone caller pays for no goroutine switch.
//
// Contexts: a deadline shortens the call's own time-out, cancellation is seen
// within about 20 ms. Long operations that are given up are cancelled in the
// daemon too.
package connector
