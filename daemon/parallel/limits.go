package parallel

import "time"

// Bounds, all guesses with room. What meets one is declined, and counted.
const (
	// MaxRows bounds the segments of a plan.
	MaxRows = 256
	// MaxJobTokens bounds the token ids of a job, as it has to fit one frame to an engine. A
	// longer segment is computed by the engine that asks.
	MaxJobTokens = 28 << 10
	// MaxWorkerJobs bounds what one engine is given at once.
	MaxWorkerJobs = 64
	// MaxPrimers bounds the different primers of a plan, and those that an engine has.
	MaxPrimers = 16
	// MaxWait bounds a watch.
	MaxWait = 30 * time.Second

	maxPlans        = 256     // of this node
	maxConnPlans    = 16      // of one connection
	maxPlanTokens   = 1 << 20 // token ids of a plan
	maxOpenTokens   = 8 << 20 // token ids of all plans
	maxQueuedTokens = 4 << 20 // token ids of the jobs on this node
	maxJobs         = 1024    // on this node
	maxWorkers      = 256     // on this node
	maxNodes        = 16      // asked for a plan
	maxEngines      = 16      // of one node that a plan uses
	maxOrigins      = 256     // plans of others that have jobs here
	maxPolls        = 64      // requests for results at once, of one peer

	// offerTime bounds the round trip before a plan: what answers later is not planned with.
	offerTime = 250 * time.Millisecond
	// connectTime bounds a request that waits for nothing there, its connection included.
	connectTime = 3 * time.Second
	// pollTime is how long a node waits for results before it says that there are none.
	pollTime = 8 * time.Second
	// lostAfter is how long a plan of another node may not ask for results: it is gone.
	lostAfter = 5 * time.Second
	// workerIdle is how long an engine that has no job may not ask for one.
	workerIdle = 5 * time.Second
	// lingerTime is how long rows that are here stay leased once all were told.
	lingerTime = 5 * time.Second

	// DefaultWithin and MaxWithin are how long a plan may take.
	DefaultWithin = time.Minute
	MaxWithin     = 10 * time.Minute

	// leastGain is what a plan has to save of computing all at home: less is noise.
	leastGain = 0.05
	// A row that has not come is late after patience times what was expected, but
	// leastPatience more at least: a worker that takes half as long again has other work. One
	// that is computed and on its way is waited for as long as computing it here would take.
	patience      = 1.5
	leastPatience = 200 * time.Millisecond
	// Pieces: chunks of kernels and of rotary embeddings divide 64; below 256 tokens a run's
	// own cost counts for more than what a cut saves.
	pieceGrain = 64
	pieceLeast = 256
)
