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
	Accept    tier.CheckpointKind // bits; 0 = no checkpoint
	Positions []uint32            // ascending; tokens covered by each of Prefixes
	Prefixes  [][32]byte          // profile.PrefixHash values
	Keys      [][32]byte          // profile.SegmentKey values
	// Others is empty, or has for each key the key of the segment's other variant: after
	// a primer, or without one. It is looked up if the key misses. The zero key means
	// none.
	Others [][32]byte
	// Device is the device that the client reads. A client without one gets the place
	// that it would read instead, and promotes nothing to HBM.
	Device tier.DeviceID
	// Local: the client does not know PlacePeer. Remote objects are misses.
	Local bool
}

// MatchResult answers a MatchQuery. Segments is reused by the next Match into the same
// result.
type MatchResult struct {
	PrefixTokens uint32 // 0 = no checkpoint
	PrefixIndex  int    // index into Positions, if PrefixTokens > 0
	PrefixStates uint32 // tokens up to which it has states; the later ones are rows, see tier.Rows
	PrefixKind   tier.CheckpointKind
	PrefixPlace  tier.Place  // place of the checkpoint, if PrefixTokens > 0
	PrefixReason tier.Reason // why no longer position hit; ReasonNone if the longest did
	MaxError     float64     // of the profile: bound for segments whose error is unknown
	Segments     []SegmentStatus
}

// SegmentStatus is one row of a match.
type SegmentStatus struct {
	Status tier.Status
	Place  tier.Place
	Reason tier.Reason
	Other  bool   // the row is a hit of the other variant, and the key is a miss
	Tokens uint32 // interior tokens of a hit; 0 = unknown, for PlacePeer only
	// Error bounds the errors of a hit's stored form: see profile.Packed. 0 = as it was
	// written.
	Error float64
}

// MaxPrompt is the maximum length in tokens of a prompt in which segments are searched.
const MaxPrompt = 1 << 20

// KnownQuery asks which cached segments occur where in a prompt.
type KnownQuery struct {
	Profile tier.ProfileID
	Tenant  tier.TenantID
	Tokens  []uint32 // the prompt, at most MaxPrompt
	Begin   int      // first token at which segments may begin
	// SeamTokens is the seam width of the segments that start after token 0.
	SeamTokens int
	// Primer names the primer that segments should have from token PrimedFrom on, zero =
	// none. Segments before it should have none.
	Primer     profile.PrimerID
	PrimedFrom int
	// Either accepts the other variant of a segment if the preferred one is not cached.
	Either bool
	Most   int           // maximum number of segments; later ones are left out
	Device tier.DeviceID // as in MatchQuery
	Pause  func()        // called every few thousand tokens if it is not nil
}

// Known answers a KnownQuery. Its memory is reused by the next one.
type Known struct {
	Segments []KnownSegment // ascending, without overlaps
	Untried  int            // as in find.Found
	found    find.Found
	keys     [][32]byte
	rows     []SegmentStatus
}

// KnownSegment is a cached segment: tokens [Start, Start+Tokens) of the prompt.
type KnownSegment struct {
	Start, Tokens int
	Primed        bool // captured after the query's primer
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
	// Again: the caller will ask again with AwaitAcquire for what is Promoting. It is not
	// counted as a miss until then.
	Again bool
	// Near: the caller is a peer. There is no remote lookup, since otherwise nodes with
	// hints about each other would ask in a circle, and the result counts for none of
	// this node's engines.
	Near bool
	// Planned: another node has computed them for this one. They are fetched whatever
	// their bytes cost, and even if they were absent a moment ago.
	Planned bool
	Keys    [][32]byte
	Device  tier.DeviceID // the device that AcquireResident reads

	// All leases every key or none. If one is a miss, the rows of the others have
	// ErrWithheld. If all would be hits but do not fit next to what is in use, every row
	// has the error, ErrFull or ErrBusy, and nothing was evicted or promoted for them.
	All bool
}

// Acquired is one row of an Acquire: a hit, a miss with its reason, or an error (ErrBusy:
// too many leases). A miss that is Promoting is being read into memory, and its reason is
// ReasonPending. Extents and Digests are shared and must not be modified; the memory
// stays unchanged until the lease is released.
type Acquired struct {
	Hit       bool
	Promoting bool
	Reason    tier.Reason
	Err       error
	Place     tier.Place // of a hit: PlaceHBM if extents are of DeviceArena, else PlaceDRAM
	Lease     tier.LeaseID
	Bytes     int64          // of this rank's layout
	Begin     int            // first interior token, local to the segment
	Tokens    int            // interior tokens
	Packed    profile.Packed // layout of its packed parts
	Extents   []gpuipc.Extent
	Digests   []uint64 // of each chunk of each part, in order; nil unless requested
}

// LoadQuery leases the checkpoint of a prefix hash.
type LoadQuery struct {
	Profile tier.ProfileID
	Tenant  tier.TenantID
	Rank    int
	Accept  tier.CheckpointKind
	TTL     time.Duration
	Digests bool
	Again   bool // as in AcquireQuery
	Near    bool // as in AcquireQuery
	Hash    profile.PrefixHash
	Device  tier.DeviceID // the device that LoadResident reads
}

// Loaded answers a LoadQuery: the chain of nodes from the root to the checkpoint, each
// with the layout that tier.LayoutOf returns for its kind and End-Begin tokens. States
// and convolution tails are those of the last node; if that is of kind Rows, a replay
// rebuilds them. Promoting is as in Acquired.
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
	Kind    tier.CheckpointKind // Exact, Rows or Spliced
	Hash    profile.PrefixHash
	Tokens  int                // tokens covered
	Parent  profile.PrefixHash // the checkpoint that this one extends; zero = none
}

// Reservation is one rank's share of an object being filled.
type Reservation struct {
	ID    tier.ReservationID
	Bytes int64 // of this rank's layout
	// Durable is as in Committed, if SaveBuffered has published the object.
	Durable *Durable
}

// CommitItem commits consecutive chunks of one part: gpuipc.ChunkBytes each, the last one
// of a part shorter. Level is the durability that the object needs before its publication
// is acknowledged; the highest one of its commits counts.
type CommitItem struct {
	Reservation tier.ReservationID
	Part        int // index into the layout's parts
	ChunkFirst  int
	Digests     []uint64   // the client's digest of each chunk
	CRC32       bool       // Digests are CRC-32, see gpuipc.ChecksumBytes
	Src         gpuipc.Ref // exactly the bytes of these chunks
	Level       tier.Level // LevelDefault = the store's default

	own bool // Src is memory of the store: Digests are not compared
}

// Committed answers a commit.
type Committed struct {
	// Published: this commit completed the last rank, and lookups find the object.
	Published bool
	Object    tier.Want // the published object
	// Durable has to be awaited before a published object is acknowledged. It is nil if
	// only LevelMemory was requested, or there is no lower tier.
	Durable *Durable
}
