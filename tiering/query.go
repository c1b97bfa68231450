package tiering

import (
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/find"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// MatchQuery asks for the longest checkpoint and the status of segments.
type MatchQuery struct {
	Profile   tier.ProfileID
	Tenant    tier.TenantID
	Accept    tier.CheckpointKind // bits; 0 = no checkpoint wanted
	Positions []uint32            // ascending; tokens covered by each of Prefixes
	Prefixes  [][32]byte          // profile.PrefixHash values
	Keys      [][32]byte          // profile.SegmentKey values
	// Others is empty, or has for each key the key of the segment's other variant: after a primer,
	// or without one. It is looked up where the key misses. The zero key is none.
	Others [][32]byte
	// Device is the one that the client reads. A client without is told where it would
	// read instead, and promotes nothing.
	Device tier.DeviceID
	// Local: the client does not know PlacePeer. What lies beyond this node is a miss.
	Local bool
}

// MatchResult answers a MatchQuery. Segments is reused by the next Match into
// the same result.
type MatchResult struct {
	PrefixTokens uint32 // 0 = no checkpoint
	PrefixIndex  int    // into Positions, when PrefixTokens > 0
	PrefixStates uint32 // tokens that it has states of; those behind are rows, see tier.Rows
	PrefixKind   tier.CheckpointKind
	PrefixPlace  tier.Place  // where the checkpoint lies, when PrefixTokens > 0
	PrefixReason tier.Reason // why no longer position hit; none when the longest one did
	MaxError     float64     // of the profile: what is not known of a segment's error is at most this
	Segments     []SegmentStatus
}

// SegmentStatus is one row of a match.
type SegmentStatus struct {
	Status tier.Status
	Place  tier.Place
	Reason tier.Reason
	Other  bool   // the row is about the other variant: it is a hit and the key is not
	Tokens uint32 // interior tokens of a hit; 0 = not known, in PlacePeer only
	// Error bounds the errors of a hit's stored form: see profile.Packed. 0 = as it was written.
	Error float64
}

// MaxPrompt is how many tokens a prompt may have in which segments are looked for.
const MaxPrompt = 1 << 20

// KnownQuery asks which held segments stand where in a prompt.
type KnownQuery struct {
	Profile tier.ProfileID
	Tenant  tier.TenantID
	Tokens  []uint32 // the prompt, at most MaxPrompt
	Begin   int      // segments begin there at the earliest
	// SeamTokens is the seam width that segments behind token 0 were computed for.
	SeamTokens int
	// Primer names the primer that segments should have from token PrimedFrom on, zero = none.
	// Segments before it should have none.
	Primer     profile.PrimerID
	PrimedFrom int
	// Either accepts the other variant of a segment where the preferred one is not cached.
	Either bool
	Most   int           // segments; those behind them are left out
	Device tier.DeviceID // as of MatchQuery
	Pause  func()        // called every few thousand tokens where it is not nil
}

// Known answers a KnownQuery. It keeps its memory from one to the next.
type Known struct {
	Segments []KnownSegment // ascending, without overlaps
	Untried  int            // as of find.Found
	found    find.Found
	keys     [][32]byte
	rows     []SegmentStatus
}

// KnownSegment is a segment that is held: tokens [Start, Start+Tokens) of the prompt.
type KnownSegment struct {
	Start, Tokens int
	Primed        bool // it has the query's primer
	Key           profile.SegmentKey
	SegmentStatus // a hit
}

// AcquireQuery leases segments for reading by one rank.
type AcquireQuery struct {
	Profile tier.ProfileID
	Tenant  tier.TenantID
	Rank    int
	TTL     time.Duration // 0 = the store's default; longer than its maximum is cut
	Digests bool
	// Again: what is Promoting is going to be asked for once more, by AwaitAcquire,
	// and is no miss until then.
	Again bool
	// Near: a peer asks. Nothing is looked for beyond this node, or nodes that believe that
	// others have something would send each other for it, and what is found or not counts
	// for none of this node's engines.
	Near bool
	// Planned: another node has computed them for this one. They are fetched whatever their
	// bytes cost, and though they were not to be had a moment ago.
	Planned bool
	Keys    [][32]byte
	Device  tier.DeviceID // where AcquireResident reads

	// All wants every key or none. When one is a miss the others' rows have
	// ErrWithheld. When they would all be hits but do not fit beside what is in
	// use, every row has the error, ErrFull or ErrBusy, and nothing was evicted
	// or promoted for them.
	All bool
}

// Acquired is one row of an Acquire: a hit, a miss with its reason, or an error
// (ErrBusy: too many leases). A miss that is Promoting lies in the lower tier and
// is on its way into memory, its reason is ReasonPending. Extents and Digests are shared and must not be
// written; the memory stays unchanged until the lease is released.
type Acquired struct {
	Hit       bool
	Promoting bool
	Reason    tier.Reason
	Err       error
	Place     tier.Place // of a hit: PlaceHBM when extents are of DeviceArena, else PlaceDRAM
	Lease     tier.LeaseID
	Bytes     int64          // of this rank's layout
	Begin     int            // first interior token, local to the segment
	Tokens    int            // interior tokens
	Packed    profile.Packed // how its packed parts are laid out
	Extents   []gpuipc.Extent
	Digests   []uint64 // of each chunk of each part, in order; nil unless asked for
}

// LoadQuery leases the checkpoint of a prefix hash.
type LoadQuery struct {
	Profile tier.ProfileID
	Tenant  tier.TenantID
	Rank    int
	Accept  tier.CheckpointKind
	TTL     time.Duration
	Digests bool
	Again   bool // as of AcquireQuery
	Near    bool // as of AcquireQuery
	Hash    profile.PrefixHash
	Device  tier.DeviceID // where LoadResident reads
}

// Loaded answers a LoadQuery: the chain of nodes from the root to the
// checkpoint, each laid out by tier.LayoutOf its kind and End-Begin tokens. States and
// convolution tails are those of the last node, or if that is of kind Rows they are
// rebuilt by a replay. Promoting is as in Acquired.
type Loaded struct {
	Hit       bool
	Promoting bool
	Reason    tier.Reason
	Place     tier.Place // as in Acquired
	Lease     tier.LeaseID
	Kind      tier.CheckpointKind
	Tokens    int
	Nodes     []LoadedNode
}

// LoadedNode is one node of a chain. Slices are shared as in Acquired.
type LoadedNode struct {
	Kind       tier.CheckpointKind
	Begin, End int
	Extents    []gpuipc.Extent
	Digests    []uint64
}

// ReserveQuery asks for room for one rank's share of a segment, or joins the
// reservation that another rank began.
type ReserveQuery struct {
	Profile tier.ProfileID
	Tenant  tier.TenantID
	Rank    int
	Key     profile.SegmentKey
	Spec    profile.SegmentSpec
	Tokens  []uint32 // all Spec.Tokens ids; copied
}

// SaveQuery asks for room for one rank's share of a checkpoint.
type SaveQuery struct {
	Profile tier.ProfileID
	Tenant  tier.TenantID
	Rank    int
	Kind    tier.CheckpointKind // Exact or Spliced
	Hash    profile.PrefixHash
	Tokens  int                // tokens covered
	Parent  profile.PrefixHash // the checkpoint that this one extends; zero = none
}

// Reservation is one rank's share of an object being filled.
type Reservation struct {
	ID    tier.ReservationID
	Bytes int64 // of this rank's layout
	// Durable is that of Committed, where SaveBuffered has published the object.
	Durable *Durable
}

// CommitItem hands over consecutive chunks of one part: gpuipc.ChunkBytes each,
// the last one of a part shorter. Level is how safe the object has to be before
// its publication is acknowledged; the highest of its commits counts.
type CommitItem struct {
	Reservation tier.ReservationID
	Part        int // index into the layout's parts
	ChunkFirst  int
	Digests     []uint64   // the client's digest of each chunk
	CRC32       bool       // Digests are CRC-32, see gpuipc.ChecksumBytes
	Src         gpuipc.Ref // exactly the bytes of these chunks
	Level       tier.Level // LevelDefault = the store's

	own bool // Src is memory of the store: Digests are not compared
}

// Committed answers a commit.
type Committed struct {
	// Published: this commit completed the last rank, and lookups find the object.
	Published bool
	Object    tier.Want // what was published
	// Durable is what to wait for before a published object is acknowledged. It
	// is nil when only LevelMemory was asked for, or there is no lower tier.
	Durable *Durable
}
