// Package parallel has segments computed where an engine is free: the jobs of this node's
// engines, the plans of this node's requests, and the three requests between nodes that
// join the two.
//
//	engine that asks        its node (plans)              another node (board)      its engine
//	   plan ───────────────► offer: who is free? ────────► workers, queues, speed
//	   own rows, workers ◄── schedule.Team.Best
//	                         work: segments, token ids ──► queue ─────────────────► watch: a job
//	   computes own rows     results (long poll) ────────►                          computes it
//	   watch ─────────────►                      ◄──────── done ◄────────────────── reserve, commit
//	                         fetch, as any segment that a peer has
//	   committed ◄────────── leased until the plan ends
//
// An engine of the same node is reached by the same three steps, without a network. What
// each node says of itself is in offers; the plan is a pure function of these
// (policy/schedule), so that a plan can be replayed.
//
// A job is named by its token ids. Keys never cross: the node of the worker derives them
// with its own tenant's salt, so a worker publishes what the name says or nothing. A tenant
// has to be allowed on both nodes before token ids leave one for the other.
//
// A segment in two pieces is two jobs: the left one is an ordinary segment, the right one
// is sent once that is published and says which node has it; it is fetched there before an
// engine is given the job. Whatever goes wrong with either, the row is aborted or late, and
// the engine that asked computes it.
//
// Everything is bounded (see limits.go), and what finds a bound met is declined: the row is
// computed at home. Blocking are Plan (one round trip, offerTime at most) and the two
// watches, for as long as they are told to. All methods may be called at once.
//
// Lock order: none. A plan and the board have a mutex each, and neither is held while the
// other, the store or a node is called.
package parallel
