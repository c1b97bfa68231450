package tiering

import (
	"context"
	"fmt"
	"slices"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/decision"
	"github.com/spliced-kv/spliced/tiering/internal/catalog"
	"github.com/spliced-kv/spliced/tiering/internal/move"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/transfer"
)

// discardRows is the maximum number of objects removed in one critical section.
const discardRows = objects.EvictRows

// removals is the part of a store that removes objects from memory and the lower tier. It has
// no state.
type removals struct {
	cat        *catalog.Catalog
	pins       *pins
	writes     *move.Writes
	promotions *move.Promotions
}

// Evict removes a segment of any tenant from memory and the lower tier, which may take
// I/O. Afterwards no lookup finds the segment. Its memory is free once the last lease on
// it ends. The error is ErrGone if no tier has the segment, ErrBusy while a client fills
// it or an operator pins it.
func (rmv *removals) Evict(key profile.SegmentKey) (err error) {
	rmv.Discard(context.Background(), []tier.Want{{Name: tier.Name{Key: key}}}, func(_ int, why error) { err = why })
	return err
}

// Discard removes objects of any tenant from all tiers of this node, in the given order. For
// each object it calls the function told, without a lock: with nil if it has removed the
// object, with ErrGone if no tier has the object, or with ErrBusy while it is being filled,
// read into memory, pinned, or extended by another object. Discard holds the lock for a few
// objects at a time, so that clients are served meanwhile. It stops when ctx ends.
func (rmv *removals) Discard(ctx context.Context, list []tier.Want, told func(i int, err error)) {
	turns := rmv.cat.Mu.Turns()
	var began [discardRows]discarding
	for first := 0; first < len(list) && ctx.Err() == nil; {
		some := list[first:min(first+discardRows, len(list))]
		turns.Lock()
		n := 0
		// An object in the lower tier counts as extended until its child is removed there,
		// which happens outside the lock. An object whose child this turn removes
		// therefore waits for the next turn.
		for ; n < len(some) && !extended(&some[n], began[:n]); n++ {
			began[n] = rmv.beginDiscardLocked(&some[n])
		}
		turns.Unlock()
		for i := range n {
			told(first+i, rmv.endDiscard(some[i].Name, began[i]))
		}
		first += n
	}
}

// extended reports whether one of the removals that have begun removes a child of w from
// the lower tier.
func extended(w *tier.Want, began []discarding) bool {
	return slices.ContainsFunc(began, func(d discarding) bool { return d.below && d.parent == w.Name })
}

// discarding is the state of a removal between its two critical sections.
type discarding struct {
	held   bool
	below  bool      // the lower tier has to remove it
	parent tier.Name // in the lower tier
	err    error
}

func (rmv *removals) beginDiscardLocked(w *tier.Want) (d discarding) {
	if w.Kind == 0 {
		d.held, d.err = rmv.removeLocked(w.Name)
		d.below = d.err == nil && rmv.cat.Config.Lower != nil
		return d
	}
	o, e, err := rmv.leafLocked(w)
	if err != nil {
		return discarding{err: err}
	}
	switch {
	case e != nil:
		d.parent = e.Parent
	case o != nil && o.Parent != nil: // the object may be on its way into the lower tier
		d.parent = o.Parent.Label()
	}
	if o != nil {
		rmv.cat.Objects.Records.Decide(o, decision.Drop, decision.Removed, o.PageBytes)
		rmv.cat.Objects.Unlink(o, tier.ReasonRemoved)
		d.held = true
	}
	if rmv.cat.Config.Lower != nil && (o != nil || e != nil) {
		_, coming := rmv.writes.BeginDeletionLocked(w.Name)
		d.held, d.below = d.held || coming, true
	}
	if d.held || e != nil {
		rmv.cat.Counters.Removed++
	}
	return d
}

// leafLocked finds a checkpoint in memory and in the lower tier. It returns ErrBusy if
// another checkpoint extends it in either place, or if it is in use otherwise. If the
// checkpoint is removed while a child is being written to the lower tier, the lower tier
// loses the child too.
func (rmv *removals) leafLocked(w *tier.Want) (o *objects.Object, e *tier.Entry, err error) {
	busy := func(why string) error { return fmt.Errorf("%v is %s: %w", w.Name, why, tier.ErrBusy) }
	t := rmv.cat.Objects.Tenants[w.Tenant]
	if p := rmv.cat.Registered(w.Fingerprint); p != nil && t != nil {
		o = rmv.cat.Objects.Names.Checkpoint(&w.Key, w.Kind, p, t)
	}
	if rmv.cat.Config.Lower != nil && rmv.cat.Objects.Below.Deleting[w.Name] == 0 {
		if e = rmv.cat.Objects.Below.Entry(w.Name); e != nil && (e.Tenant != w.Tenant || e.Fingerprint != w.Fingerprint) {
			e = nil // the entry has the name but another tenant or profile
		}
	}
	switch {
	case rmv.promotions.PromotionLocked(w.Name) != nil:
		return nil, nil, busy("being read into memory")
	case o != nil && o.Fill != nil:
		return nil, nil, busy("being filled")
	case rmv.pins.isPinnedLocked(o):
		return nil, nil, busy("pinned")
	case o != nil && o.Children > 0, e != nil && e.Children > 0:
		return nil, nil, busy("extended by others")
	}
	for _, other := range rmv.writes.ByName[w.Name] {
		if other.Tenant != t || other.Profile.Fingerprint() != w.Fingerprint {
			return nil, nil, busy("of a name of which another one is being written")
		}
	}
	return o, e, nil
}

// endDiscard removes an object from the lower tier.
func (rmv *removals) endDiscard(n tier.Name, d discarding) error {
	if d.err != nil {
		return d.err
	}
	if d.below {
		d.held = rmv.cat.Config.Lower.Remove(&n) || d.held
		rmv.writes.EndDeletion(n)
	}
	if !d.held {
		return fmt.Errorf("%v: %w", n, tier.ErrGone)
	}
	return nil
}

// removeLocked removes a segment from memory and starts to remove it from the lower tier.
// From then on no lookup finds it in the lower tier. It cannot be written to the lower tier
// again until EndDeletion is called.
func (rmv *removals) removeLocked(n tier.Name) (held bool, err error) {
	o := rmv.cat.Objects.Names.Segments.Find(&n.Key)
	promotion := rmv.promotions.PromotionLocked(n)
	if rmv.pins.isPinnedLocked(o) {
		return false, fmt.Errorf("segment %x is pinned: %w", n.Key[:8], tier.ErrBusy)
	}
	rmv.cat.Objects.HBM.Remove(n, *rmv.cat.Profiles.Load())
	switch {
	case promotion != nil:
		rmv.promotions.Engine.Cancel(promotion.Flight, transfer.ErrStopped)
	case o == nil:
	case !o.Published():
		return false, fmt.Errorf("segment %x is being filled: %w", n.Key[:8], tier.ErrBusy)
	default:
		rmv.cat.Objects.Records.Decide(o, decision.Drop, decision.Removed, o.PageBytes)
		rmv.cat.Objects.Unlink(o, tier.ReasonRemoved)
		held = true
	}
	below, coming := rmv.writes.BeginDeletionLocked(n)
	held = held || coming
	switch {
	case o != nil && o.Profile.Trial:
	case held || below:
		rmv.cat.Counters.Removed++
	}
	return held, nil
}
