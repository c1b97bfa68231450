// Code generated from connector/wire/schema by wiregen; DO NOT EDIT.

package wire

// TenantName is a tenant that a client wants to act for, and the token that
// proves it.
type TenantName struct {
	Name  string
	Token string
}

// TenantGrant is the daemon's answer to one TenantName. Grants are in the order
// of the request.
type TenantGrant struct {
	ID   uint32
	Salt []byte // part of segment keys and prefix hashes
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

// Plan lists spans that cover the tokens [Begin, End) of a prompt exactly once,
// in order. Element i of each column describes span i, which begins at prompt
// position Starts[i].
type Plan struct {
	Begin  uint32
	End    uint32
	Kinds  []uint8
	Leases []uint64 // for SpanSegment: lease of the segment
	Starts []uint32
	Counts []uint32
	// Staging offset of the transition and end-state (T, S) of a recomputed span,
	// in F32 and in profile.SeamLayout of the requested layers; None = not
	// supplied, which is allowed for the last span only.
	Inputs []uint64
}

// HelloRequest opens a connection. StagingBytes and SlotBytes are the requested
// sizes of the regions; 0 = the daemon's default.
type HelloRequest struct {
	MinVersion   uint16
	MaxVersion   uint16
	Features     uint64
	StagingBytes uint64
	SlotBytes    uint64
	Client       string // name and version of the client, shown to people
	Tenants      []TenantName
}

// HelloReply comes with three descriptors: first the public arena and this
// connection's slots, which the client can map for reading only, then this
// connection's staging, which the client can map for reading and writing.
type HelloReply struct {
	Version      uint16
	Features     uint64
	Connection   uint64
	BootEpoch    uint64 // part of the header of every later frame
	ArenaBytes   uint64
	SlotBytes    uint64
	StagingBytes uint64
	MaxFrame     uint32
	MaxInFlight  uint32
	Server       string
	Tenants      []TenantGrant
}

// ProfileRequest registers a model's identity and this engine's binding. It may
// carry one descriptor, of engine memory, which the field Memory describes.
// SegmentBytes and CheckpointBytes are the sizes that the engine computes; the
// daemon refuses the profile if it computes other sizes.
type ProfileRequest struct {
	BlockTokens     uint32 // engine block size; 0 = not paged
	ProbeTokens     uint32 // number of interior tokens for which SegmentBytes and CheckpointBytes are computed
	SegmentBytes    uint64
	CheckpointBytes uint64
	MemoryBytes     uint64  // 0 = no descriptor
	Identity        []uint8 // canonical bytes of profile.Identity
	Connector       string
	Engine          string
	Memory          []MemoryLayer
}

// ProfileReply answers a ProfileRequest.
type ProfileReply struct {
	Profile     uint32
	Memory      uint32 // id of the registered memory, 0 = none
	Fingerprint [32]byte
}

// AbortRequest gives up reservations.
type AbortRequest struct {
	Reservations []uint64
}

// CodesReply answers AbortRequest, ReleaseRequest and OrderRequest. It has one
// code for each id of the request.
type CodesReply struct {
	Codes []uint16
}

// CancelRequest stops requests of this connection. The daemon replies once none
// of these requests can access its destination any more.
type CancelRequest struct {
	Requests []uint64
}

// CancelReply has one outcome for each request id.
type CancelReply struct {
	Outcomes []uint8 // CancelUnknown, CancelStopped or CancelDrained
}

// ReleaseRequest ends leases of segments, checkpoints and slots.
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

// ReportRequest reports the results of a canary, an engine that recomputes some
// reused segments and compares the results. Counts are since the canary's last
// report.
type ReportRequest struct {
	Profile  uint32
	Compared uint32
	Failed   uint32       // how many of the compared reuses differed by more than Bound
	Worst    float64      // largest difference since the last report; +Inf if a result was not a number
	Bound    float64      // largest difference that is no failure
	Off      uint8        // 1 = switch this profile off for splicing
	Text     string       // what was wrong, for operators
	Losses   ReportLosses // with FeatureLosses
}

// ReportLosses counts requests that were both spliced and computed in full, for
// each of the LossWays ways of splicing. Compared has the number of these
// requests, Changed the number of those in which the two first tokens differed.
type ReportLosses struct {
	Present bool // false = the section is absent, and the other fields are zero
	// 1 = counts that were measured before the engine served requests, and that
	// replace earlier offline counts of the same ways; 0 = counts of the canary
	// since its last report.
	Offline  uint8
	Compared []uint32
	Changed  []uint32
}

// ReportReply answers a ReportRequest.
type ReportReply struct {
	Off uint8 // 1 = the profile is switched off for the tenant, by this report or earlier
}

// MatchRequest asks for the longest saved prefix of a prompt and for the status
// of each segment, in one round trip. Positions ascend.
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

// MatchPrompt describes the prompt of a match.
type MatchPrompt struct {
	Present  bool   // false = the section is absent, and the other fields are zero
	Tokens   uint32 // number of tokens of the prompt
	TokenOff uint64 // staging offset of the token ids (little-endian uint32); None = they are not in staging
}

// MatchKnownQuery asks which cached segments occur in the prompt, whose token
// ids must be in staging. The search starts at Begin or, if that is later, at
// the end of the prefix that this match finds.
type MatchKnownQuery struct {
	Present    bool   // false = the section is absent, and the other fields are zero
	Begin      uint32 // a token position; 0 = the start of the prompt
	SeamTokens uint32 // seam width of segments that do not begin at token 0
}

// MatchPrimersQuery asks for segments that may exist in two variants: captured
// after a primer, and without one. Others has the key of the second variant of
// each segment. Primer, PrimedFrom and Either are only for the search that the
// section Known asks for.
type MatchPrimersQuery struct {
	Present    bool     // false = the section is absent, and the other fields are zero
	Primer     [32]byte // preferred primer of segments that begin at or after PrimedFrom; zero = no primer
	PrimedFrom uint32   // a token position; for segments that begin before it, no primer is preferred
	Either     uint8    // 1 = if the preferred variant is not cached, the other one is accepted
	// One key for each of Keys, looked up if that one misses; zero = no second
	// variant. An empty column = no second variants.
	Others [][32]byte
}

// MatchReply has one row for each key of the request.
type MatchReply struct {
	PrefixTokens uint32 // 0 = no checkpoint
	PrefixIndex  uint32 // index in Positions; only meaningful if PrefixTokens > 0
	PrefixFlags  uint8  // kind of the checkpoint: AcceptExact, AcceptSpliced or AcceptRows
	PrefixReason uint8
	PrefixTier   uint8 // TierNone = no checkpoint
	Status       []uint8
	Tier         []uint8
	Reason       []uint8
	Tokens       []uint32       // interior tokens of a hit; 0 = not known, which occurs in TierPeer only
	Estimates    MatchEstimates // with FeatureEstimates
	Known        MatchKnown     // with FeatureKnown
	Rows         MatchRows      // with FeatureRows
	Primers      MatchPrimers   // with FeaturePrimers
}

// MatchEstimates has a time and an error for the prefix and for each row. The
// time is in microseconds until the bytes can be read; 2^32-1 = not known. The
// error is a bound on the relative error of the stored bytes; 0 = they are as
// written, +Inf = not known.
type MatchEstimates struct {
	Present      bool // false = the section is absent, and the other fields are zero
	PrefixMicros uint32
	PrefixError  float64
	Micros       []uint32
	Error        []float64
}

// MatchKnown lists cached segments that occur in the prompt, ascending and
// without overlaps. Segment i is the tokens [Starts[i], Starts[i]+Lengths[i])
// of the prompt, and its key is Keys[i].
type MatchKnown struct {
	Present bool // false = the section is absent, and the other fields are zero
	// Number of positions at which not all lengths were tried, because too many
	// segments begin with the same tokens.
	Untried   uint32
	Reason    uint8 // ReasonOff if the profile is switched off for splicing, otherwise ReasonNone
	Starts    []uint32
	Lengths   []uint32
	Keys      [][32]byte
	Tiers     []uint8
	Interiors []uint32 // interior tokens of the segment, which need not be computed
}

// MatchRows says how much of the prefix has states. The states of later tokens
// are rebuilt from rows.
type MatchRows struct {
	Present      bool   // false = the section is absent, and the other fields are zero
	PrefixStates uint32 // number of tokens; 0 = all states are rebuilt from rows
}

// MatchPrimers says which variant each row is about.
type MatchPrimers struct {
	Present  bool    // false = the section is absent, and the other fields are zero
	Variants []uint8 // 1 = the row describes Others[i], because that key is a hit and Keys[i] is not; otherwise 0
	Primed   []uint8 // one for each segment of the section Known; 1 = captured after the primer
}

// AcquireRequest leases segments for reading by one rank.
type AcquireRequest struct {
	Profile  uint32
	Rank     uint32
	TTLMs    uint32 // 0 = the daemon's default
	Reserved uint32 // must be 0; older clients requested block tables here
	Digests  uint8  // 1 = the reply has chunk digests
	All      uint8  // 1 = lease either every key or none
	Keys     [][32]byte
}

// AcquireReply has one row for each key. Extents are in the public arena, and
// their bytes stay unchanged until the lease is released or expires. Digest has
// one digest for each chunk of each part of each hit, in order, if the request
// asks for digests. ReservedCount and Reserved, which once had block tables,
// are empty.
type AcquireReply struct {
	Codes         []uint16
	Leases        []uint64
	Bytes         []uint64
	Begins        []uint32 // first interior token, counted from the start of the segment
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

// AcquirePacked has the layouts of segments with packed parts. The next
// Count[i] bytes of Layout are the profile.Packed of row i; Count[i] is 0 if no
// part of it is packed.
type AcquirePacked struct {
	Present bool // false = the section is absent, and the other fields are zero
	Count   []uint32
	Layout  []uint8
}

// ReserveRequest asks for room for segments. Their token ids (little-endian
// uint32) are in staging; the daemon computes each key from them and compares
// it with Keys.
type ReserveRequest struct {
	Profile  uint32
	Rank     uint32
	Keys     [][32]byte
	Roles    []uint8
	Heads    []uint32
	Tails    []uint32
	Tokens   []uint32       // n, the number of tokens of the segment with head and tail
	TokenOff []uint64       // staging offset of the n token ids
	Primers  ReservePrimers // with FeaturePrimers
}

// ReservePrimers has the primer after which each segment was captured.
type ReservePrimers struct {
	Present bool       // false = the section is absent, and the other fields are zero
	IDs     [][32]byte // zero = no primer
}

// ReserveReply has one row for each key.
type ReserveReply struct {
	Codes        []uint16
	Reservations []uint64
	Bytes        []uint64
}

// CommitRequest hands over chunks of parts, which are in staging. Row i has
// ChunkCount[i] chunks of one part, from chunk ChunkFirst[i] on. A chunk has
// gpuipc.ChunkBytes bytes; the last chunk of a part may be shorter. Digest has
// one digest for each chunk, row after row: XXH3-64, or CRC-32 with
// FeatureCRC32Digests.
type CommitRequest struct {
	Level        uint8 // the Level that an object must reach if this request completes it
	Reservations []uint64
	Parts        []uint32
	ChunkFirst   []uint32
	ChunkCount   []uint32
	StagingOff   []uint64
	Digest       []uint64
}

// CommitReply has one row for each row of the request. Published is 1 on a row
// whose chunks completed an object for all ranks. On such a row, Levels has the
// Level that the object has reached; on all other rows it is 0. The Level is
// lower than requested if there is no disk, or if the disk fails or is too
// slow.
type CommitReply struct {
	Codes     []uint16
	Published []uint8
	Levels    []uint8
}

// SaveRequest asks for room for checkpoints. Parents has the prefix hash of the
// checkpoint that each of them extends; zero = none. Only the rows of tokens
// after the parent are stored.
type SaveRequest struct {
	Profile  uint32
	Rank     uint32
	Kind     uint8 // AcceptExact, AcceptSpliced or AcceptRows
	Hashes   [][32]byte
	Tokens   []uint32
	Parents  [][32]byte
	Buffered SaveBuffered // with FeatureBuffered
}

// SaveBuffered names a buffer, for checkpoints of kind AcceptRows. The daemon
// copies the rows of linear layers from the accepted rows of the buffer, and
// the client commits only the keys and values of attention layers. If the
// profile has no attention layers, the client commits nothing, and the daemon
// publishes the checkpoint at once.
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

// LoadReply lists the nodes of a checkpoint, from the start of the prompt to
// the last token. The bytes of a node are in profile.CheckpointLayout of its
// number of tokens, or in profile.EdgeLayout if the node is stored as rows. The
// states and convolution tails of the checkpoint are those of the last node.
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

// LoadRows has the kind of each node.
type LoadRows struct {
	Present bool    // false = the section is absent, and the other fields are zero
	Kinds   []uint8 // AcceptExact, AcceptSpliced or AcceptRows
}

// ComposeRequest advances a running state over the spans of a plan, in one
// linear layer or in all of them.
type ComposeRequest struct {
	Profile   uint32
	Rank      uint32
	Layer     int32
	Plan      Plan
	From      uint8
	FromLease uint64
	FromOff   uint64
	Into      uint64 // lease of a slot of the right size for the result; 0 = a new slot
}

// ComposeReply says where the states are. For each requested linear layer, in
// order, these are the state before each recomputed span, then the state at the
// end of the plan. Each is F32 [heads, dk, dv], padded to a multiple of
// profile.PartAlign. If the last span has no input, the last state is the state
// before that span.
type ComposeReply struct {
	Lease uint64
	Off   uint64 // in the slots region
	Bytes uint64
}

// RotateRequest places the keys and values of a plan's segments, for one
// attention layer or all. With DestMemory it also places those of the
// checkpoint from which the plan begins.
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
	Blocks    []uint32 // the engine's block table for tokens [0, Plan.End)
}

// RotateReply says where the rows are, if Dest is DestSlot. For each requested
// attention layer, these are K, then V. Each has the rows of the plan's
// segments, packed in the order of the plan and padded to a multiple of
// profile.PartAlign.
type RotateReply struct {
	Lease uint64
	Off   uint64
	Bytes uint64
	Rows  uint32
}

// AssembleRequest does the work of ComposeRequest and RotateRequest for all
// layers in one request. Only the last span of its plan may be recomputed. The
// result also has the convolution tails of the last segment. With DestSlot the
// result is in profile.CheckpointLayout(rows). With DestMemory it is in
// CheckpointLayout(0), and the rows are written to engine memory.
type AssembleRequest struct {
	RotateRequest
}

// AppendRequest adds rows to a buffer, or opens a buffer. The rows are in
// staging, in profile.BufferLayout(Rows).
type AppendRequest struct {
	Profile    uint32
	Rank       uint32
	Buffer     uint64 // 0 = open a buffer
	Base       uint64 // of a new buffer: lease of a loaded checkpoint or of a slot; 0 = zero states
	Begin      uint32 // prompt position of the first row
	Capacity   uint32 // of a new buffer: maximum number of rows
	Rows       uint32 // 0 is allowed when a buffer is opened
	StagingOff uint64
}

// AppendReply answers AppendRequest and AcceptRequest. Begin, Accepted and End
// are prompt positions in the buffer after the request.
type AppendReply struct {
	Buffer   uint64
	Begin    uint32 // position of the first row
	Accepted uint32 // tokens before it are certain
	End      uint32
}

// AcceptRequest accepts the first drafts of a buffer, as many as Tokens says,
// and drops the other drafts.
type AcceptRequest struct {
	Profile uint32
	Rank    uint32
	Buffer  uint64
	Tokens  uint32
}

// ReplayRequest writes states and convolution tails into a slot, in
// profile.CheckpointLayout(0). They are those after all tokens before position
// Token.
type ReplayRequest struct {
	Profile uint32
	Rank    uint32
	Buffer  uint64
	Token   uint32
	Flush   uint8  // 1 = the states also become the base of the buffer, and the rows before Token are removed
	Into    uint64 // slot lease to write into, 0 = a new one
}

// AdviseRequest asks what to use and what to store for a prompt, whose token
// ids (little-endian uint32) are in staging. The fields of prefix and segments
// repeat the reply of match; zero = nothing is cached. Cuts and SegmentBegin
// ascend. Samples are prefills measured since the last advise: sample i
// computed the tokens [SampleBegin[i], SampleEnd[i]) in SampleMicros[i]
// microseconds.
type AdviseRequest struct {
	Profile        uint32
	Record         uint8  // 1 = the prompt is being served, and the daemon remembers it; 0 = this is only a question
	BlockTokens    uint32 // advised positions must be multiples of it; 0 means 1
	MaxCheckpoints uint32 // 0 = the daemon's default
	Tokens         uint32 // number of tokens of the prompt
	TokenOff       uint64 // staging offset of the token ids
	Output         uint32 // how many tokens at the end of the prompt were generated
	PrefixTokens   uint32 // number of tokens that the longest checkpoint covers
	PrefixTier     uint8
	// Position up to which a buffer, or a checkpoint stored as rows, has rows after
	// the prefix; 0 = no rows.
	BufferTokens uint32
	// Total number of tokens in seams, which are recomputed if the cached segments
	// are used or, if none is cached, if all segments are used.
	SeamTokens    uint32
	Cuts          []uint32
	SegmentBegin  []uint32
	SegmentTokens []uint32
	SegmentStatus []uint8 // StatusMiss, StatusHit or StatusPending
	SegmentTier   []uint8
	SampleBegin   []uint32
	SampleEnd     []uint32
	SampleMicros  []uint32
	Measured      AdviseMeasured // with FeatureSplices
	Limit         AdviseLimit    // with FeatureLosses
	Match         AdviseMatch    // with FeatureLookup
}

// AdviseMeasured has the times of walks and captures since the last advise. A
// walk puts segments in place: it computed WalkRows rows between segments and
// placed WalkPlaced rows of segments in WalkMicros microseconds, including
// reads of memory but not waits for a disk or another node. A capture computed
// CaptureTokens tokens of segments in isolation in CaptureMicros microseconds.
type AdviseMeasured struct {
	Present       bool // false = the section is absent, and the other fields are zero
	WalkRows      []uint32
	WalkPlaced    []uint32
	WalkMicros    []uint32
	CaptureTokens []uint32
	CaptureMicros []uint32
}

// AdviseLimit is the loss of accuracy that the request accepts, and how the
// request would be spliced.
type AdviseLimit struct {
	Present   bool    // false = the section is absent, and the other fields are zero
	MaxLoss   float64 // 0 to 1; 1 = any
	Primed    uint8   // 1 = the segments for which there is a primer were captured after it
	Refreshed uint8   // 1 = the last segments are computed in context, and are not listed in this request
}

// AdviseMatch makes the daemon look the prompt up first, as `match` does, in
// one round trip. The daemon then ignores the prefix, the status and tier of
// segments, and `primed` of *limit*. Keys has one key for each segment.
type AdviseMatch struct {
	Present   bool // false = the section is absent, and the other fields are zero
	Accept    uint8
	Positions []uint32
	Prefixes  [][32]byte
	Keys      [][32]byte
	Others    [][32]byte // as in `match`
	// Bit 0: the variant of Keys was captured after the primer; bit 1: a primed
	// variant is preferred for this segment.
	Primed []uint8
}

// AdviseReply has one row for each advised checkpoint and one for each segment.
type AdviseReply struct {
	SeenTokens    uint32    // longest prefix of this prompt that was seen before
	Way           uint8     // the fastest way to serve the prompt
	WayMicros     []float64 // predicted time of each way, from way 1 on; +Inf = the way is not possible here
	Positions     []uint32  // ascending
	Why           []uint8
	Admit         []uint8   // 1 = store it
	Reason        []uint8   // why to store it, or why not
	Value         []float64 // expected milliseconds saved per MiB
	SegmentAdmit  []uint8   // 1 = this segment is missing and worth publishing
	SegmentReason []uint8
	Splice        AdviseSplice  // with FeatureSplices
	Loss          AdviseLoss    // with FeatureLosses
	Match         AdviseMatched // with FeatureLookup
}

// AdviseSplice describes the splice for which WayMicros has the time.
type AdviseSplice struct {
	Present bool // false = the section is absent, and the other fields are zero
	// Number of leading segments that the splice uses, as far as they are cached or
	// admitted. The engine computes everything after the last of them; 0 = no
	// segment can be used.
	Segments uint32
}

// AdviseLoss answers the section Limit with the expected losses of the splice,
// from 0 to 1; negative = not known.
type AdviseLoss struct {
	Present   bool    // false = the section is absent, and the other fields are zero
	Asked     float64 // loss of the splice as requested
	Refreshed float64 // loss with the last segment computed in context
	Splicing  uint8   // the splice for which WayMicros has the time
}

// AdviseMatched is the result of the lookup, as in the reply of `match` and its
// sections.
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

// ServedRequest reports how the prompt of one request was served. Engines send
// it after the first token of the answer. The first tokens of the prompt came
// from the engine's own cache (Engine is their number), the next ones from a
// checkpoint (Prefix is their number). Rows are the segments into which the
// prompt was cut, ascending and without overlaps: row i is the tokens
// [Begins[i], Begins[i]+Counts[i]). Of these, the tokens [At[i],
// At[i]+Reused[i]) came from the daemon; they are after the prefix. All other
// tokens were computed. Times are in microseconds; 0 = not measured.
type ServedRequest struct {
	Profile      uint32
	Way          uint8  // how the prompt was served
	Tokens       uint32 // number of tokens of the prompt
	Engine       uint32
	Prefix       uint32
	PrefixTier   uint8     // TierNone = no checkpoint was used
	PrefixReason uint8     // why no longer checkpoint was used
	ReadBytes    uint64    // size of the states and rows that were read or composed
	MatchMicros  uint32    // time until the way was chosen
	WaitMicros   uint32    // time that the request then waited for bytes
	FirstMicros  uint32    // time from the arrival of the request to its first token
	WayMicros    []float64 // times that advise predicted, from way 1 on
	Begins       []uint32
	Counts       []uint32 // number of tokens of the segment
	At           []uint32
	Reused       []uint32
	Tiers        []uint8    // where match found the segment; TierNone = nowhere
	Reasons      []uint8    // why the segment is a miss
	Keys         [][32]byte // zero = the segment has no key
	Request      string     // the engine's name of the request
	Trace        string     // a traceparent of W3C Trace Context; empty = none
	Loss         ServedLoss // with FeatureLosses
}

// ServedLoss is the expected loss of a spliced request, which the reply of
// advise had.
type ServedLoss struct {
	Present  bool    // false = the section is absent, and the other fields are zero
	Expected float64 // 0 to 1; negative = not known
}

// ServedReply answers a ServedRequest.
type ServedReply struct {
	Number uint64 // number under which the daemon lists the request
	// Share of spliced requests that the engine's canary recomputes from now on;
	// negative = the share in the engine's own settings.
	CanaryShare float64
}

// AttachDeviceRequest asks for device memory: the public arena, and private
// chunks of this connection. A connection can get device memory only once.
type AttachDeviceRequest struct {
	Ways         uint8   // ways in which the client can map memory
	PrivateBytes uint64  // requested size of the private chunks; 0 = the daemon's default
	UUID         []uint8 // UUID of the client's device; empty = the daemon's only device
}

// AttachDeviceReply says what to map: first the chunks of the public arena,
// laid end to end, then the private chunks of this connection. The first
// descriptor is a sealed memfd with the kernels' PTX text. If Way is
// WayDescriptor, one descriptor for each chunk follows.
type AttachDeviceReply struct {
	Way          uint8
	Epoch        uint64 // epoch of the device's pools; it changes with each start of the daemon
	PublicBytes  uint64 // size of the public arena, in which the extents of acquire-device are
	PrivateBytes uint64 // size of the private chunks, in which the slots of device requests are
	OrderOff     uint64 // offset of the order page in the private chunks
	OrderSlots   uint32 // number of slots of the order page, of OrderSlotBytes bytes each
	PublicChunks uint32 // how many of the chunks belong to the public arena
	// Offset of the staging in the private chunks. The client writes the staging,
	// and inputs of a compose of device leases are relative to it.
	StagingOff   uint64
	StagingBytes uint64
	UUID         []uint8 // UUID of the daemon's device
	ChunkBytes   []uint64
	Handles      []uint8  // HandleBytes bytes for each chunk; with WayHandle only
	Offsets      []uint64 // offset of each chunk in its allocation; with WayHandle only
	// Handles of two events: the client records the first, the daemon the second.
	// Empty if the device has 64-bit memory operations on streams.
	Events []uint8
}

// RegisterDeviceRequest registers device memory that the engine owns, as
// ProfileRequest does for host memory. The chunks count as one run of bytes,
// and the offsets of layers are relative to its start. If Way is WayDescriptor,
// the request carries one descriptor for each chunk.
type RegisterDeviceRequest struct {
	Profile uint32
	Way     uint8
	// Chosen by the client: memory that it registers again under the same number is
	// the same memory.
	Epoch      uint64
	ChunkBytes []uint64
	Handles    []uint8  // HandleBytes bytes for each chunk; with WayHandle only
	Offsets    []uint64 // offset of each chunk in its allocation; with WayHandle only
	Memory     []MemoryLayer
}

// RegisterDeviceReply has the id of the memory, for rotate and assemble.
type RegisterDeviceReply struct {
	Memory uint32
}

// AcquireDeviceRequest leases segments in device memory. A segment that is not
// there yet is copied there. If Wait is 1, the reply waits for the copy;
// otherwise the segment is a miss.
type AcquireDeviceRequest struct {
	Profile uint32
	Rank    uint32
	TTLMs   uint32
	Digests uint8
	All     uint8
	Wait    uint8
	Keys    [][32]byte
}

// OrderRequest releases leases once the client's stream has passed a point.
// When the client's slot of the order page has reached the value After, the
// daemon releases the leases. It then writes the value Signal to its own slot,
// unless Signal is 0.
type OrderRequest struct {
	After  uint64
	Signal uint64
	Leases []uint64
}

// LoadDeviceRequest is a LoadRequest whose reply has extents in device memory.
type LoadDeviceRequest struct {
	LoadRequest
}

// PlanRequest asks which engines compute the missing segments of a prompt, and
// starts the work of the other engines. The token ids (little-endian uint32) of
// all rows are in staging, one row after another; the daemon computes each key
// from them and compares it with Keys.
type PlanRequest struct {
	Profile      uint32
	Pieces       uint8  // 1 = segments may be cut into two pieces, and this engine can compute either piece
	QueuedMicros uint32 // time of other work that this engine does first
	WithinMs     uint32 // time after which results are late; 0 = the daemon's default
	TokenOff     uint64 // staging offset of the token ids of all rows
	Keys         [][32]byte
	Roles        []uint8
	Heads        []uint32
	Tails        []uint32
	Tokens       []uint32    // number of tokens of the segment with head and tail
	Primers      PlanPrimers // with FeaturePrimers
}

// PlanPrimers has the primer after which each segment is to be captured. Only
// engines that have all these primers take part.
type PlanPrimers struct {
	Present bool       // false = the section is absent, and the other fields are zero
	IDs     [][32]byte // zero = no primer; at most MaxPrimers different primers
}

// PlanReply has one row for each key. It also lists what the asking engine
// computes itself, in the order in which to compute it: the tokens
// [OwnBegins[i], OwnEnds[i]) of row OwnRows[i]. Times are from now until
// segments can be acquired on this node.
type PlanReply struct {
	// Id of the plan, for watch; 0 = no plan was started, and the asking engine
	// computes all rows.
	Plan        uint64
	Alone       uint8  // why no plan was started
	Micros      uint32 // time until all rows are on this node
	AloneMicros uint32 // the same time if the asking engine computes all rows
	// The engine that computes the row; 0 = the asking engine, other numbers are
	// those that this plan gives to engines. For a segment in two pieces, it is the
	// engine that computes the second piece.
	Workers   []uint32
	RowMicros []uint32 // time until the row is expected on this node
	OwnRows   []uint32
	OwnBegins []uint32
	OwnEnds   []uint32
	Combine   string // node on which all rows would be available first; empty = this node
}

// WatchRequest waits for events of the rows of a plan or, if Plan is 0, for
// jobs. A client that asks for jobs is a worker of its profile and tenant. It
// stays a worker until it has no job and has not asked for some seconds.
type WatchRequest struct {
	Profile      uint32
	WaitMs       uint32            // maximum time until the reply; 0 = reply at once
	Plan         uint64            // 0 = wait for jobs
	End          uint8             // 1 = end the plan or, for a worker, accept no more jobs
	Pieces       uint8             // workers: 1 = this engine can continue from the first piece of a segment
	Jobs         uint32            // workers: maximum number of jobs at once, including those that it has
	QueuedMicros uint32            // workers: time of other work that this engine does first
	Declined     []uint64          // workers: jobs that this worker refuses
	Primers      WatchPrimersQuery // with FeaturePrimers
}

// WatchPrimersQuery lists the primers that a worker has. Without this section,
// the worker gets no segment that is captured after a primer.
type WatchPrimersQuery struct {
	Present bool // false = the section is absent, and the other fields are zero
	IDs     [][32]byte
}

// WatchReply lists, for a plan, the rows with an event since the last watch.
// For a worker, it lists the new jobs. A job is done when its key is published,
// by reserve and commit on any connection of the node. IDs has the token ids of
// all new jobs, one job after another: Tokens[i] ids for job i.
type WatchReply struct {
	Open     uint32   // number of rows of the plan without a final event, or of jobs that the worker has
	Rows     []uint32 // rows of the plan with an event
	Progress []uint8
	Jobs     []uint64
	Keys     [][32]byte // keys of the segments to publish
	Roles    []uint8
	Heads    []uint32
	Tails    []uint32
	Begins   []uint32 // first token to compute; 0 = compute the whole segment
	// If Begins is not 0: key of the segment with the tokens before that position,
	// which has the same role and head, and no tail.
	Lefts     [][32]byte
	Micros    []uint32     // time from now, after which the result is not needed any more
	Tokens    []uint32     // number of tokens of the segment with head and tail
	IDs       []uint32     // token ids
	Withdrawn []uint64     // jobs of this worker whose results are not needed any more
	Primers   WatchPrimers // with FeaturePrimers
}

// WatchPrimers has the primer after which the segment of each job is to be
// captured.
type WatchPrimers struct {
	Present bool       // false = the section is absent, and the other fields are zero
	IDs     [][32]byte // zero = no primer
}
