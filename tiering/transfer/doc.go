// Package transfer moves objects between two tiers. An Engine has what every pair of tiers
// needs: a queue, single flight, waiters, budgets, priorities, cancellation, back-pressure, a
// latency histogram and shutdown. A Job determines what is moved, and to where.
//
// A Flight is one transfer, from the request until its end:
//
//	following ──► ready ──► moving ──► ended
//	  another's     │ ▲       │  ▲       ▲
//	  end           ▼ │       │  └ again │
//	              parked      └──────────┤
//	                └─ canceled, failed ─┘
//
// A flight that is canceled while it moves ends for its waiters at once. Its job is released
// when the move has finished.
//
// An engine with workers begins a flight when a worker is free. An engine without workers
// begins each flight at once, or parks it, and leaves the move to Launch. Engines without
// workers serve destinations that have their own workers.
//
// The lock of its owner guards an Engine, so that the state of a flight and the state of the
// object that it moves change together. An Engine owns no memory.
//
// Invariant: a key has at most one flight that has not ended. Find returns only such flights.
//
// Invariant: End is called exactly once for each flight. Release is called exactly once for
// each successful Begin, after the move has finished.
package transfer
