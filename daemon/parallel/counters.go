package parallel

import "sync/atomic"

// Counts are the counters since the start. They may be used concurrently.
type Counts struct {
	Plans atomic.Uint64          `count:"plans" prom:"parallel_plans_total,result=begun" help:"Requests to spread a prompt over several engines, by result: begun; or why the engine computes alone: no_gain (not faster), no_workers, not_allowed (for the tenant), no_room (in memory), busy (too many plans), off (disabled by the request), here (all segments are cached on this node)."`
	Alone [reasons]atomic.Uint64 `count:"plans_{,no_gain,no_workers,not_allowed,no_room,busy,off,here}" prom:"parallel_plans_total,result=|no_gain|no_workers|not_allowed|no_room|busy|off|here"`

	Sent          atomic.Uint64 `count:"jobs_sent" prom:"parallel_jobs_sent_total,result=sent" help:"Jobs that plans of this node gave to engines of other connections: sent, refused (by their node, or it did not answer); and rows of these plans by outcome: committed (the segment arrived), aborted, late (not in time)."`
	Refused       atomic.Uint64 `count:"jobs_refused" prom:"parallel_jobs_sent_total,result=refused"`
	Committed     atomic.Uint64 `count:"rows_committed" prom:"parallel_jobs_sent_total,result=committed"`
	Aborted       atomic.Uint64 `count:"rows_aborted" prom:"parallel_jobs_sent_total,result=aborted"`
	LateRows      atomic.Uint64 `count:"rows_late" prom:"parallel_jobs_sent_total,result=late"`
	SentTokens    atomic.Uint64 `count:"sent_tokens" prom:"parallel_tokens_total,direction=sent" help:"Tokens of jobs: sent (other engines were asked to compute them), committed (of the sent ones, delivered here), taken (engines of this node were asked to compute them for a plan)."`
	CommitTokens  atomic.Uint64 `count:"committed_tokens" prom:"parallel_tokens_total,direction=committed"`
	TakenTokens   atomic.Uint64 `count:"taken_tokens" prom:"parallel_tokens_total,direction=taken"`
	ReceivedBytes atomic.Uint64 `count:"received_bytes" prom:"parallel_bytes_total,direction=received" help:"Bytes of job requests received from and sent to other nodes. The computed segments are not included: they count as fetches from peers."`
	SentBytes     atomic.Uint64 `count:"sent_bytes" prom:"parallel_bytes_total,direction=sent"`

	Taken     atomic.Uint64 `count:"jobs_taken" prom:"parallel_jobs_taken_total,result=taken" help:"Jobs offered to engines of this node: taken, and of these done, declined (by the engine), lost (the engine left, or a fetch failed), late (not in time), withdrawn (by the plan); and full (not taken, because a limit was reached)."`
	Done      atomic.Uint64 `count:"jobs_done" prom:"parallel_jobs_taken_total,result=done"`
	Declined  atomic.Uint64 `count:"jobs_declined" prom:"parallel_jobs_taken_total,result=declined"`
	Lost      atomic.Uint64 `count:"jobs_lost" prom:"parallel_jobs_taken_total,result=lost"`
	Late      atomic.Uint64 `count:"jobs_late" prom:"parallel_jobs_taken_total,result=late"`
	Withdrawn atomic.Uint64 `count:"jobs_withdrawn" prom:"parallel_jobs_taken_total,result=withdrawn"`
	Full      atomic.Uint64 `count:"jobs_full" prom:"parallel_jobs_taken_total,result=full"`
	Forsaken  atomic.Uint64 `count:"plans_forsaken" prom:"parallel_plans_forsaken_total" help:"Plans of other nodes that stopped asking this node for results, so that their jobs were withdrawn."`
	Invalid   atomic.Uint64 `count:"requests_invalid" prom:"parallel_requests_refused_total,reason=invalid" help:"Job requests of other nodes that this node refused, by reason: invalid, or busy (too many)."`
	Busy      atomic.Uint64 `count:"requests_busy" prom:"parallel_requests_refused_total,reason=busy"`
}

// Load is the current load.
type Load struct {
	Workers int   `count:"workers" prom:"parallel_workers" help:"Engines of this node that accept jobs of plans."`
	Jobs    int   `count:"jobs" prom:"parallel_jobs" help:"Jobs that engines of this node are computing or have queued."`
	Plans   int   `count:"plans_open" prom:"parallel_plans_open" help:"Open plans of prompts that this node's engines are serving."`
	Room    int64 `count:"room_bytes" prom:"parallel_room_bytes" help:"Bytes of memory on this node that segments of its open plans occupy or will occupy."`
}

// WorkerInfo describes an engine of this node that takes jobs.
type WorkerInfo struct {
	Conn   uint64
	Scope  Scope
	Pieces bool
	Most   int     // most jobs at the same time
	Jobs   int     // being computed by it, or queued for it
	Queued float64 // milliseconds of work before a new job would start
}

// Counts returns the counters since the start.
func (w *Work) Counts() *Counts { return &w.counts }

// Load returns the current load.
func (w *Work) Load() Load {
	var x Load
	w.board.mu.Lock()
	x.Workers, x.Jobs = len(w.board.workers), len(w.board.jobs)
	w.board.mu.Unlock()
	w.mu.Lock()
	x.Plans, x.Room = len(w.plans), w.room
	w.mu.Unlock()
	return x
}

// Workers lists this node's engines that take jobs.
func (w *Work) Workers() []WorkerInfo { return w.board.info(w.cfg.Now()) }
