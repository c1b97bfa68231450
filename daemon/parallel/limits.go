package parallel

import "time"

// Bounds, all generous guesses. A request beyond a bound is declined, and counted.
const (
	// MaxRows bounds the segments of a plan.
	MaxRows = 256
	// MaxJobTokens bounds the token ids of a job, which must fit one frame to an engine.
	// The requesting engine computes longer segments.
	MaxJobTokens = 28 << 10
	// MaxWorkerJobs bounds the jobs that one engine gets at once.
	MaxWorkerJobs = 64
	// MaxPrimers bounds the distinct primers of a plan, and those of an engine.
	MaxPrimers = 16
	// MaxWait bounds a watch.
	MaxWait = 30 * time.Second

	maxPlans        = 256     // of this node
	maxConnPlans    = 16      // per connection
	maxPlanTokens   = 1 << 20 // token ids of a plan
	maxOpenTokens   = 8 << 20 // token ids of all plans
	maxQueuedTokens = 4 << 20 // token ids of the jobs on this node
	maxJobs         = 1024    // on this node
	maxWorkers      = 256     // on this node
	maxNodes        = 16      // asked for a plan
	maxEngines      = 16      // per node that a plan uses
	maxOrigins      = 256     // plans of other nodes that have jobs here
	maxPolls        = 64      // concurrent requests for results, per peer

	// offerTime bounds the round trip before a plan; later offers are not used.
	offerTime = 250 * time.Millisecond
	// connectTime bounds a request that does not wait on the other node, including the
	// connection.
	connectTime = 3 * time.Second
	// pollTime is the time a node waits for results before it reports none.
	pollTime = 8 * time.Second
	// lostAfter is the longest time without a request for results before a plan of another
	// node is considered gone.
	lostAfter = 5 * time.Second
	// workerIdle is the longest time that an idle engine may go without requesting a job.
	workerIdle = 5 * time.Second
	// lingerTime is the time fetched rows stay leased after all were reported.
	lingerTime = 5 * time.Second

	// DefaultWithin and MaxWithin bound the duration of a plan.
	DefaultWithin = time.Minute
	MaxWithin     = 10 * time.Minute

	// leastGain is the least share of time that a plan must save compared with computing
	// everything locally; less is noise.
	leastGain = 0.05
	// A row is late after patience times its expected time, but at least leastPatience
	// more: a worker that takes half as long again has other work. A row that is computed
	// and on its way gets as much time as computing it here would take.
	patience      = 1.5
	leastPatience = 200 * time.Millisecond
	// Pieces: chunks of kernels and of rotary embeddings divide 64. Below 256 tokens, the
	// fixed cost of a run exceeds the gain of a cut.
	pieceGrain = 64
	pieceLeast = 256
)
