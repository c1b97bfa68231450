package tiering

import (
	"fmt"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/decision"
	"github.com/spliced-kv/spliced/tiering/internal/deadline"
	"github.com/spliced-kv/spliced/tiering/internal/ghost"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// object is a segment or a checkpoint, from its reservation until its memory is
// free. The fields of the first group are all that a match reads: they share a
// cache line. Apart from fill, the first two groups are fixed once the object is
// linked; the rest is guarded by the store's lock.
type object struct {
	profile    *profileState
	tenant     *tenant
	begin, end int                 // segments: the interior; checkpoints: rows held here
	fill       *fill               // nil once published, or once dead and no copy runs; guarded
	kind       tier.CheckpointKind // 0 = segment
	resident   *resident           // what HBM has of it, or what this copy in HBM belongs to; guarded

	id          policy.ID
	key         [32]byte
	pool        *pool
	publisher   string // session that began to fill it
	created     time.Time
	spec        profile.SegmentSpec      // segments
	ids         []uint32                 // segments: token ids
	extends     profile.PrefixHash       // checkpoints: hash of the parent, zero = none
	extendsKind tier.CheckpointKind      // of the parent
	until       deadline.Deadline[timed] // while it is being filled; guarded
	depth       int                      // checkpoints: nodes from the root, this one counted
	shares      []share                  // replaced in parts when it is thinned or filled again; guarded

	phase   phase
	corrupt bool // its bytes are wrong, but others extend it
	used    time.Time
	hits    uint64
	size
	standings
	holds
	links
}

// size is what an object costs. Guarded by the store's lock, apart from rankBytes.
type size struct {
	rankBytes  int64 // of its layout
	bytes      int64 // that its tenant pays for: layouts of all ranks and token ids
	pageBytes  int64 // that its pool pays for: the same with layouts in pages
	stateBytes int64 // of bytes, what stripping gives back
	statePages int64 // of pageBytes
}

// standings are how others see an object: policies and the lower tier. Guarded by the
// store's lock.
type standings struct {
	ranked   standing   // in the policies of its pool and tenant
	cleaning standing   // in the policy of what the lower tier does not hold
	write    *write     // into the lower tier, wanted or running
	stored   tier.Level // what the lower tier was last seen to hold of it; 0 = nothing
	refused  bool       // the lower tier did not take it; asked again after its next use
	ahead    bool       // read ahead, and not used yet
}

// holds are what keeps an object's memory. Guarded by the store's lock.
type holds struct {
	leases  int // live
	expired int // leases past their time whose holder has not let go
	ops     int // operations that read it now
	pins    int // 1 unless idle, and 1 for each child with pins; it may leave while 0
	class   class
}

// links are those of a checkpoint to others. Guarded by the store's lock.
type links struct {
	parent   *object   // while linked
	children int       // whose parent it is, filling ones included
	kids     policy.ID // of the children, all xored: with one child its id
	sibling  *object   // next checkpoint with the same hash: other kind, profile or tenant
}

// share is one rank's part of an object.
type share struct {
	extents []gpuipc.Extent
	digests []uint64
}

// class says why an object's memory is where it is; pools count bytes by it.
type class uint8

const (
	classIdle        class = iota // published, nobody uses it: may be evicted
	classPending                  // being filled, or dead while a copy still runs
	classLeased                   // read under a live lease or by an operation
	classQuarantined              // only expired leases, whose holders may still read
	classDemoting                 // has left, but the lower tier still reads it
	classes
)

func (o *object) classify() class {
	switch {
	case o.fill != nil:
		return classPending
	case o.leases+o.ops > 0:
		return classLeased
	case o.expired > 0:
		return classQuarantined
	case o.write != nil && !o.linked():
		return classDemoting
	}
	return classIdle
}

// tokens is what a hit saves: interior tokens, or all tokens covered.
func (o *object) tokens() int {
	if o.kind == 0 {
		return o.end - o.begin
	}
	return o.end
}

// layout is that of each rank's share.
func (o *object) layout() *plan.PartMap {
	if o.kind == 0 {
		return o.profile.SegmentParts(o.end - o.begin)
	}
	return o.profile.CheckpointParts(o.end - o.begin)
}

func (o *object) name() string {
	if o.kind == bufferKind {
		return "buffer"
	}
	return o.label().String()
}

// ref names a share's bytes to the device.
func (s *Store) ref(sh *share) gpuipc.Ref {
	return gpuipc.Ref{Region: s.arena, Extents: sh.extents}
}

// useLocked keeps an object's memory, unuseLocked lets go of it. nil is nothing.
func (s *Store) useLocked(o *object) {
	if o != nil {
		o.ops++
		s.settleLocked(o)
	}
}

func (s *Store) unuseLocked(o *object) {
	if o != nil {
		o.ops--
		s.settleLocked(o)
	}
}

// settleLocked brings the accounts up to date after a count of o changed, and
// frees its memory when nothing holds it any more.
func (s *Store) settleLocked(o *object) {
	next := o.classify()
	if next != o.class {
		o.pool.bytes[o.class] -= o.pageBytes
		o.pool.bytes[next] += o.pageBytes
		if o.class == classIdle {
			s.pinLocked(o, 1)
		} else if next == classIdle {
			s.pinLocked(o, -1)
		}
		if next == classDemoting {
			o.tenant.leaving += o.bytes
		} else if o.class == classDemoting {
			o.tenant.leaving -= o.bytes
		}
		o.class = next
	}
	if checked {
		s.checkLocked(o)
	}
	if next == classIdle && !o.linked() {
		s.freeLocked(o)
	} else if next == classIdle {
		s.dropPlaceholderLocked(o)
	}
}

// pinLocked adds to the pins of o and, where that pins or unpins it, of its
// parents: a node cannot leave before those that extend it.
func (s *Store) pinLocked(o *object, d int) {
	for ; o != nil; o = o.parent {
		was := o.pins
		o.pins += d
		if (was == 0) == (o.pins == 0) {
			return
		}
		d = 1
		if o.pins == 0 {
			d = -1
		}
		if o.inHBM() {
			o.profile.held += d
		}
		o.pool.pinned += int64(d) * o.pageBytes
		o.tenant.pinned += int64(d) * o.bytes
		if o.inHBM() {
			o.tenant.pinnedAbove += int64(d) * o.bytes
		}
		if o.published() {
			o.refused = false
			s.rankLocked(o)
		}
	}
}

// linkLocked makes a new object, whose memory is allocated, known to lookups.
func (s *Store) linkLocked(o *object) {
	o.on(evLink)
	if o.kind == 0 {
		if s.segments.Find(&o.key) != nil {
			panic(fmt.Sprintf("tiering: %s is held twice", o.name()))
		}
		s.segments.Put(&o.key, o)
	} else {
		o.sibling = s.checkpoints.Find(&o.key)
		s.checkpoints.Put(&o.key, o)
	}
	s.bookLocked(o)
	if up := o.parent; up != nil {
		up.children++
		up.kids ^= o.id
		s.revalueLocked(up)
		s.rankLocked(up)
	}
	s.settleLocked(o)
	if s.cleanerIdle && s.shortLocked(o.pool) {
		s.changed.Broadcast()
	}
}

// bookLocked begins to account for an object.
func (s *Store) bookLocked(o *object) {
	if o.phase == described {
		o.on(evBook)
	}
	o.id = s.objects.Add(o)
	if !o.inHBM() {
		o.profile.held++
	}
	o.pool.objects++
	o.pool.bytes[classIdle] += o.pageBytes
	o.pool.used += o.pageBytes
	o.tenant.used[o.pool.number] += o.bytes
}

// unlinkLocked hides an object from lookups and policies. Its memory is freed
// now or by whoever lets go last.
func (s *Store) unlinkLocked(o *object, why tier.Reason) {
	if o.children > 0 {
		panic(fmt.Sprintf("tiering: %s leaves before its %d children", o.name(), o.children))
	}
	if o.kind == 0 {
		s.segments.Remove(&o.key)
	} else {
		s.unlinkSiblingLocked(o)
	}
	if o.published() {
		o.countPublished(-1)
	}
	o.on(evDetach)
	s.leftHBMLocked(o, why)
	if o.corrupt {
		o.corrupt = false
		s.corrupt--
	}
	s.rankLocked(o)
	s.endReadAheadLocked(o, &s.counters.ReadAheadWasted)
	up := o.parent
	if up != nil {
		// What still holds o, a late copy or a lower tier, does not need the
		// parent, which may be the next to leave.
		up.children--
		up.kids ^= o.id
		s.revalueLocked(up)
		s.rankLocked(up)
		if o.pins > 0 {
			s.pinLocked(up, -1)
		}
		o.parent = nil
	}
	s.ghosts.Note(ghost.Entry{
		Key: o.key, Profile: o.profile.id, Tenant: o.tenant.ID, Reason: why, Tokens: uint32(o.tokens()),
	})
	s.settleLocked(o)
	if up != nil {
		s.dropPlaceholderLocked(up)
	}
}

func (s *Store) unlinkSiblingLocked(o *object) {
	head := s.checkpoints.Find(&o.key)
	if head == o {
		if o.sibling == nil {
			s.checkpoints.Remove(&o.key)
		} else {
			s.checkpoints.Put(&o.key, o.sibling)
		}
		o.sibling = nil
		return
	}
	for ; head != nil; head = head.sibling {
		if head.sibling == o {
			head.sibling, o.sibling = o.sibling, nil
			return
		}
	}
	panic(fmt.Sprintf("tiering: %s is not in the catalogue", o.name()))
}

func (o *object) countPublished(d int) {
	if o.kind == 0 {
		o.profile.segments += d
	} else {
		o.profile.checkpoints += d
	}
}

// publishLocked ends the filling of a complete object.
func (s *Store) publishLocked(o *object, now time.Time, why decision.Reason) {
	o.fill, o.used = nil, now
	s.deadlines.Remove(&o.until)
	bytes := o.pageBytes
	if o.phase == stripped {
		bytes = o.statePages
		s.restoredLocked(o)
	} else {
		o.on(evPublish)
		o.countPublished(1)
	}
	s.decideLocked(o, decision.Admit, why, bytes)
	s.settleLocked(o)
	s.rankLocked(o)
	s.adoptLocked(o)
}

func (s *Store) freeLocked(o *object) {
	o.on(evFree)
	if o.inHBM() {
		s.freeHBMLocked(o)
	} else {
		for i := range o.shares {
			s.freePagesLocked(o.shares[i].extents)
		}
	}
	if !o.inHBM() {
		o.profile.held--
	}
	o.pool.objects--
	o.pool.bytes[classIdle] -= o.pageBytes
	o.pool.used -= o.pageBytes
	o.tenant.used[o.pool.number] -= o.bytes
	s.objects.Remove(o.id)
}
