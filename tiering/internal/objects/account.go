package objects

import (
	"fmt"
	"time"

	"github.com/spliced-kv/spliced/tiering/decision"
	"github.com/spliced-kv/spliced/tiering/internal/ghost"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Use keeps an object's memory in use until Unuse. It does nothing for nil.
func (s *Set) Use(o *Object) {
	if o != nil {
		o.Ops++
		s.Account(o)
	}
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

// Unuse ends a Use.
func (s *Set) Unuse(o *Object) {
	if o != nil {
		o.Ops--
		s.Account(o)
	}
}

// Account updates the accounts after a count of o has changed, and frees the memory of o
// once o is neither linked nor in use.
func (s *Set) Account(o *Object) {
	next := o.Classify()
	if next != o.Class {
		o.Pool.Bytes[o.Class] -= o.PageBytes
		o.Pool.Bytes[next] += o.PageBytes
		if o.Class == ClassIdle {
			s.pin(o, 1)
		} else if next == ClassIdle {
			s.pin(o, -1)
		}
		if next == ClassDemoting {
			o.Tenant.Leaving += o.Charge()
		} else if o.Class == ClassDemoting {
			o.Tenant.Leaving -= o.Charge()
		}
		o.Class = next
	}
	if checked {
		s.check(o)
	}
	if next == ClassIdle && !o.Linked() {
		s.free(o)
	} else if next == ClassIdle {
		s.dropPlaceholder(o)
	}
}

// pin adds d to the pins of o. If o thereby becomes pinned or unpinned, it does the same
// to the parent, and so on: a node cannot be evicted before its descendants.
func (s *Set) pin(o *Object, d int) {
	for ; o != nil; o = o.Parent {
		was := o.Pins
		o.Pins += d
		if (was == 0) == (o.Pins == 0) {
			return
		}
		d = 1
		if o.Pins == 0 {
			d = -1
		}
		if o.InHBM() {
			o.Profile.Held += d
		}
		o.Pool.Pinned += int64(d) * o.PageBytes
		o.Tenant.Pinned += int64(d) * o.Charge()
		if o.InHBM() {
			o.Tenant.PinnedAbove += int64(d) * o.Charge()
		}
		if o.Published() {
			o.Refused = false
			s.Rank(o)
		}
	}
}

// Link makes a new object, whose memory is allocated, visible to lookups.
func (s *Set) Link(o *Object) {
	o.on(evLink)
	if o.Kind == 0 {
		if s.Segments.Find(&o.Key) != nil {
			panic(fmt.Sprintf("objects: %s is held twice", o.Name()))
		}
		s.Segments.Put(&o.Key, o)
	} else {
		o.Sibling = s.Checkpoints.Find(&o.Key)
		s.Checkpoints.Put(&o.Key, o)
	}
	s.Book(o)
	if up := o.Parent; up != nil {
		if o.NeedsStates() && up.Phase == Stripped {
			panic(fmt.Sprintf("objects: %s behind a node without states", o.Name()))
		}
		up.Children++
		up.Kids ^= o.ID
		s.revalue(up)
		s.Rank(up)
	}
	s.Account(o)
	if s.Short(o.Pool) {
		s.cfg.Short()
	}
}

// Book starts to account for the memory of an object.
func (s *Set) Book(o *Object) {
	if o.Phase == described {
		o.on(evBook)
	}
	o.ID = s.Table.Add(o)
	if !o.InHBM() {
		o.Profile.Held++
	}
	o.Pool.Objects++
	o.Pool.Bytes[ClassIdle] += o.PageBytes
	o.Pool.Used += o.PageBytes
	o.Tenant.Used[o.Pool.Number] += o.Charge()
}

// Unlink hides an object from lookups and policies. Later misses of the object report the
// reason why. The object's memory is freed now, or when its last user ends.
func (s *Set) Unlink(o *Object, why tier.Reason) {
	if o.Children > 0 {
		panic(fmt.Sprintf("objects: %s leaves before its %d children", o.Name(), o.Children))
	}
	if o.Kind == 0 {
		s.Segments.Remove(&o.Key)
	} else {
		s.unlinkSibling(o)
	}
	if o.Published() {
		s.countPublished(o, -1)
	}
	o.on(evDetach)
	s.leaveCopies(o, why)
	if o.Corrupt {
		o.Corrupt = false
		s.corrupt--
	}
	s.Rank(o)
	s.EndReadAhead(o, &s.counters.ReadAheadWasted)
	up := o.Parent
	if up != nil {
		// An operation or a tier that still reads o does not need the parent, which may be
		// evicted next.
		up.Children--
		up.Kids ^= o.ID
		s.revalue(up)
		s.Rank(up)
		if o.Pins > 0 {
			s.pin(up, -1)
		}
		o.Parent = nil
	}
	s.Ghosts.Note(ghost.Entry{
		Key: o.Key, Profile: o.Profile.ID, Tenant: o.Tenant.ID, Reason: why, Tokens: uint32(o.Tokens()),
	})
	s.Account(o)
	if up != nil {
		s.dropPlaceholder(up)
	}
}

func (s *Set) unlinkSibling(o *Object) {
	head := s.Checkpoints.Find(&o.Key)
	if head == o {
		if o.Sibling == nil {
			s.Checkpoints.Remove(&o.Key)
		} else {
			s.Checkpoints.Put(&o.Key, o.Sibling)
		}
		o.Sibling = nil
		return
	}
	for ; head != nil; head = head.Sibling {
		if head.Sibling == o {
			head.Sibling, o.Sibling = o.Sibling, nil
			return
		}
	}
	panic(fmt.Sprintf("objects: %s is not in the catalogue", o.Name()))
}

// Publish ends the fill of a complete object and makes it a hit.
func (s *Set) Publish(o *Object, now time.Time, why decision.Reason) {
	o.Fill, o.Used = nil, now
	s.Deadlines.Remove(&o.Until)
	bytes := o.PageBytes
	if o.Phase == Stripped {
		bytes = o.StatePages
		s.restored(o)
	} else {
		o.on(evPublish)
		s.countPublished(o, 1)
	}
	s.Decide(o, decision.Admit, why, bytes)
	s.Account(o)
	s.Rank(o)
	s.adopt(o)
}

// countPublished adds d to the number of published objects of a profile and updates the
// segment index.
func (s *Set) countPublished(o *Object, d int) {
	switch {
	case o.Kind != 0:
		o.Profile.Checkpoints += d
		return
	case d > 0:
		s.cfg.Find.Add(o.scope(), o.Hash, o.Spec.Tokens)
	default:
		s.cfg.Find.Remove(o.scope(), o.Hash, o.Spec.Tokens)
	}
	o.Profile.Segments += d
}

func (s *Set) free(o *Object) {
	o.on(evFree)
	if o.InHBM() {
		s.freeCopy(o)
	} else {
		for i := range o.Shares {
			s.freePages(o.Shares[i].Extents)
		}
	}
	if !o.InHBM() {
		o.Profile.Held--
	}
	o.Pool.Objects--
	o.Pool.Bytes[ClassIdle] -= o.PageBytes
	o.Pool.Used -= o.PageBytes
	o.Tenant.Used[o.Pool.Number] -= o.Charge()
	s.Table.Remove(o.ID)
}

// MarkCorrupt removes an object from memory after the tier found that its bytes are not
// those that were published. An object that others extend stays until the others are
// removed, but no lookup finds it or the others.
func (s *Set) MarkCorrupt(o *Object) {
	s.counters.CorruptInMemory++
	o.Refused = true
	switch {
	case !o.Linked():
	case o.Children == 0:
		s.Decide(o, decision.Drop, decision.Corrupt, o.PageBytes)
		s.Unlink(o, tier.ReasonAborted)
	case !o.Corrupt:
		o.Corrupt = true
		s.corrupt++
		s.tell(o)
	}
}

// EndReadAhead ends an object's status as read ahead and not used yet, because the object
// is being used, is removed unused, or was not used in time. It adds 1 to the given
// counter.
func (s *Set) EndReadAhead(o *Object, counter *uint64) {
	if o.Ahead {
		o.Ahead = false
		s.Deadlines.Remove(&o.Until)
		o.Pool.AheadBytes -= o.PageBytes
		*counter++
	}
}
