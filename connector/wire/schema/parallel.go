package schema

var parallelMessages = []Message{
	{
		Name: "PlanRequest",
		Doc: "asks which engines compute the missing segments of a prompt, and starts the work of the other engines. " +
			"The token ids (little-endian uint32) of all rows are in staging, one row after another; the daemon computes each key from them and compares it with Keys",
		Body: body(
			u32("Profile"), u8("Pieces", doc("1 = segments may be cut into two pieces, and this engine can compute either piece")),
			u32("QueuedMicros", doc("time of other work that this engine does first")),
			u32("WithinMs", doc("time after which results are late; 0 = the daemon's default")),
			u64("TokenOff", doc("staging offset of the token ids of all rows")),
			hashes("Keys", "MaxPlanRows"), u8s("Roles", "MaxPlanRows", rows("Keys")),
			u32s("Heads", "MaxPlanRows", rows("Keys")), u32s("Tails", "MaxPlanRows", rows("Keys")),
			u32s("Tokens", "MaxPlanRows", rows("Keys"), doc("number of tokens of the segment with head and tail")),
		),
		Sections: []Section{{
			Name: "Primers", Struct: "PlanPrimers", Feature: "Primers",
			Doc:  "has the primer after which each segment is to be captured. Only engines that have all these primers take part",
			Body: body(hashes("IDs", "MaxPlanRows", rows("Keys"), python("ids"), doc("zero = no primer; at most MaxPrimers different primers"))),
		}},
	},
	{
		Name: "PlanReply",
		Doc: "has one row for each key. It also lists what the asking engine computes itself, in the order in which to compute it: the tokens [OwnBegins[i], OwnEnds[i]) of row OwnRows[i]. " +
			"Times are from now until segments can be acquired on this node",
		Body: body(
			u64("Plan", doc("id of the plan, for watch; 0 = no plan was started, and the asking engine computes all rows")),
			u8("Alone", doc("why no plan was started")),
			u32("Micros", doc("time until all rows are on this node")), u32("AloneMicros", doc("the same time if the asking engine computes all rows")),
			u32s("Workers", "MaxPlanRows", doc("the engine that computes the row; 0 = the asking engine, other numbers are those that this plan gives to engines. For a segment in two pieces, it is the engine that computes the second piece")),
			u32s("RowMicros", "MaxPlanRows", rows("Workers"), doc("time until the row is expected on this node")),
			u32s("OwnRows", "MaxPlanRows"), u32s("OwnBegins", "MaxPlanRows", rows("OwnRows")), u32s("OwnEnds", "MaxPlanRows", rows("OwnRows")),
			text("Combine", "MaxName", doc("node on which all rows would be available first; empty = this node")),
		),
	},
	{
		Name: "WatchRequest",
		Doc: "waits for events of the rows of a plan or, if Plan is 0, for jobs. A client that asks for jobs is a worker of its profile and tenant. " +
			"It stays a worker until it has no job and has not asked for some seconds",
		Body: body(
			u32("Profile"), u32("WaitMs", doc("maximum time until the reply; 0 = reply at once")),
			u64("Plan", doc("0 = wait for jobs")), u8("End", doc("1 = end the plan or, for a worker, accept no more jobs")),
			u8("Pieces", doc("workers: 1 = this engine can continue from the first piece of a segment")),
			u32("Jobs", doc("workers: maximum number of jobs at once, including those that it has")),
			u32("QueuedMicros", doc("workers: time of other work that this engine does first")),
			u64s("Declined", "MaxWorkerJobs", doc("workers: jobs that this worker refuses")),
		),
		Sections: []Section{{
			Name: "Primers", Struct: "WatchPrimersQuery", Feature: "Primers",
			Doc:  "lists the primers that a worker has. Without this section, the worker gets no segment that is captured after a primer",
			Body: body(hashes("IDs", "MaxPrimers", python("ids"))),
		}},
	},
	{
		Name: "WatchReply",
		Doc: "lists, for a plan, the rows with an event since the last watch. For a worker, it lists the new jobs. " +
			"A job is done when its key is published, by reserve and commit on any connection of the node. IDs has the token ids of all new jobs, one job after another: " +
			"Tokens[i] ids for job i",
		Body: body(
			u32("Open", doc("number of rows of the plan without a final event, or of jobs that the worker has")),
			u32s("Rows", "MaxPlanRows", doc("rows of the plan with an event")), u8s("Progress", "MaxPlanRows", rows("Rows")),
			u64s("Jobs", "MaxWorkerJobs"), hashes("Keys", "MaxWorkerJobs", rows("Jobs"), doc("keys of the segments to publish")),
			u8s("Roles", "MaxWorkerJobs", rows("Jobs")), u32s("Heads", "MaxWorkerJobs", rows("Jobs")), u32s("Tails", "MaxWorkerJobs", rows("Jobs")),
			u32s("Begins", "MaxWorkerJobs", rows("Jobs"), doc("first token to compute; 0 = compute the whole segment")),
			hashes("Lefts", "MaxWorkerJobs", rows("Jobs"), doc("if Begins is not 0: key of the segment with the tokens before that position, which has the same role and head, and no tail")),
			u32s("Micros", "MaxWorkerJobs", rows("Jobs"), doc("time from now, after which the result is not needed any more")),
			u32s("Tokens", "MaxWorkerJobs", rows("Jobs"), divides("IDs"), doc("number of tokens of the segment with head and tail")),
			u32s("IDs", "MaxJobTokens", doc("token ids")),
			u64s("Withdrawn", "MaxWorkerJobs", doc("jobs of this worker whose results are not needed any more")),
		),
		Sections: []Section{{
			Name: "Primers", Struct: "WatchPrimers", Feature: "Primers",
			Doc:  "has the primer after which the segment of each job is to be captured",
			Body: body(hashes("IDs", "MaxWorkerJobs", rows("Jobs"), python("ids"), doc("zero = no primer"))),
		}},
	},
}
