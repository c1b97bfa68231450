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

// Object is a segment or a checkpoint, from its reservation until its memory is free. The
// fields of the first group are all that a match reads: they share a cache line. The
// first two groups are fixed once the object is linked, except Fill, Resident and how it
// is packed. The rest is guarded by the store's lock.
type Object struct {
	Profile    *Profile
	Tenant     *Tenant
	Begin, End int                 // segments: the interior; checkpoints: the rows stored here
	Fill       *Fill               // nil once published, or once aborted and no copy runs; guarded
	Kind       tier.CheckpointKind // 0 = segment
	Resident   *resident           // its copies in HBM, or the resident that this copy belongs to; guarded

	ID          policy.ID
	Key         [32]byte
	Pool        *Pool
	Publisher   string // session that started to fill it
	Created     time.Time
	Spec        profile.SegmentSpec    // segments
	TokenIDs    []uint32               // segments: token ids
	Hash        profile.SegmentHash    // of these
	Packed      profile.Packed         // segments; set before they are published
	parts       *plan.PartMap          // of what is packed
	Extends     profile.PrefixHash     // checkpoints: hash of the parent; zero = none
	ExtendsKind tier.CheckpointKind    // of the parent
	Until       deadline.Deadline[any] // deadline of its fill; guarded
	Depth       int                    // checkpoints: nodes from the root, including this one
	Shares      []Share                // replaced in part when it is stripped or filled again; guarded

	Phase   phase
	Corrupt bool // its bytes are wrong, but others extend it
	Used    time.Time
	Hits    uint64 // number of leases
	Came    uint64 // of these, by clients of this node
	Size
	standings
	holds
	links
}

// Size is the cost of an object. Guarded by the store's lock, apart from RankBytes.
type Size struct {
	RankBytes   int64 // of one rank's layout
	Bytes       int64 // computed: layouts of all ranks, and token ids
	PageBytes   int64 // charged to its pool: the same with layouts in pages
	RecordBytes int64 // heap of the daemon for its records
	StateBytes  int64 // of Bytes, freed by stripping
	StatePages  int64 // of PageBytes
}

// Charge returns the bytes that an object's tenant is charged.
func (z *Size) Charge() int64 { return z.PageBytes + z.RecordBytes }

// standings is the state of an object in policies, the lower tier and other nodes.
// Guarded by the store's lock.
type standings struct {
	Ranked   standing   // in the policy of its pool
	InTenant standing   // in its tenant's policy: the same, or Absent while there is none or it catches up
	Cleaning standing   // in the backlog of objects that the lower tier does not have
	Sending  standing   // in the backlog of objects not yet offered to outlets
	Write    any        // its write into the lower tier, waiting or running; the writer knows the type
	Offload  any        // a copy in flight to an outlet; the sender knows the type
	Asked    bool       // a copy was sent, refused or not needed; it may be offered again at eviction
	Stored   tier.Level // level last seen in the lower tier; 0 = not there
	Refused  bool       // refused by the lower tier; retried after its next use
	Ahead    bool       // read ahead, and not used yet
	Told     bool       // listed in Options.Held
	Fetched  bool       // came from outside this node and may still be cached there
	From     tier.Place // where it was promoted from; PlaceNone = filled by a client
}

// holds counts the users of an object's memory. Guarded by the store's lock.
type holds struct {
	Leases  int // live
	Expired int // expired leases that are not released
	Ops     int // operations that are reading it
	Pins    int // 1 unless idle, plus 1 for each child with pins; evictable while 0
	Class   class
}

// links connect a checkpoint to others. Guarded by the store's lock.
type links struct {
	Parent   *Object   // while linked
	Children int       // number of children, including those being filled
	Kids     policy.ID // ids of the children, all xored: with one child, its id
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
	ClassPending                  // being filled, or aborted while a copy still runs
	ClassLeased                   // read under a live lease or by an operation
	ClassQuarantined              // only expired leases, whose holders may still read
	ClassDemoting                 // evicted, but the lower tier still reads it
	ClassOffloading               // a copy is being sent to an outlet; it may be evicted
	Classes
)

// BufferKind marks claimed memory that no lookup finds: rows, and states that rows were
// flushed into.
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

// Tokens returns what a hit saves: interior tokens, or all tokens covered.
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

// NeedsStates reports whether an object is rebuilt from the states of its parent.
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

// ShapeOf reports whether an entry of an object's name has the same tokens.
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

// Describe returns the Tier's view of an object.
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

// Ref returns a share's bytes as a reference for the device.
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

// ShareOf returns one rank's bytes as a reference for their device.
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
