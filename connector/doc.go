// Package connector is the Go client of spliced. Engines use it to look up, read, write and
// place cached state.
//
// It is made to run inside an engine. Every call ends within its timeout, a dead or slow daemon
// gives a miss, nothing panics, and Open succeeds with or without a daemon. One goroutine
// attaches to the daemon, and attaches again after the daemon has restarted. Until then calls
// return ErrUnavailable at once.
//
//	c, err := connector.Open(connector.Options{Socket: path})
//	m, err := c.Register(profile, connector.Binding{Rank: 0})
//	err = m.Match(ctx, &query, &found)
//	leases, err := m.Acquire(ctx, keys, connector.AcquireOptions{})
//
// Memory: a Lease, Checkpoint or Slot gives views of mapped memory that the daemon owns. Views
// are valid until Release or until their connection ends. If the daemon's process has died, the
// memory no longer changes and views stay valid. Valid reports whether a view is still valid.
// After Release views may be unmapped and must not be used. Views are read-only: a write faults.
//
// All methods may be called concurrently. Calls of one client share one socket. One of the
// waiting callers reads the socket and hands replies to the other callers, so that a lone caller
// needs no goroutine switch.
//
// Contexts: a deadline shortens the call's timeout. Cancellation is noticed within about 20 ms.
// The client also cancels long operations in the daemon when it abandons them.
package connector
