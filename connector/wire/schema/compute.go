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
		Doc:  "advances a running state over the spans of a plan, in one linear layer or in all of them",
		Body: body(
			u32("Profile"), u32("Rank"), i32("Layer"), covers, u8("From"), u64("FromLease"), u64("FromOff"),
			u64("Into", doc("lease of a slot of the right size for the result; 0 = a new slot")),
			spans,
		),
	},
	{
		Name: "ComposeReply",
		Doc: "says where the states are. For each requested linear layer, in order, these are the state before each recomputed span, " +
			"then the state at the end of the plan. Each is F32 [heads, dk, dv], padded to a multiple of profile.PartAlign. If the last span has no input, the last state is the state before that span",
		Body: body(u64("Lease"), u64("Off", doc("in the slots region")), u64("Bytes")),
	},
	{
		Name: "RotateRequest",
		Doc:  "places the keys and values of a plan's segments, for one attention layer or all. With DestMemory it also places those of the checkpoint from which the plan begins",
		Body: body(
			u32("Profile"), u32("Rank"), i32("Layer"), u32("Memory"), covers, u8("Dest"),
			u8("From", doc("FromZero or FromCheckpoint")), u64("FromLease"),
			u64("Into", doc("slot lease to write into, 0 = a new one")),
			spans,
			u32s("Blocks", "MaxBlocks", doc("the engine's block table for tokens [0, Plan.End)")),
		),
	},
	{
		Name: "RotateReply",
		Doc:  "says where the rows are, if Dest is DestSlot. For each requested attention layer, these are K, then V. Each has the rows of the plan's segments, packed in the order of the plan and padded to a multiple of profile.PartAlign",
		Body: body(u64("Lease"), u64("Off"), u64("Bytes"), u32("Rows")),
	},
	{
		Name: "AssembleRequest",
		Like: "RotateRequest",
		Doc: "does the work of ComposeRequest and RotateRequest for all layers in one request. Only the last span of its plan may be recomputed. " +
			"The result also has the convolution tails of the last segment. With DestSlot the result is in profile.CheckpointLayout(rows). " +
			"With DestMemory it is in CheckpointLayout(0), and the rows are written to engine memory",
	},
	{
		Name: "AppendRequest",
		Doc:  "adds rows to a buffer, or opens a buffer. The rows are in staging, in profile.BufferLayout(Rows)",
		Body: body(
			u32("Profile"), u32("Rank"), u64("Buffer", doc("0 = open a buffer")),
			u64("Base", doc("of a new buffer: lease of a loaded checkpoint or of a slot; 0 = zero states")),
			u32("Begin", doc("prompt position of the first row")),
			u32("Capacity", doc("of a new buffer: maximum number of rows")),
			u32("Rows", doc("0 is allowed when a buffer is opened")),
			u64("StagingOff"),
		),
	},
	{
		Name: "AppendReply",
		Doc:  "answers AppendRequest and AcceptRequest. Begin, Accepted and End are prompt positions in the buffer after the request",
		Body: body(
			u64("Buffer"), u32("Begin", doc("position of the first row")),
			u32("Accepted", doc("tokens before it are certain")), u32("End"),
		),
	},
	{
		Name: "AcceptRequest",
		Doc:  "accepts the first drafts of a buffer, as many as Tokens says, and drops the other drafts",
		Body: body(u32("Profile"), u32("Rank"), u64("Buffer"), u32("Tokens")),
	},
	{
		Name: "ReplayRequest",
		Doc:  "writes states and convolution tails into a slot, in profile.CheckpointLayout(0). They are those after all tokens before position Token",
		Body: body(
			u32("Profile"), u32("Rank"), u64("Buffer"), u32("Token"),
			u8("Flush", doc("1 = the states also become the base of the buffer, and the rows before Token are removed")),
			u64("Into", doc("slot lease to write into, 0 = a new one")),
		),
	},
}
