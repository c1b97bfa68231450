package schema

// spans are the columns of a Plan.
var spans = body(
	u8s("Plan.Kinds", "MaxSpans", part("Plan"), python("kinds")),
	u64s("Plan.Leases", "MaxSpans", part("Plan"), python("leases"), rows("Plan.Kinds")),
	u32s("Plan.Starts", "MaxSpans", part("Plan"), python("starts"), rows("Plan.Kinds")),
	u32s("Plan.Counts", "MaxSpans", part("Plan"), python("counts"), rows("Plan.Kinds")),
	u64s("Plan.Inputs", "MaxSpans", part("Plan"), python("inputs"), rows("Plan.Kinds")),
)

// covers are the scalars of a Plan.
var covers = body(
	u32("Plan.Begin", part("Plan"), python("begin")), u32("Plan.End", part("Plan"), python("end")),
)

var computeMessages = []Message{
	{
		Name: "ComposeRequest",
		Doc:  "moves a running state over a plan, for one layer or all linear layers",
		Body: body(
			u32("Profile"), u32("Rank"), i32("Layer"), covers, u8("From"), u64("FromLease"), u64("FromOff"),
			u64("Into", doc("slot lease of the right size to write into, 0 = a new one")),
			spans,
		),
	},
	{
		Name: "ComposeReply",
		Doc: "says where the states are. For each asked linear layer, in order: one F32 state before each recomputed span, " +
			"then the final state, each [heads, dk, dv] and padded to profile.PartAlign. When the last span has no input the final state is the state before it",
		Body: body(u64("Lease"), u64("Off", doc("in the slots region")), u64("Bytes")),
	},
	{
		Name: "RotateRequest",
		Doc:  "places the keys and values of a plan's segments (and of a checkpoint it begins from, for DestMemory) for one attention layer or all",
		Body: body(
			u32("Profile"), u32("Rank"), i32("Layer"), u32("Memory"), covers, u8("Dest"),
			u8("From", doc("FromZero or FromCheckpoint")), u64("FromLease"),
			u64("Into", doc("slot lease to write into, 0 = a new one")),
			spans,
			u32s("Blocks", "MaxBlocks", doc("the engine's block table for tokens [0, End)")),
		),
	},
	{
		Name: "RotateReply",
		Doc:  "gives the places of rows when Dest is DestSlot: for each asked attention layer, K then V, each the segment rows of the plan packed in plan order and padded to profile.PartAlign",
		Body: body(u64("Lease"), u64("Off"), u64("Bytes"), u32("Rows")),
	},
	{
		Name: "AssembleRequest",
		Like: "RotateRequest",
		Doc: "is compose and rotate of all layers in one request, for plans whose only recomputed span is the last. " +
			"It also answers the convolution tail of the last segment. With DestSlot the result is laid out as profile.CheckpointLayout(rows); " +
			"with DestMemory as CheckpointLayout(0) and the rows go to engine memory",
	},
	{
		Name: "AppendRequest",
		Doc:  "adds rows to a buffer, or opens one. The rows lie in staging, as profile.BufferLayout(Rows) has them",
		Body: body(
			u32("Profile"), u32("Rank"), u64("Buffer", doc("0 = open one")),
			u64("Base", doc("of a new one: lease of a loaded checkpoint or a slot; 0 = zero state")),
			u32("Begin", doc("prompt position of the first row")),
			u32("Capacity", doc("of a new one: most rows it holds")),
			u32("Rows", doc("0 is allowed when a buffer is opened")),
			u64("StagingOff"),
		),
	},
	{
		Name: "AppendReply",
		Doc:  "answers append and accept: what the buffer holds now, in prompt positions",
		Body: body(
			u64("Buffer"), u32("Begin", doc("of the state under the first row")),
			u32("Accepted", doc("tokens before it are certain")), u32("End"),
		),
	},
	{
		Name: "AcceptRequest",
		Doc:  "keeps the first Tokens rows that are not accepted yet, and drops the others",
		Body: body(u32("Profile"), u32("Rank"), u64("Buffer"), u32("Tokens")),
	},
	{
		Name: "ReplayRequest",
		Doc:  "writes the states and convolution tails after the tokens before Token into a slot, laid out as profile.CheckpointLayout(0)",
		Body: body(
			u32("Profile"), u32("Rank"), u64("Buffer"), u32("Token"),
			u8("Flush", doc("1 = the rows before Token are merged into the buffer's base")),
			u64("Into", doc("slot lease to write into, 0 = a new one")),
		),
	},
}
