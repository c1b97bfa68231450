package schema

// structs are the Go types that group columns of messages.
var structs = []Struct{
	{
		Name: "TenantName",
		Doc:  "is a tenant that a client wants to act for, and the token that proves it",
		Fields: []Field{
			{Name: "Name", Kind: Texts},
			{Name: "Token", Kind: Texts},
		},
	},
	{
		Name: "TenantGrant",
		Doc:  "is the daemon's answer to one TenantName. Grants are in the order of the request",
		Fields: []Field{
			{Name: "ID", Kind: U32},
			{Name: "Salt", Kind: Blobs, Doc: "part of segment keys and prefix hashes"},
		},
	},
	{
		Name: "MemoryLayer",
		Doc:  "says where one attention layer's rows lie in memory that the engine owns. Offsets and strides are in bytes",
		Fields: []Field{
			{Name: "Layer", Kind: U32}, {Name: "KBase", Kind: U64}, {Name: "VBase", Kind: U64}, {Name: "BlockStride", Kind: U64},
			{Name: "KTokenStride", Kind: U64}, {Name: "KHeadStride", Kind: U64}, {Name: "VTokenStride", Kind: U64}, {Name: "VHeadStride", Kind: U64},
		},
	},
	{
		Name: "Plan",
		Doc:  "lists spans that cover the tokens [Begin, End) of a prompt exactly once, in order. Element i of each column describes span i, which begins at prompt position Starts[i]",
		Fields: []Field{
			{Name: "Begin", Kind: U32}, {Name: "End", Kind: U32},
			{Name: "Kinds", Kind: U8s}, {Name: "Leases", Kind: U64s, Doc: "for SpanSegment: lease of the segment"}, {Name: "Starts", Kind: U32s}, {Name: "Counts", Kind: U32s},
			{Name: "Inputs", Kind: U64s, Doc: "staging offset of the transition and end-state (T, S) of a recomputed span, in F32 and in profile.SeamLayout of the requested layers; None = not supplied, which is allowed for the last span only"},
		},
	},
}

// memory is a []MemoryLayer as eight columns.
var memory = func() []Item {
	items := body(u32s("Memory[].Layer", "MaxMemoryLayers", part("MemoryLayer")))
	for _, name := range []string{"KBase", "VBase", "BlockStride", "KTokenStride", "KHeadStride", "VTokenStride", "VHeadStride"} {
		items = append(items, u64s("Memory[]."+name, "MaxMemoryLayers", part("MemoryLayer"), rows("Memory[].Layer")))
	}
	return items
}()

var sessionMessages = []Message{
	{
		Name: "HelloRequest",
		Doc:  "opens a connection. StagingBytes and SlotBytes are the requested sizes of the regions; 0 = the daemon's default",
		Body: body(
			u16("MinVersion"), u16("MaxVersion"), u64("Features"), u64("StagingBytes"), u64("SlotBytes"),
			text("Client", "MaxName", doc("name and version of the client, shown to people")),
			texts("Tenants[].Name", "MaxTenants", "MaxName", part("TenantName"), words("tenant names")),
			texts("Tenants[].Token", "MaxTenants", "MaxToken", part("TenantName"), words("tenant tokens"), rows("Tenants[].Name")),
		),
	},
	{
		Name: "HelloReply",
		Doc: "comes with three descriptors: first the public arena and this connection's slots, which the client can map for reading only, " +
			"then this connection's staging, which the client can map for reading and writing",
		Body: body(
			u16("Version"), u64("Features"), u64("Connection"), u64("BootEpoch", doc("part of the header of every later frame")),
			u64("ArenaBytes"), u64("SlotBytes"), u64("StagingBytes"), u32("MaxFrame"), u32("MaxInFlight"),
			text("Server", "MaxName"),
			u32s("Tenants[].ID", "MaxTenants", part("TenantGrant"), words("tenant ids")),
			blobs("Tenants[].Salt", "MaxTenants", "MaxSalt", part("TenantGrant"), words("tenant salts"), rows("Tenants[].ID")),
		),
	},
	{
		Name: "ProfileRequest",
		Doc: "registers a model's identity and this engine's binding. It may carry one descriptor, of engine memory, which the field Memory describes. " +
			"SegmentBytes and CheckpointBytes are the sizes that the engine computes; the daemon refuses the profile if it computes other sizes",
		Body: body(
			u32("BlockTokens", doc("engine block size; 0 = not paged")),
			u32("ProbeTokens", doc("number of interior tokens for which SegmentBytes and CheckpointBytes are computed")),
			u64("SegmentBytes"), u64("CheckpointBytes"), u64("MemoryBytes", doc("0 = no descriptor")),
			u8s("Identity", "MaxIdentity", doc("canonical bytes of profile.Identity")),
			text("Connector", "MaxName"), text("Engine", "MaxName"),
			memory,
		),
	},
	{
		Name: "ProfileReply",
		Doc:  "answers a ProfileRequest",
		Body: body(u32("Profile"), u32("Memory", doc("id of the registered memory, 0 = none")), hash("Fingerprint")),
	},
	{
		Name: "AbortRequest",
		Doc:  "gives up reservations",
		Body: body(u64s("Reservations", "MaxIDs")),
	},
	{
		Name: "CodesReply",
		Doc:  "answers AbortRequest, ReleaseRequest and OrderRequest. It has one code for each id of the request",
		Body: body(u16s("Codes", "MaxIDs")),
	},
	{
		Name: "CancelRequest",
		Doc:  "stops requests of this connection. The daemon replies once none of these requests can access its destination any more",
		Body: body(u64s("Requests", "MaxIDs")),
	},
	{
		Name: "CancelReply",
		Doc:  "has one outcome for each request id",
		Body: body(u8s("Outcomes", "MaxIDs", doc("CancelUnknown, CancelStopped or CancelDrained"))),
	},
	{
		Name: "ReleaseRequest",
		Doc:  "ends leases of segments, checkpoints and slots",
		Body: body(u64s("Leases", "MaxIDs")),
	},
	{Name: "StatsRequest", Doc: "has an empty body"},
	{
		Name: "StatsReply",
		Doc:  "lists counters and gauges by name, in a stable order",
		Body: body(f64s("Values", "MaxStats"), texts("Names", "MaxStats", "MaxName", rows("Values"))),
	},
	{
		Name: "ReportRequest",
		Doc: "reports the results of a canary, an engine that recomputes some reused segments and compares the results. " +
			"Counts are since the canary's last report",
		Body: body(
			u32("Profile"), u32("Compared"), u32("Failed", doc("how many of the compared reuses differed by more than Bound")),
			f64("Worst", doc("largest difference since the last report; +Inf if a result was not a number")),
			f64("Bound", doc("largest difference that is no failure")),
			u8("Off", doc("1 = switch this profile off for splicing")),
			text("Text", "MaxErrorText", doc("what was wrong, for operators")),
		),
		Sections: []Section{{
			Name: "Losses", Struct: "ReportLosses", Feature: "Losses",
			Doc: "counts requests that were both spliced and computed in full, for each of the LossWays ways of splicing. Compared has the number of these requests, Changed the number of those in which the two first tokens differed",
			Body: body(
				u8("Offline", doc("1 = counts that were measured before the engine served requests, and that replace earlier offline counts of the same ways; 0 = counts of the canary since its last report")),
				u32s("Compared", "LossWays"), u32s("Changed", "LossWays", rows("Compared")),
				Check{Field: "Compared", Exactly: "LossWays"},
			),
		}},
	},
	{
		Name: "ReportReply",
		Doc:  "answers a ReportRequest",
		Body: body(u8("Off", doc("1 = the profile is switched off for the tenant, by this report or earlier"))),
	},
}
