package objects

// A checkpoint that one other extends may lose its states and convolution tails: the
// child has its own, and needs only the rows (Marconi, section 4.3: eviction of a node
// with one child frees its states, the child absorbs its rows). A stripped checkpoint is
// not a hit. It becomes whole again when a client saves its hash or when it is promoted,
// and is removed with its last child.
//
//	whole ──► stripped ──► whole: saved again, or promoted
//	                 └────► free: its last child has left
//
// Only whole pages are freed. States on a page shared with rows stay, and are overwritten
// when the states are written again. The extents of a stripped share have holes, so that
// offsets into it do not change. Slices of extents and of digests are never modified,
// only replaced: replies and operations that use them may be in flight.
//
// Invariant: what is leased, or whose states are being read, is whole, and so is what
// rows are rebuilt from.

import (
	"fmt"

	"github.com/spliced-kv/spliced/tiering/decision"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// MayStrip reports whether a node with one child can lose its states. With a lower tier,
// only a node that the tier has can.
func (s *Set) MayStrip(o *Object) bool {
	if o.Children == 1 && s.Table.Get(o.Kids).NeedsStates() {
		return false
	}
	return o.StatePages > 0 && o.Write == nil && !o.Corrupt && (s.cfg.Lower == nil || o.Stored != 0)
}

// Strip frees an idle node's states in memory.
func (s *Set) Strip(o *Object, why decision.Reason) { s.StripFor(o, why, nil) }

// StripFor is Strip for an object that needs the room, as in NoteLeft.
func (s *Set) StripFor(o *Object, why decision.Reason, rival *Object) {
	s.NoteLeft(o, decision.Strip, why, o.StatePages, rival)
	s.counters.Stripped++
	s.counters.StrippedBytes += uint64(o.StateBytes)
	s.EndReadAhead(o, &s.counters.ReadAheadWasted)
	s.leaveCopies(o, tier.ReasonEvicted)
	o.on(evStrip)
	s.Rank(o)
	s.FreeStates(o)
	s.revalueChild(o)
}

// AllocateStates fills the holes of a stripped node with pages of any content.
func (s *Set) AllocateStates(o *Object) {
	ranks := int64(len(o.Shares))
	for i := range o.Shares {
		o.Shares[i].Extents = Mend(o.Shares[i].Extents, s.allocatePages(o, o.StateBytes/ranks))
	}
	s.Resize(o, o.StatePages, o.StateBytes)
}

// FreeStates frees them again.
func (s *Set) FreeStates(o *Object) {
	states := o.Layout().StatePages
	for i := range o.Shares {
		kept, given := Punch(o.Shares[i].Extents, states)
		s.freePages(given)
		o.Shares[i].Extents = kept
	}
	s.Resize(o, -o.StatePages, -o.StateBytes)
}

// restored marks a stripped node as whole; its states are back. Its descendants can be
// written to the lower tier again. They are offered at once while each node has one
// child, otherwise after their next use.
func (s *Set) restored(o *Object) {
	o.on(evRestore)
	s.revalueChild(o)
	for o.Children == 1 {
		o = s.Table.Get(o.Kids)
		o.Refused = false
		s.Rank(o)
	}
}

// revalueChild updates the value of a node's only child, whose savings and freed bytes
// depend on the node. With several children it does nothing: their values are corrected
// by their next change.
func (s *Set) revalueChild(o *Object) {
	if o.Children == 1 {
		s.revalue(s.Table.Get(o.Kids))
	}
}

// dropPlaceholder removes a stripped node without children.
func (s *Set) dropPlaceholder(o *Object) {
	if o.Phase != Stripped || o.Children > 0 || o.Class != ClassIdle {
		return
	}
	s.Decide(o, decision.Drop, decision.Childless, o.PageBytes)
	s.counters.StrippedDropped++
	s.counters.StrippedDroppedBytes += uint64(o.Bytes)
	s.Unlink(o, tier.ReasonEvicted)
}

// Resize changes an object's cost to its pool and tenant by bytes of pages and of
// layouts.
func (s *Set) Resize(o *Object, pages, bytes int64) {
	if o.Cleaning == Candidate || o.Ahead {
		panic(fmt.Sprintf("objects: %s changes its size while it is dirty or read ahead", o.Name()))
	}
	o.PageBytes += pages
	o.Bytes += bytes
	o.Pool.Used += pages
	o.Pool.Bytes[o.Class] += pages
	o.Tenant.Used[o.Pool.Number] += pages
	if o.Pins > 0 {
		o.Pool.Pinned += pages
		o.Tenant.Pinned += pages
	}
}
