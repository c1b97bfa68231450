package wire

// Op is an operation code.
type Op uint16

// The operations. Numbers are never reused.
const (
	OpHello    Op = 1
	OpProfile  Op = 2
	OpMatch    Op = 3
	OpAcquire  Op = 4
	OpReserve  Op = 5
	OpCommit   Op = 6
	OpAbort    Op = 7
	OpCompose  Op = 8
	OpRotate   Op = 9
	OpAssemble Op = 10
	OpSave     Op = 11
	OpLoad     Op = 12
	OpCancel   Op = 13
	OpRelease  Op = 14
	OpStats    Op = 15
	OpAdvise   Op = 16
	OpAppend   Op = 17
	OpAccept   Op = 18
	OpReplay   Op = 19
	OpReport   Op = 20

	OpAttachDevice   Op = 21
	OpRegisterDevice Op = 22
	OpAcquireDevice  Op = 23
	OpOrder          Op = 24
	OpLoadDevice     Op = 25
)

// Code is the outcome of a request or of one item of a batch.
type Code uint16

// The codes. A miss is an answer, not an error. Numbers are never reused.
const (
	OK          Code = 0
	Miss        Code = 1  // not held, or not held in an acceptable form
	Invalid     Code = 2  // the request can never be right
	Busy        Code = 3  // a bound on work in flight is met; try later
	Full        Code = 4  // no room after eviction
	Gone        Code = 5  // the lease, reservation, slot or memory is not there any more
	Corrupt     Code = 6  // bytes did not match their digest
	Unavailable Code = 7  // the daemon is not able to answer (starting, stopping)
	Exists      Code = 8  // somebody else holds or fills this key
	Denied      Code = 9  // tenant or peer not allowed
	Stale       Code = 10 // epoch of another daemon start
	Unsupported Code = 11 // unknown op, version or feature
	Canceled    Code = 12 // by cancel or because the client went away
	Late        Code = 13 // the deadline passed
	Quota       Code = 14 // the tenant's byte quota is met
)

// None marks an absent offset in columns of offsets.
const None = ^uint64(0)

// AllLayers asks compose and rotate for every layer they apply to.
const AllLayers = int32(-1)

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

// FeatureCRC32Digests is the first feature bit of hello: the digests of a commit are CRC-32 (IEEE), in the low half
// of each, in place of XXH3-64. Digests that the daemon answers stay XXH3-64.
const FeatureCRC32Digests uint64 = 1 << 0

// HelloRequest opens a connection.
type HelloRequest struct {
	MinVersion   uint16
	MaxVersion   uint16
	Features     uint64
	Client       string // name and version, for people
	StagingBytes uint64 // wanted; 0 = default
	SlotBytes    uint64 // wanted; 0 = default
	Tenants      []TenantName
}

// HelloReply carries three file descriptors, in this order: the public arena
// and the private slots (both can only be read), and staging (read and write).
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

// MemoryLayer says where one attention layer's rows live in memory that the
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

// ProfileRequest registers an identity and this engine's binding. It may carry
// one descriptor: engine memory, described by Memory.
type ProfileRequest struct {
	Identity    []byte // canonical bytes of profile.Identity
	BlockTokens uint32 // engine block size; 0 = not paged
	Connector   string
	Engine      string
	// The engine's own sizes, which must agree with the daemon's.
	ProbeTokens     uint32 // interior length the next two are for
	SegmentBytes    uint64
	CheckpointBytes uint64
	MemoryBytes     uint64 // 0 = no descriptor
	Memory          []MemoryLayer
}

// ProfileReply answers ProfileRequest.
type ProfileReply struct {
	Profile     uint32
	Memory      uint32 // id of the registered memory, 0 = none
	Fingerprint [32]byte
}

// Accept bits of a request for checkpoints.
const (
	AcceptExact   uint8 = 1
	AcceptSpliced uint8 = 2
)

// MatchRequest asks for the longest private prefix and then for the status of
// each segment, in one round trip. Positions ascend.
type MatchRequest struct {
	Profile   uint32
	Accept    uint8
	Positions []uint32   // tokens covered by each prefix hash
	Prefixes  [][32]byte // rolling prefix hashes
	Keys      [][32]byte // segment keys
}

// Status of a segment in a match.
const (
	StatusMiss    uint8 = 0
	StatusHit     uint8 = 1
	StatusPending uint8 = 2 // somebody is filling it
)

// Tier numbers as seen by clients.
const (
	TierNone uint8 = 0
	TierHBM  uint8 = 1
	TierDRAM uint8 = 2
	TierDisk uint8 = 3
)

// Reason says why a key is a miss.
const (
	ReasonNone     uint8 = 0
	ReasonUnknown  uint8 = 1 // never seen
	ReasonEvicted  uint8 = 2
	ReasonPending  uint8 = 3
	ReasonRemoved  uint8 = 4 // by an operator
	ReasonRefused  uint8 = 5 // admission, quota or room
	ReasonAborted  uint8 = 6 // its writer failed
	ReasonFlagOnly uint8 = 7 // a checkpoint exists but is not of an accepted kind
	ReasonOff      uint8 = 8 // the profile is switched off for splicing, see ReportRequest
)

// MatchReply has one row per key of the request.
type MatchReply struct {
	PrefixTokens uint32 // 0 = no checkpoint
	PrefixIndex  uint32 // index in Positions; meaningful when PrefixTokens > 0
	PrefixFlags  uint8  // AcceptExact or AcceptSpliced: what it is
	PrefixReason uint8
	PrefixTier   uint8 // where the checkpoint lies, TierNone = no checkpoint
	Status       []uint8
	Tier         []uint8
	Reason       []uint8
	Tokens       []uint32 // interior tokens of a hit
}

// AcquireRequest leases segments for reading by one rank.
type AcquireRequest struct {
	Profile     uint32
	Rank        uint32
	TTLMs       uint32 // 0 = the daemon's default
	BlockTokens uint32 // answer block tables in blocks of so many tokens; 0 = none
	Digests     uint8  // 1 = answer chunk digests too
	All         uint8  // 1 = lease every key, or none and refuse with Full
	Keys        [][32]byte
}

// AcquireReply has one row per key. Extents are in the public arena and stay
// valid and unchanged until the lease is released; Digests holds, for each hit
// in order, one digest per chunk of each part. Block holds BlockCount[i] entries of
// the block table of row i, one after another; both are empty unless asked for.
type AcquireReply struct {
	Codes       []uint16
	Leases      []uint64
	Bytes       []uint64
	Begins      []uint32 // first interior token, local to the segment
	Tokens      []uint32 // interior tokens
	ExtentCount []uint32
	ExtentOff   []uint64
	ExtentLen   []uint64
	DigestCount []uint32
	Digest      []uint64
	BlockCount  []uint32
	Block       []uint64
}

// Level is an acknowledgement level: how safe an object has to be before its
// commit is answered, or how safe it is. Every number but these is invalid.
type Level uint8

// The levels, each with what it survives.
const (
	LevelDefault Level = 0 // of a request: what the daemon is configured for
	LevelMemory  Level = 1 // nothing
	LevelLogged  Level = 2 // a killed daemon
	LevelSynced  Level = 3 // power loss
)

// ReserveRequest asks for room for segments. Token ids (little-endian uint32)
// lie in staging; the daemon recomputes each key from them.
type ReserveRequest struct {
	Profile  uint32
	Rank     uint32
	Keys     [][32]byte
	Roles    []uint8
	Heads    []uint32
	Tails    []uint32
	Tokens   []uint32 // whole length n
	TokenOff []uint64 // staging offset of the n token ids
}

// ReserveReply has one row per key.
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

// CommitReply has one row per row of the request. Published is 1 on the row
// whose chunks completed the object for all ranks. There Levels has the Level
// that the object has reached, which is lower than the one asked for when a disk
// is not able to; elsewhere it is 0.
type CommitReply struct {
	Codes     []uint16
	Published []uint8
	Levels    []uint8
}

// AbortRequest gives reservations back.
type AbortRequest struct{ Reservations []uint64 }

// CodesReply answers AbortRequest and ReleaseRequest, one row per id.
type CodesReply struct{ Codes []uint16 }

// Span kinds of a plan.
const (
	SpanSegment   uint8 = 1 // the interior of a leased segment
	SpanRecompute uint8 = 2 // tokens the engine computes: seam, miss, query
)

// Where a plan begins from.
const (
	FromZero       uint8 = 0
	FromCheckpoint uint8 = 1 // FromLease is the lease of a loaded checkpoint
	FromSlot       uint8 = 2 // FromLease is a slot lease; states at FromOff, see ComposeReply
)

// Plan is the spans that cover the tokens [Begin, End) of a prompt exactly
// once, in order. Starts are prompt positions.
type Plan struct {
	Begin  uint32
	End    uint32
	Kinds  []uint8
	Leases []uint64 // SpanSegment
	Starts []uint32
	Counts []uint32
	// Inputs is the staging offset of (T, S) of a recomputed span, F32, laid
	// out by profile.SeamLayout of the asked layers; None = not supplied,
	// allowed for the last span only.
	Inputs []uint64
}

// ComposeRequest moves a running state over a plan, for one layer or all linear
// layers. Into, when not 0, is a slot lease of the right size to write into.
type ComposeRequest struct {
	Profile   uint32
	Rank      uint32
	Layer     int32
	From      uint8
	FromLease uint64
	FromOff   uint64
	Into      uint64
	Plan      Plan
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

// Destination kinds of rotate and assemble.
const (
	DestSlot   uint8 = 1
	DestMemory uint8 = 2 // engine memory registered with the profile
)

// RotateRequest places the keys and values of a plan's segments (and of a
// checkpoint it begins from, for DestMemory) for one attention layer or all.
// Blocks is the engine's block table for tokens [0, End).
type RotateRequest struct {
	Profile   uint32
	Rank      uint32
	Layer     int32
	Dest      uint8
	Memory    uint32
	From      uint8 // FromZero or FromCheckpoint
	FromLease uint64
	Into      uint64 // slot lease to write into, 0 = a new one
	Plan      Plan
	Blocks    []uint32
}

// RotateReply says where rows are when Dest is DestSlot: for each asked
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
// profile.CheckpointLayout(rows); with DestMemory as CheckpointLayout(0) and the
// rows go to engine memory.
type AssembleRequest struct {
	RotateRequest
}

// SaveRequest asks for room for checkpoints. Parent is the prefix hash of the
// checkpoint that this one extends, all zero for none; only rows of tokens
// [parent, Tokens) are stored.
type SaveRequest struct {
	Profile uint32
	Rank    uint32
	Kind    uint8 // AcceptExact or AcceptSpliced
	Hashes  [][32]byte
	Tokens  []uint32
	Parents [][32]byte
}

// LoadRequest leases the checkpoint of a prefix hash.
type LoadRequest struct {
	Profile uint32
	Rank    uint32
	Accept  uint8
	TTLMs   uint32
	Digests uint8
	Hash    [32]byte
}

// LoadReply lists the chain of nodes from the root to the checkpoint. Each node
// is laid out by profile.CheckpointLayout(End-Begin); states and convolution
// tails are those of the last node.
type LoadReply struct {
	Lease       uint64
	Kind        uint8
	Tokens      uint32
	NodeBegin   []uint32
	NodeEnd     []uint32
	ExtentCount []uint32
	ExtentOff   []uint64
	ExtentLen   []uint64
	DigestCount []uint32
	Digest      []uint64
}

// CancelRequest stops requests of this connection. The reply comes when none of
// them can touch a destination any more.
type CancelRequest struct{ Requests []uint64 }

// Outcomes of cancel.
const (
	CancelUnknown uint8 = 0 // not in flight: its reply was sent, or it never came
	CancelStopped uint8 = 1 // stopped, it has answered Canceled
	CancelDrained uint8 = 2 // it ended by itself while we waited
)

// CancelReply has one row per request id.
type CancelReply struct{ Outcomes []uint8 }

// ReleaseRequest gives leases back: segments, checkpoints and slots alike.
type ReleaseRequest struct{ Leases []uint64 }

// StatsRequest has an empty body.
type StatsRequest struct{}

// StatsReply lists counters and gauges by name, in a stable order.
type StatsReply struct {
	Names  []string
	Values []float64
}
