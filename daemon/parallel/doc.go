// Package parallel has segments computed by engines that are free. It manages the jobs of
// this node's engines, the plans of this node's requests, and the three requests between
// nodes that connect the two.
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
// An engine of the same node takes the same three steps, without a network. The plan is a
// pure function of the nodes' offers (policy/schedule), so that it can be replayed.
//
// A job is named by its token ids. Keys are never sent: the worker's node derives them with
// its own tenant's salt, so that a worker publishes the segment of these tokens or
// nothing. A tenant must be allowed on both nodes before token ids are sent from one to the
// other.
//
// A segment in two pieces is two jobs. The left one is an ordinary segment. The right one is
// sent when the left one is published, and names the node that has it; that node's copy is
// fetched before an engine gets the job. If either fails, the row is aborted or late, and
// the requesting engine computes it.
//
// Everything is bounded (see limits.go). A request beyond a bound is declined, and the row
// is computed by the requesting engine. Blocking calls are Plan (one round trip, at most
// offerTime) and the two watches, for as long as the caller asks. All methods may be called
// concurrently.
//
// Lock order: none. A plan and the board have a mutex each. Neither is held while the other,
// the store or a node is called.
package parallel
