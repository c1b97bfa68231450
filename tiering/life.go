package tiering

import (
	"fmt"
	"time"

	"github.com/spliced-kv/spliced/policy"
)

// phase is how far an object has come in its life.
//
//	described ──► filling ──► whole ◄──► stripped
//	    │            │          │ ▲          │
//	    │            └────────► │ └ found    │
//	    │        detached ◄─────┘   │        │
//	    │          │  ▲             │        │
//	    │          │  └─────────────│────────┘
//	    ▼          ▼                │
//	 unlisted ──► freed          unlisted (a copy in HBM)
//
// Lookups find what is filling, as pending, and what is whole, as a hit. A checkpoint
// that one other extends may be stripped of its states (strip.go): its rows serve
// that one, and no lookup finds it as a hit until it is restored. What is detached
// keeps its memory for those who still read it. Unlisted is memory that no lookup
// finds: rows of buffers, what a promotion of a stripped checkpoint reads into, and
// a copy in HBM until it is verified.
type phase uint8

const (
	described phase = iota // without memory
	unlisted
	filling
	whole
	stripped
	detached
	freed
	phases
)

func (p phase) String() string {
	return [...]string{"described", "unlisted", "filling", "whole", "stripped", "detached", "freed"}[p]
}

// event is what changes an object's phase.
type event uint8

const (
	evBook    event = iota // its memory is accounted for
	evLink                 // lookups find it, as pending
	evPublish              // all its parts are there
	evFind                 // a copy in HBM is verified
	evStrip                // its states leave memory
	evRestore              // they are there again
	evDetach               // no lookup finds it any more
	evFree                 // its memory is given back
	events
)

func (e event) String() string {
	return [...]string{"booked", "linked", "published", "found", "stripped", "restored", "detached", "freed"}[e]
}

// life says what an event makes of a phase; described stands for what cannot happen.
var life = [phases][events]phase{
	described: {evBook: unlisted, evLink: filling},
	unlisted:  {evFind: whole, evFree: freed},
	filling:   {evPublish: whole, evDetach: detached},
	whole:     {evStrip: stripped, evDetach: detached},
	stripped:  {evRestore: whole, evDetach: detached},
	detached:  {evFree: freed},
}

// on is the only place where the phase of an object changes.
func (o *object) on(e event) {
	next := life[o.phase][e]
	if next == described {
		panic(fmt.Sprintf("tiering: %s is %v and cannot be %v", o.name(), o.phase, e))
	}
	o.phase = next
}

// linked tells whether lookups find an object, published whether they find it once it
// has been complete.
func (o *object) linked() bool    { return o.phase == filling || o.published() }
func (o *object) published() bool { return o.phase == whole || o.phase == stripped }

// checkLocked holds an object against its phase, with the build tag invariants.
func (s *Store) checkLocked(o *object) {
	found := !o.inHBM() && s.namedLocked(o.label(), o.profile, o.tenant) == o || o.inHBM() && o.resident != nil
	for _, c := range []struct {
		holds bool
		what  string
	}{
		{o.phase != described && o.phase != freed, "has no memory"},
		{o.linked() == found, "is not found as its phase says"},
		{o.phase != filling || o.fill != nil, "is filled by nobody"},
		{o.phase != whole || o.fill == nil, "is filled although it is whole"},
		{o.phase == whole || o.ranked == absent, "may be chosen to leave although it is not whole"},
		{o.linked() || o.children == 0 && o.parent == nil, "hangs in a chain although no lookup finds it"},
		{o.class == o.classify(), "is accounted for as something else"},
		{(o.pins > 0) == (o.class != classIdle) || o.children > 0, "is pinned for no reason, or not although it is used"},
		{o.leases >= 0 && o.expired >= 0 && o.ops >= 0 && o.pins >= 0, "is let go of by more than hold it"},
	} {
		if !c.holds {
			panic(fmt.Sprintf("tiering: %s, which is %v, %s", o.name(), o.phase, c.what))
		}
	}
}

// standing is how a policy has an object.
type standing uint8

const (
	absent    standing = iota
	suspended          // held, but it may not leave now
	candidate          // it may leave
)

// stand is the standing of what a policy holds or not, and that may leave or not.
func stand(held, may bool) standing {
	switch {
	case !held:
		return absent
	case may:
		return candidate
	}
	return suspended
}

// change tells a policy that an object of it goes from one standing to another. it is
// what the policy is told of an object that it did not hold.
func (was standing) change(next standing, p policy.Eviction, id policy.ID, it policy.Item, used time.Time) {
	if was == absent {
		p.Insert(id, it, used)
		was = candidate
	}
	switch {
	case next == absent:
		p.Remove(id)
	case next == suspended && was == candidate:
		p.Suspend(id)
	case next == candidate && was == suspended:
		p.Resume(id)
	}
}
