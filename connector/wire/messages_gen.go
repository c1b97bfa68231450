// Code generated from connector/wire/schema by wiregen; DO NOT EDIT.

package wire

// TenantName is one tenant a client wants to speak for, with its token.
type TenantName struct {
	Name  string
	Token string
}

// TenantGrant is the answer for one TenantName, in the same order.
type TenantGrant struct {
	ID   uint32
	Salt []byte // goes into segment keys and prefix hashes
}

// MemoryLayer says where one attention layer's rows lie in memory that the
// engine owns. Offsets and strides are in bytes.
type MemoryLayer struct {
	Layer        uint32
	KBase        uint64
	VBase        uint64
	BlockStride  uint64
	KTokenStride uint64
	KHeadStride  uint64
	VTokenStride uint64
	VHeadStride  uint64
}

// Plan is the spans that cover the tokens [Begin, End) of a prompt exactly
// once, in order. Starts are prompt positions.
type Plan struct {
	Begin  uint32
	End    uint32
	Kinds  []uint8
	Leases []uint64 // of SpanSegment
	Starts []uint32
	Counts []uint32
	// Staging offset of (T, S) of a recomputed span, F32, laid out by
	// profile.SeamLayout of the asked layers; None = not supplied, allowed for the
	// last span only.
	Inputs []uint64
}

// HelloRequest opens a connection. Sizes are wishes in bytes; 0 takes the
// daemon's default.
type HelloRequest struct {
	MinVersion   uint16
	MaxVersion   uint16
	Features     uint64
	StagingBytes uint64
	SlotBytes    uint64
	Client       string // name and version, for people
	Tenants      []TenantName
}

// HelloReply carries three descriptors, in this order: the public arena and the
// private slots (both can only be read), and staging (read and write).
type HelloReply struct {
	Version      uint16
	Features     uint64
	Connection   uint64
	BootEpoch    uint64 // goes into every later header
	ArenaBytes   uint64
	SlotBytes    uint64
	StagingBytes uint64
	MaxFrame     uint32
	MaxInFlight  uint32
	Server       string
	Tenants      []TenantGrant
}

// ProfileRequest registers an identity and this engine's binding. It may carry
// one descriptor: engine memory, described by Memory. Segment and checkpoint
// bytes are the engine's own sizes, which must agree with the daemon's.
type ProfileRequest struct {
	BlockTokens     uint32 // engine block size; 0 = not paged
	ProbeTokens     uint32 // interior length the next two are for
	SegmentBytes    uint64
	CheckpointBytes uint64
	MemoryBytes     uint64  // 0 = no descriptor
	Identity        []uint8 // canonical bytes of profile.Identity
	Connector       string
	Engine          string
	Memory          []MemoryLayer
}

// ProfileReply answers ProfileRequest.
type ProfileReply struct {
	Profile     uint32
	Memory      uint32 // id of the registered memory, 0 = none
	Fingerprint [32]byte
}

// AbortRequest gives reservations back.
type AbortRequest struct {
	Reservations []uint64
}

// CodesReply answers requests that give ids back, one row for each.
type CodesReply struct {
	Codes []uint16
}

// CancelRequest stops requests of this connection. The reply comes when none of
// them can touch a destination any more.
type CancelRequest struct {
	Requests []uint64
}

// CancelReply has one row for each request id.
type CancelReply struct {
	Outcomes []uint8 // CancelUnknown and so on
}

// ReleaseRequest gives leases back: segments, checkpoints and slots alike.
type ReleaseRequest struct {
	Leases []uint64
}

// StatsRequest has an empty body.
type StatsRequest struct {
}

// StatsReply lists counters and gauges by name, in a stable order.
type StatsReply struct {
	Values []float64
	Names  []string
}

// ReportRequest reports a canary's results: reuses of segments that an engine
// recomputed and compared. The counts are those since the last report.
type ReportRequest struct {
	Profile  uint32
	Compared uint32
	Failed   uint32       // of these, those past the bound
	Worst    float64      // largest difference since the last report; +Inf where a result was no number
	Bound    float64      // what a difference may be
	Off      uint8        // 1 = splicing is to be switched off for this profile
	Text     string       // for people
	Losses   ReportLosses // with FeatureLosses
}

// ReportLosses counts requests that were spliced and computed in full, and of
// them those whose first token changed, in the order of LossWays.
type ReportLosses struct {
	Present bool // false = the section is absent, and the other fields are zero
	// 1 = losses measured offline, which replace all earlier offline ones; 0 =
	// losses measured by the canary since the last report.
	Offline  uint8
	Compared []uint32
	Changed  []uint32
}

// ReportReply answers a ReportRequest.
type ReportReply struct {
	Off uint8 // 1 = the profile is switched off for the tenant, by this report or before
}

// MatchRequest asks for the longest private prefix and then for the status of
// each segment, in one round trip. Positions ascend.
type MatchRequest struct {
	Profile   uint32
	Accept    uint8
	Positions []uint32          // tokens covered by each prefix hash
	Prefixes  [][32]byte        // rolling prefix hashes
	Keys      [][32]byte        // segment keys
	Prompt    MatchPrompt       // with FeaturePrompt
	Known     MatchKnownQuery   // with FeatureKnown
	Primers   MatchPrimersQuery // with FeaturePrimers
}

// MatchPrompt is the prompt that a match is for.
type MatchPrompt struct {
	Present  bool   // false = the section is absent, and the other fields are zero
	Tokens   uint32 // whole length
	TokenOff uint64 // staging offset of the token ids, little-endian uint32; None = only the length is told
}

// MatchKnownQuery asks which held segments the prompt contains; its token ids
// must be in staging. The search starts at Begin, and after the prefix that
// this match finds.
type MatchKnownQuery struct {
	Present    bool   // false = the section is absent, and the other fields are zero
	Begin      uint32 // token; 0 = from the start
	SeamTokens uint32 // seam width of the segments after token 0
}

// MatchPrimersQuery asks for segments that exist in two variants, captured
// after a primer or without one. Others has the second variant of each key. The
// scalars concern Known only.
type MatchPrimersQuery struct {
	Present    bool     // false = the section is absent, and the other fields are zero
	Primer     [32]byte // that segments from PrimedFrom on should have; zero = none
	PrimedFrom uint32   // token; segments that begin before it should have no primer
	Either     uint8    // 1 = the other variant is accepted where the preferred one is not cached
	// One for each of Keys, looked up where that misses; zero = there is none.
	// Empty = none at all.
	Others [][32]byte
}

// MatchReply has one row for each key of the request.
type MatchReply struct {
	PrefixTokens uint32 // 0 = no checkpoint
	PrefixIndex  uint32 // index in Positions; meaningful when PrefixTokens > 0
	PrefixFlags  uint8  // AcceptExact, AcceptSpliced or AcceptRows: what it is
	PrefixReason uint8
	PrefixTier   uint8 // TierNone = no checkpoint
	Status       []uint8
	Tier         []uint8
	Reason       []uint8
	Tokens       []uint32       // interior tokens of a hit; 0 where not known, in TierPeer only
	Estimates    MatchEstimates // with FeatureEstimates
	Known        MatchKnown     // with FeatureKnown
	Rows         MatchRows      // with FeatureRows
	Primers      MatchPrimers   // with FeaturePrimers
}

// MatchEstimates gives the expected time of using the prefix and each row, and
// its error. Micros are until its bytes can be read, 2^32-1 where nothing is
// known. An error is a bound on the relative error of the bytes held: 0 for
// what was written, +Inf where nothing is known.
type MatchEstimates struct {
	Present      bool // false = the section is absent, and the other fields are zero
	PrefixMicros uint32
	PrefixError  float64
	Micros       []uint32
	Error        []float64
}

// MatchKnown lists segments that are held: tokens [Starts[i],
// Starts[i]+Lengths[i]) of the prompt have Keys[i]. They ascend and do not
// overlap.
type MatchKnown struct {
	Present   bool   // false = the section is absent, and the other fields are zero
	Untried   uint32 // tokens at which some lengths were left out, since too many segments begin alike
	Reason    uint8  // ReasonOff = the profile is switched off for splicing, else ReasonNone
	Starts    []uint32
	Lengths   []uint32
	Keys      [][32]byte
	Tiers     []uint8
	Interiors []uint32 // tokens that are not computed again
}

// MatchRows gives the part of the prefix that has states; those of later tokens
// are rebuilt from rows.
type MatchRows struct {
	Present      bool   // false = the section is absent, and the other fields are zero
	PrefixStates uint32 // tokens; 0 = rows from the start on
}

// MatchPrimers says which variant each row is about.
type MatchPrimers struct {
	Present  bool    // false = the section is absent, and the other fields are zero
	Variants []uint8 // 1 = the row is about Others[i]: it is a hit and Keys[i] is not; else 0
	Primed   []uint8 // one for each row of Known: 1 = it was captured after the primer
}

// AcquireRequest leases segments for reading by one rank.
type AcquireRequest struct {
	Profile  uint32
	Rank     uint32
	TTLMs    uint32 // 0 = the daemon's default
	Reserved uint32 // 0; older clients could ask for block tables here
	Digests  uint8  // 1 = answer chunk digests too
	All      uint8  // 1 = lease every key, or none and refuse with Full
	Keys     [][32]byte
}

// AcquireReply has one row for each key. Extents are in the public arena and
// stay valid and unchanged until the lease is released; Digest holds, for each
// hit in order, one digest for each chunk of each part, and is empty unless
// asked for. The reserved columns, once block tables, are empty.
type AcquireReply struct {
	Codes         []uint16
	Leases        []uint64
	Bytes         []uint64
	Begins        []uint32 // first interior token, local to the segment
	Tokens        []uint32 // interior tokens
	ExtentCount   []uint32
	ExtentOff     []uint64
	ExtentLen     []uint64
	DigestCount   []uint32
	Digest        []uint64
	ReservedCount []uint32
	Reserved      []uint64
	Packed        AcquirePacked // with FeaturePacked
}

// AcquirePacked gives the layouts of segments with packed parts: row i has
// Count[i] bytes of Layout, a profile.Packed, none where nothing is packed.
type AcquirePacked struct {
	Present bool // false = the section is absent, and the other fields are zero
	Count   []uint32
	Layout  []uint8
}

// ReserveRequest asks for room for segments. Token ids (little-endian uint32)
// lie in staging; the daemon recomputes each key from them.
type ReserveRequest struct {
	Profile  uint32
	Rank     uint32
	Keys     [][32]byte
	Roles    []uint8
	Heads    []uint32
	Tails    []uint32
	Tokens   []uint32       // whole length n
	TokenOff []uint64       // staging offset of the n token ids
	Primers  ReservePrimers // with FeaturePrimers
}

// ReservePrimers names the primer after which each segment was captured.
type ReservePrimers struct {
	Present bool       // false = the section is absent, and the other fields are zero
	IDs     [][32]byte // zero = none
}

// ReserveReply has one row for each key.
type ReserveReply struct {
	Codes        []uint16
	Reservations []uint64
	Bytes        []uint64
}

// CommitRequest hands over chunks of parts that lie in staging. A chunk is
// gpuipc.ChunkBytes of one part, the last one of a part shorter. Digest has
// ChunkCount[i] entries for row i, one after another: XXH3-64, or CRC-32 with
// FeatureCRC32Digests.
type CommitRequest struct {
	Level        uint8 // a Level; it counts where the request completes an object
	Reservations []uint64
	Parts        []uint32
	ChunkFirst   []uint32
	ChunkCount   []uint32
	StagingOff   []uint64
	Digest       []uint64
}

// CommitReply has one row for each row of the request. Published is 1 on the
// row whose chunks completed the object for all ranks. There Levels has the
// Level that the object has reached, which is lower than the one asked for when
// a disk is not able to; elsewhere it is 0.
type CommitReply struct {
	Codes     []uint16
	Published []uint8
	Levels    []uint8
}

// SaveRequest asks for room for checkpoints. A parent is the prefix hash of the
// checkpoint that this one extends, all zero for none; only rows of tokens
// [parent, Tokens) are stored.
type SaveRequest struct {
	Profile  uint32
	Rank     uint32
	Kind     uint8 // AcceptExact, AcceptSpliced or AcceptRows
	Hashes   [][32]byte
	Tokens   []uint32
	Parents  [][32]byte
	Buffered SaveBuffered // with FeatureBuffered
}

// SaveBuffered names a buffer whose accepted rows are the linear layers' rows,
// for checkpoints of kind AcceptRows: the daemon copies them, and only keys and
// values of attention layers are left to commit. A profile without such layers
// has nothing to commit: the checkpoint is published.
type SaveBuffered struct {
	Present bool // false = the section is absent, and the other fields are zero
	Buffer  uint64
}

// LoadRequest leases the checkpoint of a prefix hash.
type LoadRequest struct {
	Profile uint32
	Rank    uint32
	TTLMs   uint32
	Accept  uint8
	Digests uint8
	Hash    [32]byte
}

// LoadReply lists the chain of nodes from the root to the checkpoint. Each node
// is laid out by profile.CheckpointLayout(End-Begin), or profile.EdgeLayout of
// as many tokens where it is kept as rows; states and convolution tails belong
// to the last node.
type LoadReply struct {
	Lease       uint64
	Tokens      uint32
	Kind        uint8
	NodeBegin   []uint32
	NodeEnd     []uint32
	ExtentCount []uint32
	ExtentOff   []uint64
	ExtentLen   []uint64
	DigestCount []uint32
	Digest      []uint64
	Rows        LoadRows // with FeatureRows
}

// LoadRows says what each node is.
type LoadRows struct {
	Present bool    // false = the section is absent, and the other fields are zero
	Kinds   []uint8 // AcceptExact, AcceptSpliced or AcceptRows
}

// ComposeRequest moves a running state over a plan, for one layer or all linear
// layers.
type ComposeRequest struct {
	Profile   uint32
	Rank      uint32
	Layer     int32
	Plan      Plan
	From      uint8
	FromLease uint64
	FromOff   uint64
	Into      uint64 // slot lease of the right size to write into, 0 = a new one
}

// ComposeReply says where the states are. For each asked linear layer, in
// order: one F32 state before each recomputed span, then the final state, each
// [heads, dk, dv] and padded to profile.PartAlign. When the last span has no
// input the final state is the state before it.
type ComposeReply struct {
	Lease uint64
	Off   uint64 // in the slots region
	Bytes uint64
}

// RotateRequest places the keys and values of a plan's segments (and of a
// checkpoint it begins from, for DestMemory) for one attention layer or all.
type RotateRequest struct {
	Profile   uint32
	Rank      uint32
	Layer     int32
	Memory    uint32
	Plan      Plan
	Dest      uint8
	From      uint8 // FromZero or FromCheckpoint
	FromLease uint64
	Into      uint64   // slot lease to write into, 0 = a new one
	Blocks    []uint32 // the engine's block table for tokens [0, End)
}

// RotateReply gives the places of rows when Dest is DestSlot: for each asked
// attention layer, K then V, each the segment rows of the plan packed in plan
// order and padded to profile.PartAlign.
type RotateReply struct {
	Lease uint64
	Off   uint64
	Bytes uint64
	Rows  uint32
}

// AssembleRequest is compose and rotate of all layers in one request, for plans
// whose only recomputed span is the last. It also answers the convolution tail
// of the last segment. With DestSlot the result is laid out as
// profile.CheckpointLayout(rows); with DestMemory as CheckpointLayout(0) and
// the rows go to engine memory.
type AssembleRequest struct {
	RotateRequest
}

// AppendRequest adds rows to a buffer, or opens one. The rows lie in staging,
// as profile.BufferLayout(Rows) has them.
type AppendRequest struct {
	Profile    uint32
	Rank       uint32
	Buffer     uint64 // 0 = open one
	Base       uint64 // of a new one: lease of a loaded checkpoint or a slot; 0 = zero state
	Begin      uint32 // prompt position of the first row
	Capacity   uint32 // of a new one: most rows it holds
	Rows       uint32 // 0 is allowed when a buffer is opened
	StagingOff uint64
}

// AppendReply answers append and accept: what the buffer holds now, in prompt
// positions.
type AppendReply struct {
	Buffer   uint64
	Begin    uint32 // of the state under the first row
	Accepted uint32 // tokens before it are certain
	End      uint32
}

// AcceptRequest keeps the first Tokens rows that are not accepted yet, and
// drops the others.
type AcceptRequest struct {
	Profile uint32
	Rank    uint32
	Buffer  uint64
	Tokens  uint32
}

// ReplayRequest writes the states and convolution tails after the tokens before
// Token into a slot, laid out as profile.CheckpointLayout(0).
type ReplayRequest struct {
	Profile uint32
	Rank    uint32
	Buffer  uint64
	Token   uint32
	Flush   uint8  // 1 = the rows before Token are merged into the buffer's base
	Into    uint64 // slot lease to write into, 0 = a new one
}

// AdviseRequest asks what to use and what to store for a prompt whose token ids
// (little-endian uint32) lie in staging. What match has answered comes along;
// zero means nothing is held. Cuts and the begins of segments ascend. Samples
// are prefills measured since the last advise: tokens [begin, end) and the
// microseconds they took.
type AdviseRequest struct {
	Profile        uint32
	Record         uint8  // 1 = this prompt is being served: remember it; 0 = only asked
	BlockTokens    uint32 // positions must be multiples of it; 0 = 1
	MaxCheckpoints uint32 // 0 = the daemon's default
	Tokens         uint32 // whole length
	TokenOff       uint64 // staging offset of the token ids
	Output         uint32 // of these, generated tokens at the end
	PrefixTokens   uint32 // of the longest checkpoint
	PrefixTier     uint8
	// End of the rows after the prefix, in tokens, if a buffer or a checkpoint kept
	// as rows holds them.
	BufferTokens uint32
	// Computed again in all, when the segments that are held are used; where none
	// is held, when all are.
	SeamTokens    uint32
	Cuts          []uint32
	SegmentBegin  []uint32
	SegmentTokens []uint32
	SegmentStatus []uint8 // StatusMiss and so on
	SegmentTier   []uint8
	SampleBegin   []uint32
	SampleEnd     []uint32
	SampleMicros  []uint32
	Measured      AdviseMeasured // with FeatureSplices
	Limit         AdviseLimit    // with FeatureLosses
	Match         AdviseMatch    // with FeatureLookup
}

// AdviseMeasured gives the times of splices since the last advise. A walk puts
// segments in place: it computed WalkRows rows between them and placed
// WalkPlaced rows in WalkMicros, including reads of memory but not waits for a
// disk or another node. A capture computed CaptureTokens tokens of segments in
// isolation.
type AdviseMeasured struct {
	Present       bool // false = the section is absent, and the other fields are zero
	WalkRows      []uint32
	WalkPlaced    []uint32
	WalkMicros    []uint32
	CaptureTokens []uint32
	CaptureMicros []uint32
}

// AdviseLimit is the loss that the request accepts, and how it would be
// spliced.
type AdviseLimit struct {
	Present   bool    // false = the section is absent, and the other fields are zero
	MaxLoss   float64 // 0 to 1; 1 = any
	Primed    uint8   // 1 = its segments were captured after the primer where one is for them
	Refreshed uint8   // 1 = its last segments are computed in context, and not named here
}

// AdviseMatch has the daemon look the prompt up first, as `match` does, in one
// round trip. The prefix, the status and tier of segments, and primed of
// *limit* are then not read. Each segment has a key.
type AdviseMatch struct {
	Present   bool // false = the section is absent, and the other fields are zero
	Accept    uint8
	Positions []uint32
	Prefixes  [][32]byte
	Keys      [][32]byte
	Others    [][32]byte // as in `match`
	// Bit 0: this variant was captured after the primer; bit 1: such a one is
	// preferred at its place.
	Primed []uint8
}

// AdviseReply has one row for each advised checkpoint and one for each segment.
type AdviseReply struct {
	SeenTokens    uint32    // longest prefix of this prompt that was seen before
	Way           uint8     // the quickest
	WayMicros     []float64 // predicted; +Inf = not possible here
	Positions     []uint32  // ascending
	Why           []uint8
	Admit         []uint8   // 1 = store it
	Reason        []uint8   // why not
	Value         []float64 // expected milliseconds saved per MiB
	SegmentAdmit  []uint8   // 1 = publish this segment, which is missing
	SegmentReason []uint8
	Splice        AdviseSplice  // with FeatureSplices
	Loss          AdviseLoss    // with FeatureLosses
	Match         AdviseMatched // with FeatureLookup
}

// AdviseSplice is the splice that WayMicros prices.
type AdviseSplice struct {
	Present bool // false = the section is absent, and the other fields are zero
	// Number of leading segment rows to take, as far as they are held or admitted;
	// the engine computes what follows the last one; 0 = none can be used.
	Segments uint32
}

// AdviseLoss answers a Limit with the expected losses of the splice, from 0 to
// 1; negative = not known.
type AdviseLoss struct {
	Present   bool    // false = the section is absent, and the other fields are zero
	Asked     float64 // as it asked
	Refreshed float64 // with its last segment computed in context
	Splicing  uint8   // what WayMicros prices
}

// AdviseMatched is what was found, as in the reply of `match` and its sections.
type AdviseMatched struct {
	Present      bool // false = the section is absent, and the other fields are zero
	PrefixTokens uint32
	PrefixIndex  uint32
	PrefixFlags  uint8
	PrefixReason uint8
	PrefixTier   uint8
	PrefixStates uint32
	Status       []uint8
	Tier         []uint8
	Reason       []uint8
	Tokens       []uint32
	Error        []float64
	Variants     []uint8
}

// ServedRequest reports how the prompt of one request was served, after its
// first token. Its tokens came from the engine's own cache: the first Engine;
// from a checkpoint: Prefix more; from segments; the rest was computed.
// Segments are those that the prompt was cut into, ascend and do not overlap;
// Reused of the tokens from At on came from the daemon, and lie after the
// prefix. Times are in microseconds, 0 where nothing was measured.
type ServedRequest struct {
	Profile      uint32
	Way          uint8  // how it was served
	Tokens       uint32 // of the prompt
	Engine       uint32
	Prefix       uint32
	PrefixTier   uint8     // TierNone = no checkpoint was used
	PrefixReason uint8     // why no longer one was
	ReadBytes    uint64    // of states and rows that were read or composed
	MatchMicros  uint32    // until it was decided how
	WaitMicros   uint32    // for bytes, from then on
	FirstMicros  uint32    // from the request's arrival to its first token
	WayMicros    []float64 // predicted, as advise answered; indexed by way minus one
	Begins       []uint32
	Counts       []uint32 // whole length
	At           []uint32
	Reused       []uint32
	Tiers        []uint8    // where match found it; TierNone = nowhere
	Reasons      []uint8    // why it is a miss
	Keys         [][32]byte // all zero where a span has none
	Request      string     // the engine's name of the request
	Trace        string     // a traceparent as W3C Trace Context has it; empty = none
	Loss         ServedLoss // with FeatureLosses
}

// ServedLoss is the loss of a spliced request as advise has answered it.
type ServedLoss struct {
	Present  bool    // false = the section is absent, and the other fields are zero
	Expected float64 // 0 to 1; negative = not known
}

// ServedReply answers a ServedRequest.
type ServedReply struct {
	Number uint64 // under which the request is listed
	// Of spliced requests, what the engine's canary computes again from now on;
	// negative = as the engine was told.
	CanaryShare float64
}

// AttachDeviceRequest asks for device memory: the public arena and chunks of
// this connection's own. It is answered once on a connection.
type AttachDeviceRequest struct {
	Ways         uint8   // what the client is able to map
	PrivateBytes uint64  // wanted; 0 = the daemon's default
	UUID         []uint8 // the client's device, UUIDBytes long; empty = the daemon's only one
}

// AttachDeviceReply says what to map, in the order of the chunks: those of the
// public arena laid end to end, then those of the private one. Descriptors:
// first a sealed memfd with the kernels' PTX text, then one for each chunk
// where Way is WayDescriptor.
type AttachDeviceReply struct {
	Way          uint8
	Epoch        uint64 // of the device's pools; other numbers after a restart
	PublicBytes  uint64 // of the chunks of the arena; acquire-device answers extents in it
	PrivateBytes uint64 // of the private chunks; slots of device requests lie in them
	OrderOff     uint64 // of the order page, in the private chunks
	OrderSlots   uint32 // of OrderSlotBytes each
	PublicChunks uint32 // how many of the chunks are the arena's
	// In the private chunks: what the client writes. Inputs of a compose of device
	// leases count from here.
	StagingOff   uint64
	StagingBytes uint64
	UUID         []uint8 // the daemon's device
	ChunkBytes   []uint64
	Handles      []uint8  // HandleBytes for each chunk; WayHandle only
	Offsets      []uint64 // where in its allocation each chunk begins; WayHandle only
	// Handles of two events where the device has no memory operations on streams:
	// recorded by the client, recorded by the daemon.
	Events []uint8
}

// RegisterDeviceRequest registers device memory that the engine owns, as
// ProfileRequest does for memory of the host. Chunks are taken as one run,
// which the layers' offsets count from. Descriptors: one for each chunk where
// Way is WayDescriptor.
type RegisterDeviceRequest struct {
	Profile    uint32
	Way        uint8
	Epoch      uint64 // the client's: what it registers again under the same number is the same memory
	ChunkBytes []uint64
	Handles    []uint8  // HandleBytes for each chunk; WayHandle only
	Offsets    []uint64 // where in its allocation each chunk begins; WayHandle only
	Memory     []MemoryLayer
}

// RegisterDeviceReply names the memory for rotate and assemble.
type RegisterDeviceReply struct {
	Memory uint32
}

// AcquireDeviceRequest leases segments in device memory. Others are copied
// there first: with Wait 1 the reply waits for the copy, otherwise they are a
// miss.
type AcquireDeviceRequest struct {
	Profile uint32
	Rank    uint32
	TTLMs   uint32
	Digests uint8
	All     uint8
	Wait    uint8
	Keys    [][32]byte
}

// OrderRequest ties leases to the client's stream: when the client's slot of
// the order page has reached After, the leases are released, and then Signal,
// if it is not 0, is written to the daemon's slot.
type OrderRequest struct {
	After  uint64
	Signal uint64
	Leases []uint64
}

// LoadDeviceRequest is a LoadRequest whose reply has extents in device memory.
type LoadDeviceRequest struct {
	LoadRequest
}

// PlanRequest asks which engines of which nodes compute the missing segments of
// a prompt, and has them begin. Token ids (little-endian uint32) lie in
// staging, those of all rows one after another; the daemon recomputes each key
// from them.
type PlanRequest struct {
	Profile      uint32
	Pieces       uint8  // 1 = segments may be cut in two, and this engine is able to do either piece
	QueuedMicros uint32 // of other work that this engine does first
	WithinMs     uint32 // results that have not arrived by then are late; 0 = the daemon's default
	TokenOff     uint64 // staging offset of the token ids of all rows
	Keys         [][32]byte
	Roles        []uint8
	Heads        []uint32
	Tails        []uint32
	Tokens       []uint32    // whole length n
	Primers      PlanPrimers // with FeaturePrimers
}

// PlanPrimers names the primer after which each segment is to be captured. Only
// engines take part that have all of them.
type PlanPrimers struct {
	Present bool       // false = the section is absent, and the other fields are zero
	IDs     [][32]byte // zero = none; at most MaxPrimers different ones
}

// PlanReply has one row for each key, and lists what the asking engine computes
// itself, in the order to do it: tokens [OwnBegins[i], OwnEnds[i]) of row
// OwnRows[i]. Times are from now until a segment can be acquired here.
type PlanReply struct {
	Plan        uint64 // id, for watch; 0 = nothing was begun: compute all rows here
	Alone       uint8  // why nothing was begun
	Micros      uint32 // until all rows are here
	AloneMicros uint32 // that of computing all rows here
	// 0 = the engine that asks, else a number of this plan's: one for each engine.
	// For a segment in two pieces, the engine that computes the last one.
	Workers   []uint32
	RowMicros []uint32 // until the row is expected here
	OwnRows   []uint32
	OwnBegins []uint32
	OwnEnds   []uint32
	Combine   string // node at which the rows would be together earliest; empty = this one
}

// WatchRequest waits for what happens next: to the rows of a plan, or, where
// Plan is 0, for jobs. Who asks for jobs is a worker of its profile and tenant
// until it has no job and has not asked for some seconds.
type WatchRequest struct {
	Profile      uint32
	WaitMs       uint32            // most that the answer takes; 0 = at once
	Plan         uint64            // 0 = for jobs
	End          uint8             // 1 = this ends the plan, or this worker takes no more jobs
	Pieces       uint8             // of workers: 1 = able to go on from the first piece of a segment
	Jobs         uint32            // of workers: most jobs at once, those included that it has
	QueuedMicros uint32            // of workers: other work that they do first
	Declined     []uint64          // of workers: jobs that they do not do
	Primers      WatchPrimersQuery // with FeaturePrimers
}

// WatchPrimersQuery lists the primers that a worker has. Without it, it is
// given no segment that is captured after one.
type WatchPrimersQuery struct {
	Present bool // false = the section is absent, and the other fields are zero
	IDs     [][32]byte
}

// WatchReply of a plan has a row for each row of it that something happened to
// since the last watch. For a worker it has a row for each new job. A job is
// done when its key is published, by reserve and commit on whatever connection
// of the node. IDs are the token ids of all its jobs, Tokens[i] of each, one
// after another.
type WatchReply struct {
	Open     uint32   // rows of the plan that nothing final happened to yet; jobs that the worker has
	Rows     []uint32 // of the plan
	Progress []uint8
	Jobs     []uint64
	Keys     [][32]byte // what to publish
	Roles    []uint8
	Heads    []uint32
	Tails    []uint32
	Begins   []uint32 // 0 = all of it is computed, else go on at this token
	// Where Begins is not 0: the key of the segment of the tokens before it, which
	// has the same role and head, and no tail.
	Lefts     [][32]byte
	Micros    []uint32     // from now on; after that the job is no longer awaited
	Tokens    []uint32     // whole length n
	IDs       []uint32     // token ids
	Withdrawn []uint64     // jobs of this worker that are no longer awaited
	Primers   WatchPrimers // with FeaturePrimers
}

// WatchPrimers names the primer after which each job's segment is to be
// captured.
type WatchPrimers struct {
	Present bool       // false = the section is absent, and the other fields are zero
	IDs     [][32]byte // zero = none
}
