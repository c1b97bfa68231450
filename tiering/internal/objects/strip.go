package objects

// A checkpoint that exactly one other extends may lose its states and convolution tails.
// The child has its own states, and needs only the rows of its parent (Marconi, section
// 4.3: eviction of a node with one child frees its states, the child absorbs its rows). A
// stripped checkpoint is not a hit. It becomes whole again when a client saves its hash or
// when it is promoted, and is removed with its last child.
//
//	whole ──► stripped ──► whole: saved again, or promoted
//	                 └────► free: its last child has left
//
// Only whole pages are freed. States that share a page with rows stay, and are overwritten
// when the states are restored. The extents of a stripped share have holes, so that
// offsets into it do not change. Slices of extents and of digests are never modified, only
// replaced: replies and operations that use them may be in flight.
//
// Invariant: an object that is leased, or whose states are being read, is whole. So is the
// parent of a checkpoint of kind Rows, since a replay begins at its states.

import (
	"fmt"

	"github.com/spliced-kv/spliced/tiering/decision"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// MayStrip reports whether a checkpoint with one child can lose its states. If the store has a
// lower tier, the checkpoint can lose them only if that tier has it.
func (s *Set) MayStrip(o *Object) bool {
	if o.Children == 1 && s.Table.Get(o.Kids).NeedsStates() {
		return false
	}
	return o.StatePages > 0 && o.Write == nil && !o.Corrupt && (s.cfg.Lower == nil || o.Stored != 0)
}

// Strip frees the states of an unused checkpoint in memory.
func (s *Set) Strip(o *Object, why decision.Reason) { s.StripFor(o, why, nil) }

// StripFor is Strip to make room for the object rival, as in NoteLeft.
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

// AllocateStates allocates pages for the holes of a stripped checkpoint. The contents of these
// pages are undefined.
func (s *Set) AllocateStates(o *Object) {
	ranks := int64(len(o.Shares))
	for i := range o.Shares {
		o.Shares[i].Extents = Mend(o.Shares[i].Extents, s.allocatePages(o, o.StateBytes/ranks))
	}
	s.Resize(o, o.StatePages, o.StateBytes)
}

// FreeStates frees the states' pages of a stripped checkpoint.
func (s *Set) FreeStates(o *Object) {
	states := o.Layout().StatePages
	for i := range o.Shares {
		kept, given := Punch(o.Shares[i].Extents, states)
		s.freePages(given)
		o.Shares[i].Extents = kept
	}
	s.Resize(o, -o.StatePages, -o.StateBytes)
}

// restored marks a stripped checkpoint as whole, after its states were written. Its descendants
// can be written to the lower tier again. Along the chain of only children they are offered to
// it at once, and after a node with several children only after their next use.
func (s *Set) restored(o *Object) {
	o.on(evRestore)
	s.revalueChild(o)
	for o.Children == 1 {
		o = s.Table.Get(o.Kids)
		o.Refused = false
		s.Rank(o)
	}
}

// revalueChild updates the value of a node's only child, whose savings and freed bytes depend on
// the node. For several children it does nothing: the next change of a child corrects its value.
func (s *Set) revalueChild(o *Object) {
	if o.Children == 1 {
		s.revalue(s.Table.Get(o.Kids))
	}
}

// dropPlaceholder removes a stripped checkpoint that has no children and no users.
func (s *Set) dropPlaceholder(o *Object) {
	if o.Phase != Stripped || o.Children > 0 || o.Class != ClassIdle {
		return
	}
	s.Decide(o, decision.Drop, decision.Childless, o.PageBytes)
	s.counters.StrippedDropped++
	s.counters.StrippedDroppedBytes += uint64(o.Bytes)
	s.Unlink(o, tier.ReasonEvicted)
}

// Resize changes the size of an object. It adds the parameter pages to the bytes that the
// object's pages take, and to the accounts of its pool and tenant. It adds the parameter bytes
// to Object.Bytes, the bytes of its layouts.
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
