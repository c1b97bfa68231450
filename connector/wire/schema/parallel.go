package schema

var parallelMessages = []Message{
	{
		Name: "PlanRequest",
		Doc: "asks which engines of which nodes compute the missing segments of a prompt, and has them begin. " +
			"Token ids (little-endian uint32) lie in staging, those of all rows one after another; the daemon recomputes each key from them",
		Body: body(
			u32("Profile"), u8("Pieces", doc("1 = segments may be cut in two, and this engine is able to do either piece")),
			u32("QueuedMicros", doc("of other work that this engine does first")),
			u32("WithinMs", doc("results that have not arrived by then are late; 0 = the daemon's default")),
			u64("TokenOff", doc("staging offset of the token ids of all rows")),
			hashes("Keys", "MaxPlanRows"), u8s("Roles", "MaxPlanRows", rows("Keys")),
			u32s("Heads", "MaxPlanRows", rows("Keys")), u32s("Tails", "MaxPlanRows", rows("Keys")),
			u32s("Tokens", "MaxPlanRows", rows("Keys"), doc("whole length n")),
		),
		Sections: []Section{{
			Name: "Primers", Struct: "PlanPrimers", Feature: "Primers",
			Doc:  "names the primer after which each segment is to be captured. Only engines take part that have all of them",
			Body: body(hashes("IDs", "MaxPlanRows", rows("Keys"), python("ids"), doc("zero = none; at most MaxPrimers different ones"))),
		}},
	},
	{
		Name: "PlanReply",
		Doc: "has one row for each key, and lists what the asking engine computes itself, in the order to do it: tokens [OwnBegins[i], OwnEnds[i]) of row OwnRows[i]. " +
			"Times are from now until a segment can be acquired here",
		Body: body(
			u64("Plan", doc("id, for watch; 0 = nothing was begun: compute all rows here")),
			u8("Alone", doc("why nothing was begun")),
			u32("Micros", doc("until all rows are here")), u32("AloneMicros", doc("that of computing all rows here")),
			u32s("Workers", "MaxPlanRows", doc("0 = the engine that asks, else a number of this plan's: one for each engine. For a segment in two pieces, the engine that computes the last one")),
			u32s("RowMicros", "MaxPlanRows", rows("Workers"), doc("until the row is expected here")),
			u32s("OwnRows", "MaxPlanRows"), u32s("OwnBegins", "MaxPlanRows", rows("OwnRows")), u32s("OwnEnds", "MaxPlanRows", rows("OwnRows")),
			text("Combine", "MaxName", doc("node at which the rows would be together earliest; empty = this one")),
		),
	},
	{
		Name: "WatchRequest",
		Doc: "waits for what happens next: to the rows of a plan, or, where Plan is 0, for jobs. Who asks for jobs is a worker of its profile and tenant until " +
			"it has no job and has not asked for some seconds",
		Body: body(
			u32("Profile"), u32("WaitMs", doc("most that the answer takes; 0 = at once")),
			u64("Plan", doc("0 = for jobs")), u8("End", doc("1 = this ends the plan, or this worker takes no more jobs")),
			u8("Pieces", doc("of workers: 1 = able to go on from the first piece of a segment")),
			u32("Jobs", doc("of workers: most jobs at once, those included that it has")),
			u32("QueuedMicros", doc("of workers: other work that they do first")),
			u64s("Declined", "MaxWorkerJobs", doc("of workers: jobs that they do not do")),
		),
		Sections: []Section{{
			Name: "Primers", Struct: "WatchPrimersQuery", Feature: "Primers",
			Doc:  "lists the primers that a worker has. Without it, it is given no segment that is captured after one",
			Body: body(hashes("IDs", "MaxPrimers", python("ids"))),
		}},
	},
	{
		Name: "WatchReply",
		Doc: "of a plan has a row for each row of it that something happened to since the last watch. For a worker it has a row for each new job. " +
			"A job is done when its key is published, by reserve and commit on whatever connection of the node. IDs are the token ids of all its jobs, " +
			"Tokens[i] of each, one after another",
		Body: body(
			u32("Open", doc("rows of the plan that nothing final happened to yet; jobs that the worker has")),
			u32s("Rows", "MaxPlanRows", doc("of the plan")), u8s("Progress", "MaxPlanRows", rows("Rows")),
			u64s("Jobs", "MaxWorkerJobs"), hashes("Keys", "MaxWorkerJobs", rows("Jobs"), doc("what to publish")),
			u8s("Roles", "MaxWorkerJobs", rows("Jobs")), u32s("Heads", "MaxWorkerJobs", rows("Jobs")), u32s("Tails", "MaxWorkerJobs", rows("Jobs")),
			u32s("Begins", "MaxWorkerJobs", rows("Jobs"), doc("0 = all of it is computed, else go on at this token")),
			hashes("Lefts", "MaxWorkerJobs", rows("Jobs"), doc("where Begins is not 0: the key of the segment of the tokens before it, which has the same role and head, and no tail")),
			u32s("Micros", "MaxWorkerJobs", rows("Jobs"), doc("from now on; after that the job is no longer awaited")),
			u32s("Tokens", "MaxWorkerJobs", rows("Jobs"), divides("IDs"), doc("whole length n")),
			u32s("IDs", "MaxJobTokens", doc("token ids")),
			u64s("Withdrawn", "MaxWorkerJobs", doc("jobs of this worker that are no longer awaited")),
		),
		Sections: []Section{{
			Name: "Primers", Struct: "WatchPrimers", Feature: "Primers",
			Doc:  "names the primer after which each job's segment is to be captured",
			Body: body(hashes("IDs", "MaxWorkerJobs", rows("Jobs"), python("ids"), doc("zero = none"))),
		}},
	},
}
