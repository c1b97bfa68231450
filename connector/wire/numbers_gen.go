// Code generated from connector/wire/schema by wiregen; DO NOT EDIT.

package wire

import "strconv"

// Bounds and sizes of the protocol. A count beyond its bound is ErrMalformed;
// most are guesses with room to spare, chosen so that one full column still
// fits a frame.
const (
	Version     = 1  // the protocol version that this codec speaks
	HeaderBytes = 40 // the size of a header; a multiple of 8, so that bodies stay aligned in an aligned buffer
	// Bytes of a frame, including the header. With default socket buffers, Linux
	// accepts seqpacket messages of up to about 200 KiB (measured), so this size
	// needs no tuning.
	MaxFrame        = 131072
	MaxBody         = 131032  // bytes of a body
	MaxErrorText    = 1024    // bytes of the text of an error reply
	MaxKeys         = 2048    // segment keys, prefix hashes or checkpoints in one request
	MaxIDs          = 4096    // leases, reservations or request ids in one request
	MaxCommitRows   = 2048    // rows of a commit
	MaxDigests      = 8192    // chunk digests in one frame (8 GiB of full chunks)
	MaxExtents      = 4096    // extents in one reply
	MaxNodes        = 1024    // nodes of a checkpoint chain
	MaxSpans        = 2048    // spans of a plan
	MaxBlocks       = 24576   // entries of an engine's block table
	MaxPacked       = 1048576 // bytes of the layouts of packed parts, over all rows of one reply
	MaxPositions    = 1024    // checkpoints that one advice names
	MaxSamples      = 1024    // measured prefills in one advise; the same bound holds for walks and for captures
	MaxWays         = 8       // ways to serve a prompt
	MaxMemoryLayers = 1024    // attention layers of registered memory
	MaxIdentity     = 98304   // bytes of an identity in canonical form
	MaxTenants      = 64      // tenants of one connection
	MaxName         = 256     // bytes of a name of a client, engine, tenant or counter
	MaxToken        = 1024    // bytes of a tenant's token
	MaxPrompt       = 1048576 // token ids of a prompt that is searched for cached segments
	MaxSalt         = 256     // bytes of a tenant's salt
	MaxStats        = 1024    // counters in one reply
	MaxPlanRows     = 256     // segments that are planned at once
	MaxWorkerJobs   = 64      // jobs of one worker
	MaxJobTokens    = 28672   // token ids of all jobs in one reply, and so of one segment that another engine computes
	MaxPrimers      = 16      // primers of one plan, or of one worker
	// Chunks of device memory in one frame: Linux passes 253 descriptors with a
	// message, and one of them has the PTX text.
	MaxChunks = 252
	// Ways of splicing for which losses are counted, in this order: without a
	// primer, with a primer, and the same two with the last segments computed in
	// context.
	LossWays           = 4
	HelloDescriptors   = 3  // descriptors of a hello reply, in this order: arena, slots, staging
	ProfileDescriptors = 1  // descriptors that a profile request may carry
	AttachDescriptors  = 1  // descriptors of an attach-device reply before those of its chunks: the kernels' PTX
	UUIDBytes          = 16 // the size of a device's UUID
	HandleBytes        = 64 // the size of a CUDA IPC handle of memory or of an event
	OrderSlotBytes     = 64 // bytes from one slot of the order page to the next; 8 of them are used
)

// Kind says in which direction a frame goes.
type Kind uint8

// The numbers of Kind.
const (
	Request Kind = 0 // to the daemon
	Reply   Kind = 1 // to the client
)

// Code is the outcome of a request or of one row of a batch. A miss is an
// answer, not an error. Numbers are never reused.
type Code uint16

// The numbers of Code.
const (
	OK          Code = 0  // done
	Miss        Code = 1  // not cached, or not cached in an acceptable form
	Invalid     Code = 2  // the request can never be right
	Busy        Code = 3  // the limit of work in flight is reached, or the row did not fit into this reply
	Full        Code = 4  // no room after eviction
	Gone        Code = 5  // the lease, reservation, slot or memory is not there any more
	Corrupt     Code = 6  // bytes did not match their digest
	Unavailable Code = 7  // starting or stopping
	Exists      Code = 8  // another client has published this key or is filling it
	Denied      Code = 9  // tenant or peer not allowed
	Stale       Code = 10 // epoch of another daemon start
	Unsupported Code = 11 // unknown operation, version or feature
	Canceled    Code = 12 // by `cancel`, or the connection ended
	Late        Code = 13 // the deadline passed
	Quota       Code = 14 // the tenant's byte quota is used up
)

// CodeCount is one more than the highest Code: the length of an array that all
// of them index.
const CodeCount = 15

var codeNames = [CodeCount]string{
	OK:          "ok",
	Miss:        "miss",
	Invalid:     "invalid",
	Busy:        "busy",
	Full:        "full",
	Gone:        "gone",
	Corrupt:     "corrupt",
	Unavailable: "unavailable",
	Exists:      "exists",
	Denied:      "denied",
	Stale:       "stale",
	Unsupported: "unsupported",
	Canceled:    "canceled",
	Late:        "late",
	Quota:       "quota",
}

// Known reports whether x is a number of this version.
func (x Code) Known() bool { return int(x) < CodeCount && codeNames[x] != "" }

// String returns the name of x, or its number when it has none.
func (x Code) String() string {
	if x.Known() {
		return codeNames[x]
	}
	return "code " + strconv.Itoa(int(x))
}

// Feature bits of hello: additions that an older peer may ignore. A connection
// has the features that both sides know.
const (
	// Sends CRC-32 (IEEE) digests in `commit` instead of xxh3-64, for clients whose
	// language has no xxh3.
	FeatureCRC32Digests uint64 = 0x1
	// May send operations 21 to 25, and up to 253 descriptors with a frame. The
	// daemon has this feature only if it shares memory of a GPU.
	FeatureDevice    uint64 = 0x2
	FeaturePrompt    uint64 = 0x4 // may send the section *prompt* of `match`. The daemon reads the token ids only for *known*
	FeatureEstimates uint64 = 0x8 // can read the section *estimates* of a `match` reply, and tier `peer`
	// May send the section *known* of `match` after *prompt*, and gets a section
	// *known* in the reply.
	FeatureKnown uint64 = 0x10
	// May accept and save checkpoints of kind *rows*, may `replay` them, and gets
	// the sections *rows* in replies. Other connections do not see checkpoints that
	// are stored as rows, and a checkpoint that extends one of these is a miss for
	// them.
	FeatureRows uint64 = 0x20
	// May register profiles with a tolerance, whose segments have packed parts, and
	// gets the section *packed* in replies of `acquire` and `acquire-device`.
	FeaturePacked   uint64 = 0x40
	FeatureBuffered uint64 = 0x80  // may send the section *buffered* of `save`
	FeatureSplices  uint64 = 0x100 // may send the section *measured* of `advise`, and gets the section *splice* in the reply
	// May name primers in the sections *primers* of `match`, `reserve`, `plan` and
	// `watch`, and gets sections *primers* in replies. Other connections never
	// publish and never get a segment that was captured after a primer.
	FeaturePrimers uint64 = 0x200
	// May send the sections *losses* of `report`, *limit* of `advise` and *loss* of
	// `served`, and gets the section *loss* in the reply of `advise`.
	FeatureLosses uint64 = 0x400
	FeatureLookup uint64 = 0x800 // may send the section *match* of `advise`, and gets a section *match* in the reply
)

// Accept bits are the kind of a checkpoint, or the kinds that a request
// accepts.
const (
	AcceptNone    uint8 = 0 // no checkpoint
	AcceptExact   uint8 = 1 // the states are those of a full prefill
	AcceptSpliced uint8 = 2 // the states were composed from segments
	AcceptAny     uint8 = 3 // exact or spliced
	// Exact, but stored as rows without states: `replay` rebuilds the states at any
	// of its tokens. Only with the feature *rows*.
	AcceptRows uint8 = 4
)

// Level is an acknowledgement level: the failure that an object must survive
// before its commit is answered, or the failure that it survives. All other
// numbers are invalid.
type Level uint8

// The numbers of Level.
const (
	LevelDefault Level = 0 // the level in the daemon's setting `ack-level`
	LevelMemory  Level = 1 // no failure: the object may be lost when the daemon ends
	LevelLogged  Level = 2 // a kill of the daemon: the kernel has the bytes and the row with their location
	LevelSynced  Level = 3 // a loss of power: the disk has the bytes and the row with their location
)

// LevelCount is one more than the highest Level: the length of an array that
// all of them index.
const LevelCount = 4

var levelNames = [LevelCount]string{
	LevelDefault: "default",
	LevelMemory:  "memory",
	LevelLogged:  "logged",
	LevelSynced:  "synced",
}

// Known reports whether x is a number of this version.
func (x Level) Known() bool { return int(x) < LevelCount && levelNames[x] != "" }

// String returns the name of x, or its number when it has none.
func (x Level) String() string {
	if x.Known() {
		return levelNames[x]
	}
	return "level " + strconv.Itoa(int(x))
}

// Status of a segment in a match.
const (
	StatusMiss    uint8 = 0 // not cached
	StatusHit     uint8 = 1 // cached: `acquire` may lease it
	StatusPending uint8 = 2 // a client is filling it
)

// Tier numbers say where a segment or checkpoint is stored.
const (
	TierNone uint8 = 0 // nowhere
	// Memory of GPUs: each rank that has an engine has a copy on its GPU. Only
	// connections with *attach-device* see this tier; other connections see the
	// tier that `acquire` reads.
	TierHBM  uint8 = 1
	TierDRAM uint8 = 2 // memory of the host
	TierDisk uint8 = 3 // the disk: a hit that must first be read
	// Another node, or a store that nodes share, is believed to have it: a hit that
	// must first be fetched. Only connections with *estimates* see this tier; for
	// other connections it is a miss.
	TierPeer uint8 = 4
)

// Reason numbers say why something is a miss.
const (
	ReasonNone      uint8 = 0 // not a miss
	ReasonUnknown   uint8 = 1 // never seen
	ReasonEvicted   uint8 = 2 // evicted to make room
	ReasonPending   uint8 = 3 // a client is filling it
	ReasonRemoved   uint8 = 4 // removed by an operator
	ReasonRefused   uint8 = 5 // refused by admission or by a quota, or for lack of room
	ReasonAborted   uint8 = 6 // its writer failed
	ReasonOtherKind uint8 = 7 // a checkpoint is cached, but not of an accepted kind
	ReasonOff       uint8 = 8 // the profile is switched off for splicing, see *report*
)

// Span kinds of a plan.
const (
	SpanSegment   uint8 = 1 // the interior of a leased segment
	SpanRecompute uint8 = 2 // tokens that the engine computes: a seam, a missing segment, the question
)

// From says where a plan begins.
const (
	FromZero       uint8 = 0 // at a zero state
	FromCheckpoint uint8 = 1 // at the checkpoint whose lease is `from lease`
	// At states in the slot whose lease is `from lease`; `from off` is their offset
	// in the slots region, as in ComposeReply.
	FromSlot uint8 = 2
)

// Dest says where rotate and assemble write.
const (
	DestSlot   uint8 = 1 // packed into a slot
	DestMemory uint8 = 2 // scattered into registered memory by the engine's block table
)

// Cancel outcomes, one for each request.
const (
	CancelUnknown uint8 = 0 // not in flight: answered already, or never seen
	CancelStopped uint8 = 1 // stopped: it has answered `canceled`
	CancelDrained uint8 = 2 // it ended by itself in the meantime
)

// Way to serve a prompt; AdviseReply.WayMicros is indexed by way minus one.
const (
	WayRecompute uint8 = 1 // computing everything
	WayPrefix    uint8 = 2 // continuing from the longest checkpoint
	WaySplice    uint8 = 3 // continuing from the longest checkpoint, with the cached segments
	WayReplay    uint8 = 4 // continuing from a token inside a buffer
)

// Splicing numbers are ways to splice a request within its max loss.
const (
	SplicingAsked     uint8 = 0 // as requested
	SplicingRefreshed uint8 = 1 // with the last segment computed in context
	SplicingNone      uint8 = 2 // not at all
)

// Why numbers say why a checkpoint at a position is worth having.
const (
	WhyBranch   uint8 = 1 // prompts branch there
	WhyLast     uint8 = 2 // the last position that the same prompt can use, or the end of an answer
	WhyBoundary uint8 = 3 // a cut that the application named
	WhyPlaced   uint8 = 4 // chosen from the depths at which earlier prompts branched
)

// Advice numbers say why an object is worth storing (numbers below 16) or is
// not. Unlike the Reason of a match, they concern objects that are not cached
// yet.
const (
	AdviceNone      uint8 = 0  // it is cached or being stored
	AdviceSeen      uint8 = 1  // it was seen before
	AdviceCheap     uint8 = 2  // not seen before, but storing it costs very little compared with computing it
	AdviceAsked     uint8 = 3  // the application named it
	AdviceReturning uint8 = 4  // not seen before, but similar objects are used again
	AdviceShort     uint8 = 16 // computing it again takes less time than fetching it
	AdviceCold      uint8 = 17 // not expected to be used often enough to justify the cost of storing it
	AdviceThin      uint8 = 18 // saves less per byte than the objects that would be evicted for it
	AdviceLarge     uint8 = 19 // takes more than its share of the pool
	AdviceNoGain    uint8 = 20 // fetching it is no faster than computing it
)

// Share is a way to share device memory with another process. In a request it
// is a set of bits: the ways in which the client can map memory.
const (
	WayDescriptor uint8 = 1 // one descriptor for each chunk, sent with the frame (CUDA VMM)
	WayHandle     uint8 = 2 // one CUDA IPC handle for each chunk, in the frame
)

// Alone numbers say why no plan was started.
const (
	AloneNone       uint8 = 0 // a plan was started
	AloneNoGain     uint8 = 1 // with other engines, the rows would not be available sooner
	AloneNoWorkers  uint8 = 2 // no engine of another connection takes jobs of this profile and tenant
	AloneNotAllowed uint8 = 3 // the tenant does not have `parallel`: its token ids must stay on this node
	AloneNoRoom     uint8 = 4 // this node has no room for the results of other engines
	AloneBusy       uint8 = 5 // the maximum number of plans is reached, on this node or on the connection
	AloneOff        uint8 = 6 // the profile is switched off for splicing, see *report*
	AloneHere       uint8 = 7 // all rows are already cached or being computed on this node
)

// Progress numbers say what happened to a row of a plan.
const (
	ProgressCommitted uint8 = 1 // the row is on this node: `acquire` leases it
	ProgressAborted   uint8 = 2 // the worker declined the row or is gone, or the bytes did not arrive; compute the row
	ProgressLate      uint8 = 3 // the row did not arrive in time; compute it
	// The first piece of the row is on this node: the segment of the tokens before
	// `own begins`. The row is still open.
	ProgressPiece uint8 = 4
)
