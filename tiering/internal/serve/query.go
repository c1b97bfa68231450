package serve

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
	// Others is empty, or has one key per entry of Keys: the key of the same segment's other
	// variant (captured after a primer, or without one). The other variant is looked up if the
	// entry of Keys misses. The zero key means that there is no other variant.
	Others [][32]byte
	// Device is the device that the client reads; 0 = none. For a client without a device, the
	// match reports as Place where the object is outside HBM, and starts no copy to HBM.
	Device tier.DeviceID
	// Local says that the client does not know PlacePeer. Objects that only other nodes
	// have are misses for it.
	Local bool
}

// MatchResult answers a MatchQuery. The next Match into the same result reuses the field
// Segments.
type MatchResult struct {
	PrefixTokens uint32 // 0 = no checkpoint
	PrefixIndex  int    // index into Positions, if PrefixTokens > 0
	PrefixStates uint32 // the checkpoint has states up to this token and only rows after it, see tier.Rows
	PrefixKind   tier.CheckpointKind
	PrefixPlace  tier.Place  // place of the checkpoint, if PrefixTokens > 0
	PrefixReason tier.Reason // why positions longer than the hit missed; ReasonNone if the longest hit
	MaxError     float64     // the profile's tolerance: bound for segments whose error is unknown
	Segments     []SegmentStatus
}

// SegmentStatus is one row of a match.
type SegmentStatus struct {
	Status tier.Status
	Place  tier.Place
	Reason tier.Reason
	Other  bool   // the hit is the other variant; the key itself is a miss
	Tokens uint32 // interior tokens of a hit; 0 = unknown, for PlacePeer only
	// Error bounds the error of the stored form of a hit, see profile.Packed. 0 = stored
	// as written.
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
	// Primer is the primer after which the segments from token PrimedFrom on should have been
	// captured; zero = none. Segments before PrimedFrom should have been captured without one.
	Primer     profile.PrimerID
	PrimedFrom int
	// If Either is true, the search accepts a segment that was captured after the primer where
	// one without a primer is preferred, and the reverse, if the preferred variant is not
	// cached.
	Either bool
	Most   int           // maximum number of segments; later ones are left out
	Device tier.DeviceID // as in MatchQuery
	Pause  func()        // called every few thousand tokens if it is not nil
}

// Known answers a KnownQuery. The next query into the same value reuses its memory.
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
	TTL     time.Duration // 0 = the store's default; a longer time than the store's maximum is shortened
	Digests bool
	// Again says that the caller asks again, with AwaitAcquire, for rows that are
	// Promoting. Such a row does not count as a miss now.
	Again bool
	// Near says that the caller is a peer. The store then asks no other node: nodes with
	// hints about each other would otherwise ask in a circle. The hits and misses are not
	// counted as those of this node's engines.
	Near bool
	// Planned says that another node has computed these segments for this node. The store
	// fetches them without weighing the cost of their bytes, and also if a recent lookup did
	// not find them.
	Planned bool
	Keys    [][32]byte
	Device  tier.DeviceID // the device that AcquireResident reads

	// If All is true, the query leases either every key or none. If a key is a miss, the rows
	// of the other keys have ErrWithheld. If all keys would be hits but their objects do not
	// fit next to the objects in use, every row has ErrFull or ErrBusy, and nothing was evicted
	// or promoted.
	All bool
}

// Acquired is one row of an Acquire: a hit, a miss with its reason, or an error (ErrBusy:
// too many leases). If Promoting is set, the row is a miss with ReasonPending and its
// object is being read into memory. Extents and Digests are shared and must not be
// modified; the memory stays unchanged until the lease is released.
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
// with the layout that tier.LayoutOf returns for its kind and End-Begin tokens. States and
// convolution tails come from the last node; if that node is of kind Rows, a replay
// rebuilds the states. Promoting is as in Acquired.
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
