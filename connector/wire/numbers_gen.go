// Code generated from connector/wire/schema by wiregen; DO NOT EDIT.

package wire

import "strconv"

// Bounds and sizes of the protocol. A count beyond its bound is ErrMalformed;
// most are guesses with room to spare, chosen so that one full column still
// fits a frame.
const (
	Version     = 1  // the protocol version that this codec speaks
	HeaderBytes = 40 // the size of a header; a multiple of 8, so that bodies stay aligned in an aligned buffer
	// Bytes of a frame, header included. Linux takes seqpacket messages up to about
	// 200 KiB with default socket buffers (measured), so this passes without
	// tuning.
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
	MaxSamples      = 1024    // measured prefills in one advise, and as many walks and captures
	MaxWays         = 8       // ways to serve a prompt
	MaxMemoryLayers = 1024    // attention layers of registered memory
	MaxIdentity     = 98304   // bytes of an identity in canonical form
	MaxTenants      = 64      // tenants of one connection
	MaxName         = 256     // bytes of a name of a client, engine, tenant or counter
	MaxToken        = 1024    // bytes of a tenant's token
	MaxPrompt       = 1048576 // token ids of a prompt in which held segments are looked for
	MaxSalt         = 256     // bytes of a tenant's salt
	MaxStats        = 1024    // counters in one reply
	MaxPlanRows     = 256     // segments that are planned at once
	MaxWorkerJobs   = 64      // jobs of one worker
	MaxJobTokens    = 28672   // token ids of the jobs in one reply, so of a segment that another engine computes
	MaxPrimers      = 16      // primers of one plan, or that one worker has
	MaxChunks       = 252     // chunks of device memory in one frame: Linux carries 253 descriptors, one is the PTX
	// Ways of splicing that losses are counted of, in this order: no primer, a
	// primer, and both of these with the last segments computed in context.
	LossWays           = 4
	HelloDescriptors   = 3  // descriptors of a hello reply, in this order: arena, slots, staging
	ProfileDescriptors = 1  // descriptors that a profile request may carry
	AttachDescriptors  = 1  // descriptors of an attach-device reply before those of its chunks: the kernels' PTX
	UUIDBytes          = 16 // the size of a device's UUID
	HandleBytes        = 64 // the size of a CUDA IPC handle of memory or of an event
	OrderSlotBytes     = 64 // from one slot of the order page to the next; 8 of them are used
)

// Kind says which way a frame goes.
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
	Miss        Code = 1  // not held, or not held in an acceptable form
	Invalid     Code = 2  // the request can never be right
	Busy        Code = 3  // a bound on work in flight is met, or the row did not fit this reply
	Full        Code = 4  // no room after eviction
	Gone        Code = 5  // the lease, reservation, slot or memory is not there any more
	Corrupt     Code = 6  // bytes did not match their digest
	Unavailable Code = 7  // starting or stopping
	Exists      Code = 8  // another client holds or fills this key
	Denied      Code = 9  // tenant or peer not allowed
	Stale       Code = 10 // epoch of another daemon start
	Unsupported Code = 11 // unknown operation, version or feature
	Canceled    Code = 12 // by `cancel`, or the connection ended
	Late        Code = 13 // the deadline passed
	Quota       Code = 14 // the tenant's byte quota is met
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

// Feature bits of hello: additions that an older peer may ignore. Those that
// both sides know hold.
const (
	// Sends CRC-32 (IEEE) in `commit` in place of xxh3-64, as a client needs whose
	// language has no xxh3 at hand.
	FeatureCRC32Digests uint64 = 0x1
	// May send operations 21 to 25, and up to 253 descriptors with a frame. The
	// daemon has it only where it lends memory of a GPU.
	FeatureDevice    uint64 = 0x2
	FeaturePrompt    uint64 = 0x4  // may send the section *prompt* of `match`. The daemon reads the token ids only for *known*
	FeatureEstimates uint64 = 0x8  // is able to read the section *estimates* of a `match` reply, and tier `peer`
	FeatureKnown     uint64 = 0x10 // may send the section *known* of `match` after *prompt*, and is answered with one
	// May accept and save checkpoints of kind *rows*, may `replay` them, and is
	// answered with the sections *rows*. Other connections do not see checkpoints
	// kept as rows, and loading one that extends them is a miss.
	FeatureRows uint64 = 0x20
	// May name profiles with a tolerance, whose segments have packed parts, and is
	// answered with the section *packed* of `acquire` and `acquire-device`.
	FeaturePacked   uint64 = 0x40
	FeatureBuffered uint64 = 0x80  // may send the section *buffered* of `save`
	FeatureSplices  uint64 = 0x100 // may send the section *measured* of `advise`, and is answered with the section *splice*
	// May name primers in the sections *primers* of `match`, `reserve`, `plan` and
	// `watch`, and is answered with their like. Others never publish, and are never
	// given, a segment that was captured after a primer.
	FeaturePrimers uint64 = 0x200
	// May send the sections *losses* of `report`, *limit* of `advise` and *loss* of
	// `served`, and is answered with the section *loss* of `advise`.
	FeatureLosses uint64 = 0x400
	FeatureLookup uint64 = 0x800 // may send the section *match* of `advise`, and is answered with one
)

// Accept bits say what a checkpoint is, or which ones a request takes.
const (
	AcceptNone    uint8 = 0 // no checkpoint
	AcceptExact   uint8 = 1 // what a full prefill gives
	AcceptSpliced uint8 = 2 // it went through the composition of segments
	AcceptAny     uint8 = 3 // either
	// Exact, and kept as rows without states: those of any of its tokens are
	// rebuilt by `replay`. With the feature *rows* only.
	AcceptRows uint8 = 4
)

// Level is an acknowledgement level: what an object has to survive before its
// commit is answered, or what it survives. Every number but these is invalid.
type Level uint8

// The numbers of Level.
const (
	LevelDefault Level = 0 // what the daemon's `ack-level` says
	LevelMemory  Level = 1 // nothing: a daemon that ends may lose it
	LevelLogged  Level = 2 // a killed daemon: the kernel has its bytes and the row that finds them
	LevelSynced  Level = 3 // power loss: the disk has both
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
	StatusMiss    uint8 = 0 // not held
	StatusHit     uint8 = 1 // held: `acquire` may lease it
	StatusPending uint8 = 2 // it is being filled
)

// Tier numbers say where a segment or checkpoint lies.
const (
	TierNone uint8 = 0 // nowhere
	// Memory of GPUs: all ranks with engines have it on theirs. Only connections
	// with *attach-device* see this tier; others see the one that `acquire` reads.
	TierHBM  uint8 = 1
	TierDRAM uint8 = 2 // memory of the host
	TierDisk uint8 = 3 // a hit that takes a read
	// Another node, or a store that nodes share, is believed to have it: a hit that
	// is fetched. Only connections with *estimates* see this tier; for others it is
	// a miss.
	TierPeer uint8 = 4
)

// Reason numbers say why something is a miss.
const (
	ReasonNone      uint8 = 0 // it is no miss
	ReasonUnknown   uint8 = 1 // never seen
	ReasonEvicted   uint8 = 2 // it left to make room
	ReasonPending   uint8 = 3 // it is being filled
	ReasonRemoved   uint8 = 4 // by an operator
	ReasonRefused   uint8 = 5 // by admission, a quota or for want of room
	ReasonAborted   uint8 = 6 // its writer failed
	ReasonOtherKind uint8 = 7 // a checkpoint is held, but not of an accepted kind
	ReasonOff       uint8 = 8 // the profile is switched off for splicing, see *report*
)

// Span kinds of a plan.
const (
	SpanSegment   uint8 = 1 // the interior of a leased segment
	SpanRecompute uint8 = 2 // tokens that the engine computes: seam, miss, question
)

// From says where a plan begins.
const (
	FromZero       uint8 = 0 // at a zero state
	FromCheckpoint uint8 = 1 // at the checkpoint whose lease is `from lease`
	FromSlot       uint8 = 2 // at states in the slot of `from lease`, at `from off` of the slots region; see ComposeReply
)

// Dest kinds of rotate and assemble.
const (
	DestSlot   uint8 = 1 // packed into a slot
	DestMemory uint8 = 2 // scattered into registered memory by the engine's block table
)

// Cancel outcomes, one for each request.
const (
	CancelUnknown uint8 = 0 // not in flight: answered already, or never seen
	CancelStopped uint8 = 1 // stopped: it has answered `canceled`
	CancelDrained uint8 = 2 // it ended by itself meanwhile
)

// Way to serve a prompt; AdviseReply.WayMicros is indexed by way minus one.
const (
	WayRecompute uint8 = 1 // nothing is used
	WayPrefix    uint8 = 2 // from the longest checkpoint on
	WaySplice    uint8 = 3 // from the longest checkpoint on, with the segments that are held
	WayReplay    uint8 = 4 // from a token inside a buffer on
)

// Splicing numbers are ways to splice a request within its max loss.
const (
	SplicingAsked     uint8 = 0 // as it asked
	SplicingRefreshed uint8 = 1 // with the last of its segments computed in context
	SplicingNone      uint8 = 2 // not at all
)

// Why numbers say why a checkpoint at a position is worth having.
const (
	WhyBranch   uint8 = 1 // prompts part there
	WhyLast     uint8 = 2 // the last position that the same prompt can use, or the end of an answer
	WhyBoundary uint8 = 3 // a cut that the application named
	WhyPlaced   uint8 = 4 // placed from the depths at which earlier prompts parted
)

// Advice numbers say why something is worth storing (below 16) or is not.
// Unlike a Reason of match this is about objects that are not held yet.
const (
	AdviceNone      uint8 = 0  // it is held, or being stored
	AdviceSeen      uint8 = 1  // it came before
	AdviceCheap     uint8 = 2  // storing it costs next to nothing of computing it
	AdviceAsked     uint8 = 3  // the application named it
	AdviceReturning uint8 = 4  // such things come back
	AdviceShort     uint8 = 16 // computing it again takes less than fetching it
	AdviceCold      uint8 = 17 // not expected back often enough for what storing it takes
	AdviceThin      uint8 = 18 // saves less per byte than what would have to leave
	AdviceLarge     uint8 = 19 // takes more than its share of the pool
	AdviceNoGain    uint8 = 20 // fetching it is no faster than computing it
)

// Share ways in which device memory crosses the process border; bits of a set
// where a client says what it can map.
const (
	WayDescriptor uint8 = 1 // one descriptor for each chunk, with the frame (CUDA VMM)
	WayHandle     uint8 = 2 // one CUDA IPC handle for each chunk, in the frame
)

// Alone numbers say why nothing was begun for a plan.
const (
	AloneNone       uint8 = 0 // it was
	AloneNoGain     uint8 = 1 // others would not have them here sooner
	AloneNoWorkers  uint8 = 2 // no engine of another connection takes jobs of this profile and tenant
	AloneNotAllowed uint8 = 3 // the tenant has not `parallel`: its token ids stay on this node
	AloneNoRoom     uint8 = 4 // what others compute would not fit here
	AloneBusy       uint8 = 5 // a bound on plans is met, here or for the connection
	AloneOff        uint8 = 6 // the profile is switched off for splicing, see *report*
	AloneHere       uint8 = 7 // all rows are held or computed here already
)

// Progress numbers say what happened to a row of a plan.
const (
	ProgressCommitted uint8 = 1 // it is here: `acquire` leases it
	ProgressAborted   uint8 = 2 // its worker declined, is gone, or its bytes did not come; compute it
	ProgressLate      uint8 = 3 // it is not here in time; compute it
	ProgressPiece     uint8 = 4 // its first piece is here, the key of the tokens before `own begins`. The row is still open
)
