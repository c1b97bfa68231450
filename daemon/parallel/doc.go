// Package parallel lets free engines compute segments for the request of another engine. It manages
// the jobs of this node's engines, the plans of this node's requests, and the three requests
// between nodes that connect plans and jobs.
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
// A job is described by its token ids. Keys are never sent. The node of the worker derives the key
// with its own tenant's salt, so that a worker publishes the segment of exactly these tokens or
// nothing. Token ids are sent between two nodes only if both allow the tenant.
//
// A segment may be computed in two pieces, which are two jobs. The left piece is an ordinary
// segment. When it is published, the job of the right piece is sent, with the name of the node that
// has the left piece. That node's copy is fetched before an engine gets the job. If either job
// fails, the plan's row for the segment is aborted or late, and the requesting engine computes it.
//
// Everything is bounded (see limits.go). A request beyond a bound is declined, and the requesting
// engine computes the row. Two kinds of calls block: Plan, for one round trip (at most offerTime),
// and the two watches, for as long as the caller asks. All methods may be called concurrently.
//
// Lock order: none. Each plan and the board have a mutex. A goroutine that holds one of these calls
// neither the other, nor the store, nor a node.
package parallel
