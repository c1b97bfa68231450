// Package connector is the Go client of spliced. Engines use it to look up, read, write and
// place cached state.
//
// It is made to run inside an engine. Every call ends within a bound, a dead or slow daemon
// reads as a miss, nothing panics, and Open succeeds with or without a daemon. One goroutine
// attaches, and attaches again after a restart. Until then calls return ErrUnavailable at
// once.
//
//	c, err := connector.Open(connector.Options{Socket: path})
//	m, err := c.Register(profile, connector.Binding{Rank: 0})
//	err = m.Match(ctx, &query, &found)
//	leases, err := m.Acquire(ctx, keys, connector.AcquireOptions{})
//
// Memory: a Lease, Checkpoint or Slot gives views of mapped memory that the daemon owns.
// Views are valid until Release or until their connection ends. If the daemon's process has
// died, its memory no longer changes and views stay valid. Valid reports this. After Release
// views may be unmapped and must not be used. They are read-only: a write faults.
//
// All methods may be called concurrently. Calls of one client share one socket. One of the
// waiting callers reads it and hands replies to the others, so that a lone caller needs no
// goroutine switch.
//
// Contexts: a deadline shortens the call's timeout. Cancellation is noticed within about
// 20 ms. Long operations that are abandoned are also cancelled in the daemon.
package connector
