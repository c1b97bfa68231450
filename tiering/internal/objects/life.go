package objects

import (
	"fmt"
)

// phase is a stage in the life of an object.
//
//	described ──► filling ──► whole ◄──► stripped
//	   │            │          │ ▲          │
//	   │            └────────► │ └ found    │
//	   │        detached ◄─────┘   │        │
//	   │          │  ▲             │        │
//	   │          │  └─────────────│────────┘
//	   ▼          ▼                │
//	unlisted ──► freed          unlisted (a copy in HBM)
//
// Lookups find filling objects as pending, and whole ones as hits. A checkpoint that one
// other extends may be stripped of its states (strip.go): its rows serve the other
// checkpoint, and no lookup finds the stripped one as a hit until it is restored. A
// detached object keeps its memory for its remaining readers. No lookup finds unlisted
// objects. These are buffers, placeholders into which the states of a stripped checkpoint
// are promoted, and copies in HBM that are not verified yet.
type phase uint8

const (
	described phase = iota // has no memory
	Unlisted
	filling
	Whole
	Stripped
	detached
	freed
	phases
)

func (p phase) String() string {
	return [...]string{"described", "unlisted", "filling", "whole", "stripped", "detached", "freed"}[p]
}

// event is a cause of a phase change.
type event uint8

const (
	evBook    event = iota // its memory is accounted for
	evLink                 // lookups find it as pending
	evPublish              // all its parts are complete
	evFind                 // a copy in HBM has been verified
	evStrip                // its states leave memory
	evRestore              // its states are back
	evDetach               // no lookup finds it any more
	evFree                 // its memory is freed
	events
)

func (e event) String() string {
	return [...]string{"booked", "linked", "published", "found", "stripped", "restored", "detached", "freed"}[e]
}

// life maps a phase and an event to the next phase. The zero value (the phase described) marks
// an event that is impossible in that phase.
var life = [phases][events]phase{
	described: {evBook: Unlisted, evLink: filling},
	Unlisted:  {evFind: Whole, evFree: freed},
	filling:   {evPublish: Whole, evDetach: detached},
	Whole:     {evStrip: Stripped, evDetach: detached},
	Stripped:  {evRestore: Whole, evDetach: detached},
	detached:  {evFree: freed},
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

// check panics if an object contradicts its phase. It runs only under the build tag invariants.
func (s *Set) check(o *Object) {
	found := !o.InHBM() && s.Named(o.Label(), o.Profile, o.Tenant) == o || o.InHBM() && o.Resident != nil
	for _, c := range []struct {
		holds bool
		what  string
	}{
		{o.Phase != described && o.Phase != freed, "has no memory"},
		{o.Linked() == found, "is not found as its phase says"},
		{o.Phase != filling || o.Fill != nil, "is filled by nobody"},
		{o.Phase != Whole || o.Fill == nil, "is filled although it is whole"},
		{o.Phase == Whole || o.Ranked == Absent, "may be chosen to leave although it is not whole"},
		{o.InTenant == o.Ranked || o.InTenant == Absent && (o.Tenant.evictionOf(o) == nil || o.Tenant.behind != nil), "stands in its tenant's policy as it does not in its pool's"},
		{o.Linked() || o.Children == 0 && o.Parent == nil, "hangs in a chain although no lookup finds it"},
		{o.Class == o.Classify(), "is accounted for as something else"},
		{(o.Pins > 0) == (o.Class != ClassIdle) || o.Children > 0, "is pinned for no reason, or not although it is used"},
		{o.Leases >= 0 && o.Expired >= 0 && o.Ops >= 0 && o.Pins >= 0, "is let go of by more than hold it"},
	} {
		if !c.holds {
			panic(fmt.Sprintf("objects: %s, which is %v, %s", o.Name(), o.Phase, c.what))
		}
	}
}
