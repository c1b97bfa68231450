package parallel

import "time"

// Bounds, all of them generous guesses. A request beyond a bound is declined and counted.
const (
	// MaxRows is the largest number of segments in a plan.
	MaxRows = 256
	// MaxJobTokens is the largest number of token ids in a job, which must fit one frame to an engine.
	// The requesting engine computes longer segments.
	MaxJobTokens = 28 << 10
	// MaxWorkerJobs is the largest number of jobs that one engine gets at once.
	MaxWorkerJobs = 64
	// MaxPrimers is the largest number of distinct primers of a plan, and of an engine.
	MaxPrimers = 16
	// MaxWait is the longest time that a watch waits.
	MaxWait = 30 * time.Second

	maxPlans        = 256     // open plans of this node
	maxConnPlans    = 16      // open plans of a connection
	maxPlanTokens   = 1 << 20 // token ids of a plan
	maxOpenTokens   = 8 << 20 // token ids of all plans
	maxQueuedTokens = 4 << 20 // token ids of the jobs on this node
	maxJobs         = 1024    // on this node
	maxWorkers      = 256     // on this node
	maxNodes        = 16      // nodes asked for an offer per plan
	maxEngines      = 16      // engines in an offer
	maxOrigins      = 256     // plans of other nodes that have jobs here
	maxPolls        = 64      // waiting requests for results, per peer

	// offerTime is the longest time that a plan waits for offers. Later offers are not used.
	offerTime = 250 * time.Millisecond
	// connectTime is the limit of a request that does not wait on the other node, including the time to
	// connect.
	connectTime = 3 * time.Second
	// pollTime is the longest time that a node waits for results before it answers that there are
	// none.
	pollTime = 8 * time.Second
	// lostAfter: if a plan of another node has not asked for results for this long, it is considered
	// gone.
	lostAfter = 5 * time.Second
	// workerIdle: an idle engine that has not asked for jobs for this long is removed.
	workerIdle = 5 * time.Second
	// lingerTime is the time that fetched rows stay leased after all rows were reported.
	lingerTime = 5 * time.Second

	// DefaultWithin and MaxWithin are the default and the limit of PlanQuery.Within.
	DefaultWithin = time.Minute
	MaxWithin     = 10 * time.Minute

	// leastGain is the smallest share of the time to compute everything locally that a plan must save.
	// Smaller gains are noise.
	leastGain = 0.05
	// A row is late when it takes longer than patience times its expected time, and at least
	// leastPatience longer than expected: a worker that takes that long has other work. Once
	// another engine has computed the row, the time for fetching it has the same limit as a
	// computation here would have.
	patience      = 1.5
	leastPatience = 200 * time.Millisecond
	// Segments are cut into pieces at multiples of pieceGrain tokens. The chunk sizes of kernels
	// and of rotary embeddings divide pieceGrain. In pieces of less than pieceLeast tokens, the
	// fixed cost of a run exceeds the gain.
	pieceGrain = 64
	pieceLeast = 256
)
