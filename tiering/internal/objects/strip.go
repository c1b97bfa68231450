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
	"github.com/spliced-kv/spliced/tiering/decision"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Strip frees the states of an unused checkpoint in memory. The parameter rival is as in
// NoteLeft.
func (s *Set) Strip(o *Object, why decision.Reason, rival *Object) {
	s.Records.NoteLeft(o, decision.Strip, why, o.StatePages, rival)
	s.Records.counters.Stripped++
	s.Records.counters.StrippedBytes += uint64(o.StateBytes)
	s.EndReadAhead(o, &s.Records.counters.ReadAheadWasted)
	s.HBM.leave(o, tier.ReasonEvicted)
	o.on(evStrip)
	s.Policies.Rank(o)
	s.FreeStates(o)
	s.Policies.revalueChild(o)
}

// AllocateStates allocates pages for the holes of a stripped checkpoint. The contents of these
// pages are undefined.
func (s *Set) AllocateStates(o *Object) {
	ranks := int64(len(o.Shares))
	for i := range o.Shares {
		o.Shares[i].Extents = Mend(o.Shares[i].Extents, s.Memory.allocate(o, o.StateBytes/ranks))
	}
	s.Accounts.Resize(o, o.StatePages, o.StateBytes)
}

// FreeStates frees the states' pages of a stripped checkpoint.
func (s *Set) FreeStates(o *Object) {
	states := o.Layout().StatePages
	for i := range o.Shares {
		kept, given := Punch(o.Shares[i].Extents, states)
		s.Memory.free(given)
		o.Shares[i].Extents = kept
	}
	s.Accounts.Resize(o, -o.StatePages, -o.StateBytes)
}

// restored marks a stripped checkpoint as whole, after its states were written. Its descendants
// can be written to the lower tier again. Along the chain of only children they are offered to
// it at once, and after a node with several children only after their next use.
func (s *Set) restored(o *Object) {
	o.on(evRestore)
	s.Policies.revalueChild(o)
	for o.Children == 1 {
		o = s.Table.Get(o.Kids)
		o.Refused = false
		s.Policies.Rank(o)
	}
}

// dropPlaceholder removes a stripped checkpoint that has no children and no users.
func (s *Set) dropPlaceholder(o *Object) {
	if o.Phase != Stripped || o.Children > 0 || o.Class != ClassIdle {
		return
	}
	s.Records.Decide(o, decision.Drop, decision.Childless, o.PageBytes)
	s.Records.counters.StrippedDropped++
	s.Records.counters.StrippedDroppedBytes += uint64(o.Bytes)
	s.Unlink(o, tier.ReasonEvicted)
}
