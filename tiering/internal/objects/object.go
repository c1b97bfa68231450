package objects

import (
	"fmt"
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

// Lease adds d to an object's live leases (-1 ends one), and updates the bytes that its
// pool saves by sharing.
func (o *Object) Lease(d int) {
	o.Pool.Saved -= o.saved()
	o.Leases += d
	o.Pool.Saved += o.saved()
}

// saved returns the bytes that sharing saves: the bytes of one separate copy per live
// lease, minus the object's own bytes. Each lease reads the share of one rank.
func (o *Object) saved() int64 {
	ranks := len(o.Shares)
	if o.InHBM() {
		ranks = 1
	}
	return o.RankBytes * int64(max(0, o.Leases-ranks))
}

// Fill is the state of an object between its reservation and its publication. Guarded by
// the store's lock; Layout and Ranks are fixed.
type Fill struct {
	Layout *plan.PartMap
	Ranks  []Filler // by rank; Of is nil until the rank joins

	Left    int        // ranks that are incomplete
	Copying int        // number of commits or reads that are writing into the object's memory
	Level   tier.Level // highest level that a commit asked for
	Dead    bool       // aborted; memory is freed once Copying is 0

	Promoted bool // filled by a promotion; no rank may join
	Fetched  bool // promoted from outside this node

	// The first token and the parent, as the writer stated them. They differ from those of a
	// stripped checkpoint that had another parent.
	Begin   int
	Extends profile.PrefixHash
}

// Filler is one rank's share of a fill: a reservation.
type Filler struct {
	ID      tier.ReservationID
	Object  *Object
	Rank    int
	Of      map[tier.ReservationID]*Filler // the reservations of the session that has joined; nil until then
	Chunks  []ChunkState                   // chunks of all parts, in order
	Left    int                            // chunks that are not done
	Digests []uint64                       // digests of all chunks; they become the share's digests at publication
}

// ChunkState is the progress of a chunk.
type ChunkState uint8

const (
	ChunkAbsent ChunkState = iota
	ChunkCopying
	ChunkDone
)

// NewFill returns the fill of an object with the layout, first token and parent that its
// writer wants.
func NewFill(want *Object, l *plan.PartMap) *Fill {
	ranks := want.Profile.Ranks
	return &Fill{Layout: l, Ranks: make([]Filler, ranks), Left: ranks, Begin: want.Begin, Extends: want.Extends}
}

// on is the only function that changes the phase of an object.
func (o *Object) on(e event) {
	next := life[o.Phase][e]
	if next == described {
		panic(fmt.Sprintf("objects: %s is %v and cannot be %v", o.Name(), o.Phase, e))
	}
	o.Phase = next
}

// Linked reports whether lookups find an object, as a hit or as pending.
func (o *Object) Linked() bool { return o.Phase == filling || o.Published() }

// Published reports whether an object is in the catalog and has been complete once. Its
// states may have been stripped since.
func (o *Object) Published() bool { return o.Phase == Whole || o.Phase == Stripped }

// LaidOut sets the packed layout of a segment on its way into memory.
func (o *Object) LaidOut(packed profile.Packed, parts *plan.PartMap) {
	o.Packed, o.parts = packed, parts
}

// copiedAs returns the layout of copies in HBM. The rows of copies are not packed, since
// the GPU kernels read plain rows.
func (o *Object) copiedAs() (profile.Packed, *plan.PartMap) {
	if o.Profile.RowTolerance() == 0 {
		return o.Packed, o.Layout()
	}
	packed, err := o.Profile.WithPlainRows(o.End-o.Begin, o.Packed)
	if err != nil {
		panic(fmt.Sprintf("objects: %v was not checked: %v", o.Name(), err))
	}
	return packed, o.Profile.PartsOf(&tier.Entry{Name: o.Identity().Name, Begin: o.Begin, End: o.End, Packed: packed})
}

// evictionOf returns the tenant's policy for an object.
func (t *Tenant) evictionOf(o *Object) policy.Eviction {
	if o.InHBM() {
		return t.Above
	}
	return t.Evict
}
