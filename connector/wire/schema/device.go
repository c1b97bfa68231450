package schema

// chunks are the columns that name shared memory of a device.
var chunks = body(
	u64s("ChunkBytes", "MaxChunks"),
	u8s("Handles", "MaxChunks*HandleBytes", doc("HandleBytes for each chunk; WayHandle only")),
	u64s("Offsets", "MaxChunks", doc("where in its allocation each chunk begins; WayHandle only")),
	Check{Field: "Way", OneOf: []string{"WayDescriptor", "WayHandle"}},
	Check{Field: "Handles", Only: &Only{Scalar: "Way", Is: "WayHandle", Rows: "ChunkBytes", Times: "HandleBytes"}},
	Check{Field: "Offsets", Only: &Only{Scalar: "Way", Is: "WayHandle", Rows: "ChunkBytes"}},
)

var deviceMessages = []Message{
	{
		Name: "AttachDeviceRequest",
		Doc:  "asks for device memory: the public arena and chunks of this connection's own. It is answered once on a connection",
		Body: body(
			u8("Ways", doc("what the client is able to map")), u64("PrivateBytes", doc("wanted; 0 = the daemon's default")),
			u8s("UUID", "UUIDBytes", doc("the client's device, UUIDBytes long; empty = the daemon's only one")),
			Check{Field: "UUID", Exactly: "UUIDBytes", OrNone: true},
		),
	},
	{
		Name: "AttachDeviceReply",
		Doc: "says what to map, in the order of the chunks: those of the public arena laid end to end, then those of the private one. " +
			"Descriptors: first a sealed memfd with the kernels' PTX text, then one for each chunk where Way is WayDescriptor",
		Body: body(
			u8("Way"), u64("Epoch", doc("of the device's pools; other numbers after a restart")),
			u64("PublicBytes", doc("of the chunks of the arena; acquire-device answers extents in it")),
			u64("PrivateBytes", doc("of the private chunks; slots of device requests lie in them")),
			u64("OrderOff", doc("of the order page, in the private chunks")),
			u32("OrderSlots", doc("of OrderSlotBytes each")),
			u32("PublicChunks", doc("how many of the chunks are the arena's")),
			u64("StagingOff", doc("in the private chunks: what the client writes. Inputs of a compose of device leases count from here")),
			u64("StagingBytes"),
			u8s("UUID", "UUIDBytes", doc("the daemon's device")),
			Check{Field: "UUID", Exactly: "UUIDBytes"},
			chunks,
			Check{Field: "PublicChunks", Within: "ChunkBytes"},
			u8s("Events", "2*HandleBytes", doc("handles of two events where the device has no memory operations on streams: recorded by the client, recorded by the daemon")),
			Check{Field: "Events", Exactly: "2*HandleBytes", OrNone: true},
		),
	},
	{
		Name: "RegisterDeviceRequest",
		Doc: "registers device memory that the engine owns, as ProfileRequest does for memory of the host. " +
			"Chunks are taken as one run, which the layers' offsets count from. Descriptors: one for each chunk where Way is WayDescriptor",
		Body: body(
			u32("Profile"), u8("Way"),
			u64("Epoch", doc("the client's: what it registers again under the same number is the same memory")),
			chunks, memory,
		),
	},
	{
		Name: "RegisterDeviceReply",
		Doc:  "names the memory for rotate and assemble",
		Body: body(u32("Memory")),
	},
	{
		Name: "AcquireDeviceRequest",
		Doc:  "leases segments in device memory. Others are copied there first: with Wait 1 the reply waits for the copy, otherwise they are a miss",
		Body: body(
			u32("Profile"), u32("Rank"), u32("TTLMs"), u8("Digests"), u8("All"), u8("Wait"), hashes("Keys", "MaxKeys"),
		),
	},
	{
		Name: "OrderRequest",
		Doc: "ties leases to the client's stream: when the client's slot of the order page has reached After, the leases are released, " +
			"and then Signal, if it is not 0, is written to the daemon's slot",
		Body: body(u64("After"), u64("Signal"), u64s("Leases", "MaxIDs")),
	},
	{
		Name: "LoadDeviceRequest",
		Like: "LoadRequest",
		Doc:  "is a LoadRequest whose reply has extents in device memory",
	},
}
