// Package transfer moves objects between two tiers. An Engine has the queue, single
// flight, waiters, budgets, priorities, cancellation, back-pressure, latency histogram
// and shutdown that every pair of tiers needs. What is moved, and to where, is left to a
// Job.
//
// A Flight is one transfer, from the request until its end:
//
//	following ──► ready ──► moving ──► ended
//	  another's     │ ▲       │  ▲       ▲
//	  end           ▼ │       │  └ again │
//	              parked      └──────────┤
//	                └─ canceled, failed ─┘
//
// A flight that is canceled while it moves has ended for all its waiters; its job is
// released once the move has finished.
//
// An engine with workers begins flights when a worker is free. One without begins each at
// once, or parks it, and leaves the move to Launch: that is for a destination with its
// own workers.
//
// An Engine is guarded by the lock of its owner, so that the state of a flight and the
// state of what it moves change together. It owns no memory.
//
// Invariant: there is at most one flight of a key, and only flights that have not ended
// are found.
//
// Invariant: for each flight End is called exactly once, and Release exactly once after
// Begin has succeeded, after End and after the move.
package transfer
