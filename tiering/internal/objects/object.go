package objects

import (
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/find"
	"github.com/spliced-kv/spliced/tiering/internal/deadline"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Object is a segment or a checkpoint, from its reservation until its memory is free. A
// match reads only the fields of the first group, which share a cache line. The fields of
// the first two groups are fixed once the object is linked, except Fill, Resident and how
// it is packed. The store's lock guards these and the fields of the third group.
type Object struct {
	Profile    *Profile
	Tenant     *Tenant
	Begin, End int                 // segments: the interior; checkpoints: the rows stored here
	Fill       *Fill               // nil once published, or once aborted and no commit or read runs; guarded
	Kind       tier.CheckpointKind // 0 = segment
	Resident   *resident           // the object's copies in HBM; for a copy, the list that it is in; guarded

	ID          policy.ID
	Key         [32]byte
	Pool        *Pool
	Publisher   string // session that started to fill it
	Created     time.Time
	Spec        profile.SegmentSpec    // segments
	TokenIDs    []uint32               // segments: token ids
	Hash        profile.SegmentHash    // segments: rolling hash of TokenIDs
	Packed      profile.Packed         // segments; set before they are published
	parts       *plan.PartMap          // layout if packed; nil otherwise
	Extends     profile.PrefixHash     // checkpoints: hash of the parent; zero = none
	ExtendsKind tier.CheckpointKind    // checkpoints: kind of the parent
	Until       deadline.Deadline[any] // deadline of its fill, or of its first use after a read-ahead; guarded
	Depth       int                    // checkpoints: nodes from the root, including this one
	Shares      []Share                // by rank; partly replaced when states are stripped or restored; guarded

	Phase   phase
	Corrupt bool // its bytes are wrong, but others extend it
	Used    time.Time
	Hits    uint64 // number of leases
	Came    uint64 // number of leases by clients of this node
	Size
	standings
	holds
	links
}

// Size has the sizes of an object in bytes. Guarded by the store's lock, except RankBytes.
type Size struct {
	RankBytes   int64 // of one rank's layout
	Bytes       int64 // layouts of all ranks, and token ids
	PageBytes   int64 // charged to its pool: as Bytes, with layouts rounded up to pages
	RecordBytes int64 // bytes of the daemon's heap for its records
	StateBytes  int64 // part of Bytes that stripping frees
	StatePages  int64 // part of PageBytes that stripping frees
}

// Charge returns the bytes that an object's tenant is charged.
func (z *Size) Charge() int64 { return z.PageBytes + z.RecordBytes }

// standings records the standing of an object in policies and backlogs, in the lower tier
// and at other nodes. Guarded by the store's lock.
type standings struct {
	Ranked   standing   // in the policy of its pool
	InTenant standing   // in its tenant's policy: equal to Ranked; Absent if there is no policy, or not yet
	Cleaning standing   // in the backlog of objects that the lower tier does not have
	Sending  standing   // in the backlog of objects not yet offered to outlets
	Write    any        // its write into the lower tier, waiting or running; the writer knows the type
	Offload  any        // a copy in flight to an outlet; the sender knows the type
	Asked    bool       // already offered to outlets; it may be offered again at eviction
	Stored   tier.Level // level last seen in the lower tier; 0 = not in the lower tier
	Refused  bool       // refused by the lower tier; retried after its next use
	Ahead    bool       // read ahead, and not used yet
	Told     bool       // the listener Options.Held was notified of it
	Fetched  bool       // came from outside this node and may still be cached there
	From     tier.Place // where it was promoted from; PlaceNone = filled by a client
}

// holds counts the users of an object's memory. Guarded by the store's lock.
type holds struct {
	Leases  int // live leases
	Expired int // expired leases that are not released
	Ops     int // operations that are reading it
	Pins    int // 1 unless Class is ClassIdle, plus 1 per child with pins; evictable if 0
	Class   class
}

// links connect a checkpoint to others. Guarded by the store's lock.
type links struct {
	Parent   *Object   // set while the object is linked
	Children int       // number of children, including those being filled
	Kids     policy.ID // xor of the children's ids: the id of an only child
	Sibling  *Object   // next checkpoint with the same hash: other kind, profile or tenant
}

// Share is one rank's part of an object.
type Share struct {
	Extents []gpuipc.Extent
	Digests []uint64
}

// class is the reason why an object occupies memory; pools count bytes by class.
type class uint8

const (
	ClassIdle        class = iota // published and unused: may be evicted
	ClassPending                  // being filled, or aborted while a commit or read still runs
	ClassLeased                   // read under a live lease or by an operation
	ClassQuarantined              // has only expired leases; their holders may still read
	ClassDemoting                 // evicted, but the lower tier still reads it
	ClassOffloading               // a copy is being sent to an outlet; it may be evicted
	Classes
)

// BufferKind is the kind of a buffer's memory, which no lookup finds: rows, or states into
// which rows were flushed.
const BufferKind tier.CheckpointKind = 1 << 7

// Classify returns the class of an object, derived from its users.
func (o *Object) Classify() class {
	switch {
	case o.Fill != nil:
		return ClassPending
	case o.Leases+o.Ops > 0:
		return ClassLeased
	case o.Expired > 0:
		return ClassQuarantined
	case o.Write != nil && !o.Linked():
		return ClassDemoting
	case o.Offload != nil:
		return ClassOffloading
	}
	return ClassIdle
}

// Tokens returns the tokens that a hit saves: interior tokens of a segment, or all tokens
// that a checkpoint covers.
func (o *Object) Tokens() int {
	if o.Kind == 0 {
		return o.End - o.Begin
	}
	return o.End
}

// Layout returns the layout of each rank's share.
func (o *Object) Layout() *plan.PartMap {
	if o.parts != nil {
		return o.parts
	}
	if o.Kind == 0 {
		return o.Profile.SegmentParts(o.End - o.Begin)
	}
	return o.Profile.NodeParts(o.Kind, o.End-o.Begin)
}

// Label returns the object's name in every tier.
func (o *Object) Label() tier.Name { return tier.Name{Kind: o.Kind, Key: o.Key} }

// NeedsStates reports whether a replay that rebuilds the object begins at the states of
// its parent.
func (o *Object) NeedsStates() bool { return o.Kind == tier.Rows && o.Parent != nil }

// Name returns the object's name in messages.
func (o *Object) Name() string {
	if o.Kind == BufferKind {
		return "buffer"
	}
	return o.Label().String()
}

// InHBM reports whether the object is a copy or a buffer in HBM.
func (o *Object) InHBM() bool { return o.Pool.Device != nil }

// ShapeOf reports whether an entry with the object's name has the same tokens and parent.
func (o *Object) ShapeOf(e *tier.Entry) bool {
	return e.Begin == o.Begin && e.End == o.End && e.Spec == o.Spec && e.Parent.Key == o.Extends
}

// ResidentRanks returns the number of ranks with a copy in HBM.
func (o *Object) ResidentRanks() int {
	if o.Resident == nil {
		return 0
	}
	ranks := map[int]bool{}
	for i := range o.Resident.Copies {
		ranks[o.Resident.Copies[i].Rank] = true
	}
	return len(ranks)
}

// scope returns the scope in which the object's segment is indexed.
func (o *Object) scope() find.Scope {
	return find.Scope{Tenant: o.Tenant.ID, Profile: o.Profile.Fingerprint()}
}

// Describe returns the description of an object that a Tier gets.
func (s *Set) Describe(o *Object) *tier.Object {
	d := &tier.Object{
		Key: o.Key, Kind: o.Kind, Profile: o.Profile.Profile, Tenant: o.Tenant.ID, Publisher: o.Publisher, Created: o.Created,
		Spec: o.Spec, Tokens: o.TokenIDs, Hash: o.Hash, Packed: o.Packed, Begin: o.Begin, End: o.End,
		Shares: make([]tier.Share, len(o.Shares)),
	}
	if o.Extends != (profile.PrefixHash{}) {
		d.Parent = tier.Name{Kind: o.ExtendsKind, Key: o.Extends}
	}
	for i := range o.Shares {
		d.Shares[i] = tier.Share{Ref: s.Ref(&o.Shares[i]), Digests: o.Shares[i].Digests}
	}
	return d
}

// Ref returns the bytes of a share in memory as a reference for the device.
func (s *Set) Ref(sh *Share) gpuipc.Ref {
	return gpuipc.Ref{Region: s.cfg.Arena, Extents: sh.Extents}
}

// regionOf returns the region of an object's extents.
func (s *Set) regionOf(o *Object) gpuipc.Region {
	if o.InHBM() {
		return o.Pool.Device.arena
	}
	return s.cfg.Arena
}

// ShareOf returns one rank's bytes as a reference, in memory or in HBM.
func (s *Set) ShareOf(o *Object, rank int) gpuipc.Ref {
	return gpuipc.Ref{Region: s.regionOf(o), Extents: o.Shares[rank].Extents}
}

// PlaceOf returns the place reported with a lease of an object.
func (s *Set) PlaceOf(o *Object) tier.Place {
	if o.InHBM() {
		return tier.PlaceHBM
	}
	return s.cfg.Place
}
