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

// Object is a segment or a checkpoint, from its reservation until its memory is
// free. The fields of the first group are all that a match reads: they share a
// cache line. Apart from fill, and how it is packed, the first two groups are fixed once the
// object is linked; the rest is guarded by the store's lock.
type Object struct {
	Profile    *Profile
	Tenant     *Tenant
	Begin, End int                 // segments: the interior; checkpoints: rows held here
	Fill       *Fill               // nil once published, or once dead and no copy runs; guarded
	Kind       tier.CheckpointKind // 0 = segment
	Resident   *resident           // what HBM has of it, or what this copy in HBM belongs to; guarded

	ID          policy.ID
	Key         [32]byte
	Pool        *Pool
	Publisher   string // session that began to fill it
	Created     time.Time
	Spec        profile.SegmentSpec    // segments
	TokenIDs    []uint32               // segments: token ids
	Hash        profile.SegmentHash    // of these
	Packed      profile.Packed         // segments; set before they are published
	parts       *plan.PartMap          // of what is packed
	Extends     profile.PrefixHash     // checkpoints: hash of the parent, zero = none
	ExtendsKind tier.CheckpointKind    // of the parent
	Until       deadline.Deadline[any] // while it is being filled; guarded
	Depth       int                    // checkpoints: nodes from the root, this one counted
	Shares      []Share                // replaced in parts when it is stripped or filled again; guarded

	Phase   phase
	Corrupt bool // its bytes are wrong, but others extend it
	Used    time.Time
	Hits    uint64 // leases that were taken
	Came    uint64 // of these, by clients of this node
	Size
	standings
	holds
	links
}

// Size is what an object costs. Guarded by the store's lock, apart from RankBytes.
type Size struct {
	RankBytes   int64 // of its layout
	Bytes       int64 // that were computed: layouts of all ranks, and token ids
	PageBytes   int64 // that its pool pays for: the same with layouts in pages
	RecordBytes int64 // that the daemon needs beside them to know it
	StateBytes  int64 // of Bytes, what stripping gives back
	StatePages  int64 // of PageBytes
}

// Charge is what an object's tenant pays for: all that is held for it.
func (z *Size) Charge() int64 { return z.PageBytes + z.RecordBytes }

// standings are how others see an object: policies, the lower tier, other nodes. Guarded by the
// store's lock.
type standings struct {
	Ranked   standing   // in the policy of its pool
	InTenant standing   // in that of its tenant: the same, or absent while that is none or catches up
	Cleaning standing   // in the backlog of what the lower tier does not hold
	Sending  standing   // in the backlog of what nobody was asked to take
	Write    any        // into the lower tier, wanted or running; who writes knows its type
	Offload  any        // a copy on its way to others; who sends it knows its type
	Asked    bool       // a copy was sent, is not needed or not taken; it may be again when it leaves
	Stored   tier.Level // what the lower tier was last seen to hold of it; 0 = nothing
	Refused  bool       // the lower tier did not take it; asked again after its next use
	Ahead    bool       // read ahead, and not used yet
	Told     bool       // the set of what is held has it
	Fetched  bool       // it came from beyond this node, where others may have it still
	From     tier.Place // where it was promoted from; PlaceNone = its writer has filled it
}

// holds are what keeps an object's memory. Guarded by the store's lock.
type holds struct {
	Leases  int // live
	Expired int // leases past their time whose holder has not let go
	Ops     int // operations that read it now
	Pins    int // 1 unless idle, and 1 for each child with pins; it may leave while 0
	Class   class
}

// links are those of a checkpoint to others. Guarded by the store's lock.
type links struct {
	Parent   *Object   // while linked
	Children int       // whose parent it is, filling ones included
	Kids     policy.ID // of the children, all xored: with one child its id
	Sibling  *Object   // next checkpoint with the same hash: other kind, profile or tenant
}

// Share is one rank's part of an object.
type Share struct {
	Extents []gpuipc.Extent
	Digests []uint64
}

// class says why an object's memory is where it is; pools count bytes by it.
type class uint8

const (
	ClassIdle        class = iota // published, nobody uses it: may be evicted
	ClassPending                  // being filled, or dead while a copy still runs
	ClassLeased                   // read under a live lease or by an operation
	ClassQuarantined              // only expired leases, whose holders may still read
	ClassDemoting                 // has left, but the lower tier still reads it
	ClassOffloading               // a copy of it is being sent to others; it may have left
	Classes
)

// BufferKind marks memory that was claimed, which no lookup finds: rows, and states
// that rows were flushed into.
const BufferKind tier.CheckpointKind = 1 << 7

// Classify works out the class of an object from what holds it.
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

// Tokens is what a hit saves: interior tokens, or all tokens covered.
func (o *Object) Tokens() int {
	if o.Kind == 0 {
		return o.End - o.Begin
	}
	return o.End
}

// Layout is that of each rank's share.
func (o *Object) Layout() *plan.PartMap {
	if o.parts != nil {
		return o.parts
	}
	if o.Kind == 0 {
		return o.Profile.SegmentParts(o.End - o.Begin)
	}
	return o.Profile.NodeParts(o.Kind, o.End-o.Begin)
}

// Label is what the object is known by in every tier.
func (o *Object) Label() tier.Name { return tier.Name{Kind: o.Kind, Key: o.Key} }

// NeedsStates tells whether an object is rebuilt from the states of what it extends.
func (o *Object) NeedsStates() bool { return o.Kind == tier.Rows && o.Parent != nil }

// Name is what messages call an object.
func (o *Object) Name() string {
	if o.Kind == BufferKind {
		return "buffer"
	}
	return o.Label().String()
}

// InHBM tells copies in HBM, and buffers there, from what lies in memory.
func (o *Object) InHBM() bool { return o.Pool.Device != nil }

// ShapeOf tells whether an entry of an object's name holds the same tokens.
func (o *Object) ShapeOf(e *tier.Entry) bool {
	return e.Begin == o.Begin && e.End == o.End && e.Spec == o.Spec && e.Parent.Key == o.Extends
}

// ResidentRanks is how many ranks have a copy in HBM.
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

// scope is whose segments an object is found among.
func (o *Object) scope() find.Scope {
	return find.Scope{Tenant: o.Tenant.ID, Profile: o.Profile.Fingerprint()}
}

// Describe makes the Tier's view of an object.
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

// Ref names a share's bytes to the device.
func (s *Set) Ref(sh *Share) gpuipc.Ref {
	return gpuipc.Ref{Region: s.cfg.Arena, Extents: sh.Extents}
}

// regionOf is where an object's extents lie.
func (s *Set) regionOf(o *Object) gpuipc.Region {
	if o.InHBM() {
		return o.Pool.Device.arena
	}
	return s.cfg.Arena
}

// ShareOf names one rank's bytes to the device that has them.
func (s *Set) ShareOf(o *Object, rank int) gpuipc.Ref {
	return gpuipc.Ref{Region: s.regionOf(o), Extents: o.Shares[rank].Extents}
}

// PlaceOf is the place that a lease of an object is told.
func (s *Set) PlaceOf(o *Object) tier.Place {
	if o.InHBM() {
		return tier.PlaceHBM
	}
	return s.cfg.Place
}
