package schema

// structs are the Go types that group columns of messages.
var structs = []Struct{
	{
		Name: "TenantName",
		Doc:  "is one tenant a client wants to speak for, with its token",
		Fields: []Field{
			{Name: "Name", Kind: Texts},
			{Name: "Token", Kind: Texts},
		},
	},
	{
		Name: "TenantGrant",
		Doc:  "is the answer for one TenantName, in the same order",
		Fields: []Field{
			{Name: "ID", Kind: U32},
			{Name: "Salt", Kind: Blobs, Doc: "goes into segment keys and prefix hashes"},
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
		Doc:  "is the spans that cover the tokens [Begin, End) of a prompt exactly once, in order. Starts are prompt positions",
		Fields: []Field{
			{Name: "Begin", Kind: U32}, {Name: "End", Kind: U32},
			{Name: "Kinds", Kind: U8s}, {Name: "Leases", Kind: U64s, Doc: "of SpanSegment"}, {Name: "Starts", Kind: U32s}, {Name: "Counts", Kind: U32s},
			{Name: "Inputs", Kind: U64s, Doc: "staging offset of (T, S) of a recomputed span, F32, laid out by profile.SeamLayout of the asked layers; None = not supplied, allowed for the last span only"},
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
		Doc:  "opens a connection. Sizes are wishes in bytes; 0 takes the daemon's default",
		Body: body(
			u16("MinVersion"), u16("MaxVersion"), u64("Features"), u64("StagingBytes"), u64("SlotBytes"),
			text("Client", "MaxName", doc("name and version, for people")),
			texts("Tenants[].Name", "MaxTenants", "MaxName", part("TenantName"), words("tenant names")),
			texts("Tenants[].Token", "MaxTenants", "MaxToken", part("TenantName"), words("tenant tokens"), rows("Tenants[].Name")),
		),
	},
	{
		Name: "HelloReply",
		Doc: "carries three descriptors, in this order: the public arena and the private slots (both can only be read), " +
			"and staging (read and write)",
		Body: body(
			u16("Version"), u64("Features"), u64("Connection"), u64("BootEpoch", doc("goes into every later header")),
			u64("ArenaBytes"), u64("SlotBytes"), u64("StagingBytes"), u32("MaxFrame"), u32("MaxInFlight"),
			text("Server", "MaxName"),
			u32s("Tenants[].ID", "MaxTenants", part("TenantGrant"), words("tenant ids")),
			blobs("Tenants[].Salt", "MaxTenants", "MaxSalt", part("TenantGrant"), words("tenant salts"), rows("Tenants[].ID")),
		),
	},
	{
		Name: "ProfileRequest",
		Doc: "registers an identity and this engine's binding. It may carry one descriptor: engine memory, described by Memory. " +
			"Segment and checkpoint bytes are the engine's own sizes, which must agree with the daemon's",
		Body: body(
			u32("BlockTokens", doc("engine block size; 0 = not paged")),
			u32("ProbeTokens", doc("interior length the next two are for")),
			u64("SegmentBytes"), u64("CheckpointBytes"), u64("MemoryBytes", doc("0 = no descriptor")),
			u8s("Identity", "MaxIdentity", doc("canonical bytes of profile.Identity")),
			text("Connector", "MaxName"), text("Engine", "MaxName"),
			memory,
		),
	},
	{
		Name: "ProfileReply",
		Doc:  "answers ProfileRequest",
		Body: body(u32("Profile"), u32("Memory", doc("id of the registered memory, 0 = none")), hash("Fingerprint")),
	},
	{
		Name: "AbortRequest",
		Doc:  "gives reservations back",
		Body: body(u64s("Reservations", "MaxIDs")),
	},
	{
		Name: "CodesReply",
		Doc:  "answers requests that give ids back, one row for each",
		Body: body(u16s("Codes", "MaxIDs")),
	},
	{
		Name: "CancelRequest",
		Doc:  "stops requests of this connection. The reply comes when none of them can touch a destination any more",
		Body: body(u64s("Requests", "MaxIDs")),
	},
	{
		Name: "CancelReply",
		Doc:  "has one row for each request id",
		Body: body(u8s("Outcomes", "MaxIDs", doc("CancelUnknown and so on"))),
	},
	{
		Name: "ReleaseRequest",
		Doc:  "gives leases back: segments, checkpoints and slots alike",
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
		Doc: "reports a canary's results: reuses of segments that an engine recomputed and compared. " +
			"The counts are those since the last report",
		Body: body(
			u32("Profile"), u32("Compared"), u32("Failed", doc("of these, those past the bound")),
			f64("Worst", doc("largest difference since the last report; +Inf where a result was no number")),
			f64("Bound", doc("what a difference may be")),
			u8("Off", doc("1 = splicing is to be switched off for this profile")),
			text("Text", "MaxErrorText", doc("for people")),
		),
		Sections: []Section{{
			Name: "Losses", Struct: "ReportLosses", Feature: "Losses",
			Doc: "counts requests that were spliced and computed in full, and of them those whose first token changed, in the order of LossWays",
			Body: body(
				u8("Offline", doc("1 = losses measured offline, which replace all earlier offline ones; 0 = losses measured by the canary since the last report")),
				u32s("Compared", "LossWays"), u32s("Changed", "LossWays", rows("Compared")),
				Check{Field: "Compared", Exactly: "LossWays"},
			),
		}},
	},
	{
		Name: "ReportReply",
		Doc:  "answers a ReportRequest",
		Body: body(u8("Off", doc("1 = the profile is switched off for the tenant, by this report or before"))),
	},
}
