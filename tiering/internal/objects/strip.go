package objects

// A checkpoint that one other extends may lose its states and convolution tails:
// the child has its own, and needs no more than the rows (Marconi, section 4.3:
// eviction of a node with one child gives back its states, the child absorbs its
// rows). What is left is no hit. It becomes whole again when somebody saves its
// hash or when it is promoted, and leaves with the last that extends it.
//
//	whole ──► stripped ──► whole: saved again, or promoted
//	                 └────► free: its last child has left
//
// Only whole pages go; what lies on one page with rows stays, and is written again with the states. The extents of a
// stripped share have holes in their place, so that offsets into it stay as they
// are. Slices of extents and of digests are never changed, only replaced: answers
// and operations that name them may be on their way.
//
// Invariant: what is leased, or whose states somebody reads, is whole, and so is what rows
// are rebuilt from.

import (
	"fmt"

	"github.com/spliced-kv/spliced/tiering/decision"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// MayStrip tells whether a node with one child can lose its states. With a lower
// tier only what that holds may.
func (s *Set) MayStrip(o *Object) bool {
	if o.Children == 1 && s.Table.Get(o.Kids).NeedsStates() {
		return false
	}
	return o.StatePages > 0 && o.Write == nil && !o.Corrupt && (s.cfg.Lower == nil || o.Stored != 0)
}

// Strip takes an idle node's states out of memory.
func (s *Set) Strip(o *Object, why decision.Reason) { s.StripFor(o, why, nil) }

// StripFor is Strip for something that needs the room, as of NoteLeft.
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

// FreeStates gives them back.
func (s *Set) FreeStates(o *Object) {
	states := o.Layout().StatePages
	for i := range o.Shares {
		kept, given := Punch(o.Shares[i].Extents, states)
		s.freePages(given)
		o.Shares[i].Extents = kept
	}
	s.Resize(o, -o.StatePages, -o.StateBytes)
}

// restored ends that a node is stripped; its states are there. What extends it
// can be written to the lower tier again, and is asked for at once while each node
// has one child, else after its next use.
func (s *Set) restored(o *Object) {
	o.on(evRestore)
	s.revalueChild(o)
	for o.Children == 1 {
		o = s.Table.Get(o.Kids)
		o.Refused = false
		s.Rank(o)
	}
}

// revalueChild follows what a hit on the only child of a node saves, and
// what its leaving gives back. With several children nothing is done: their
// values are right again after their next change.
func (s *Set) revalueChild(o *Object) {
	if o.Children == 1 {
		s.revalue(s.Table.Get(o.Kids))
	}
}

// dropPlaceholder takes out a stripped node that nothing extends any more.
func (s *Set) dropPlaceholder(o *Object) {
	if o.Phase != Stripped || o.Children > 0 || o.Class != ClassIdle {
		return
	}
	s.Decide(o, decision.Drop, decision.Childless, o.PageBytes)
	s.counters.StrippedDropped++
	s.counters.StrippedDroppedBytes += uint64(o.Bytes)
	s.Unlink(o, tier.ReasonEvicted)
}

// Resize changes what an object costs its pool and its tenant, by so many bytes of pages
// and of layouts.
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
