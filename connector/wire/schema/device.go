package schema

// chunks are the columns that name shared memory of a device.
var chunks = body(
	u64s("ChunkBytes", "MaxChunks"),
	u8s("Handles", "MaxChunks*HandleBytes", doc("HandleBytes bytes for each chunk; with WayHandle only")),
	u64s("Offsets", "MaxChunks", doc("offset of each chunk in its allocation; with WayHandle only")),
	Check{Field: "Way", OneOf: []string{"WayDescriptor", "WayHandle"}},
	Check{Field: "Handles", Only: &Only{Scalar: "Way", Is: "WayHandle", Rows: "ChunkBytes", Times: "HandleBytes"}},
	Check{Field: "Offsets", Only: &Only{Scalar: "Way", Is: "WayHandle", Rows: "ChunkBytes"}},
)

var deviceMessages = []Message{
	{
		Name: "AttachDeviceRequest",
		Doc:  "asks for device memory: the public arena, and private chunks of this connection. A connection can get device memory only once",
		Body: body(
			u8("Ways", doc("ways in which the client can map memory")), u64("PrivateBytes", doc("requested size of the private chunks; 0 = the daemon's default")),
			u8s("UUID", "UUIDBytes", doc("UUID of the client's device; empty = the daemon's only device")),
			Check{Field: "UUID", Exactly: "UUIDBytes", OrNone: true},
		),
	},
	{
		Name: "AttachDeviceReply",
		Doc: "says what to map: first the chunks of the public arena, laid end to end, then the private chunks of this connection. " +
			"The first descriptor is a sealed memfd with the kernels' PTX text. If Way is WayDescriptor, one descriptor for each chunk follows",
		Body: body(
			u8("Way"), u64("Epoch", doc("epoch of the device's pools; it changes with each start of the daemon")),
			u64("PublicBytes", doc("size of the public arena, in which the extents of acquire-device are")),
			u64("PrivateBytes", doc("size of the private chunks, in which the slots of device requests are")),
			u64("OrderOff", doc("offset of the order page in the private chunks")),
			u32("OrderSlots", doc("number of slots of the order page, of OrderSlotBytes bytes each")),
			u32("PublicChunks", doc("how many of the chunks belong to the public arena")),
			u64("StagingOff", doc("offset of the staging in the private chunks. The client writes the staging, and inputs of a compose of device leases are relative to it")),
			u64("StagingBytes"),
			u8s("UUID", "UUIDBytes", doc("UUID of the daemon's device")),
			Check{Field: "UUID", Exactly: "UUIDBytes"},
			chunks,
			Check{Field: "PublicChunks", Within: "ChunkBytes"},
			u8s("Events", "2*HandleBytes", doc("handles of two events: the client records the first, the daemon the second. Empty if the device has 64-bit memory operations on streams")),
			Check{Field: "Events", Exactly: "2*HandleBytes", OrNone: true},
		),
	},
	{
		Name: "RegisterDeviceRequest",
		Doc: "registers device memory that the engine owns, as ProfileRequest does for host memory. " +
			"The chunks count as one run of bytes, and the offsets of layers are relative to its start. If Way is WayDescriptor, the request carries one descriptor for each chunk",
		Body: body(
			u32("Profile"), u8("Way"),
			u64("Epoch", doc("chosen by the client: memory that it registers again under the same number is the same memory")),
			chunks, memory,
		),
	},
	{
		Name: "RegisterDeviceReply",
		Doc:  "has the id of the memory, for rotate and assemble",
		Body: body(u32("Memory")),
	},
	{
		Name: "AcquireDeviceRequest",
		Doc:  "leases segments in device memory. A segment that is not there yet is copied there. If Wait is 1, the reply waits for the copy; otherwise the segment is a miss",
		Body: body(
			u32("Profile"), u32("Rank"), u32("TTLMs"), u8("Digests"), u8("All"), u8("Wait"), hashes("Keys", "MaxKeys"),
		),
	},
	{
		Name: "OrderRequest",
		Doc: "releases leases once the client's stream has passed a point. When the client's slot of the order page has reached the value After, the daemon releases the leases. " +
			"It then writes the value Signal to its own slot, unless Signal is 0",
		Body: body(u64("After"), u64("Signal"), u64s("Leases", "MaxIDs")),
	},
	{
		Name: "LoadDeviceRequest",
		Like: "LoadRequest",
		Doc:  "is a LoadRequest whose reply has extents in device memory",
	},
}
