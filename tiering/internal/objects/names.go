package objects

import (
	"fmt"

	"github.com/spliced-kv/spliced/tiering/internal/ghost"
	"github.com/spliced-kv/spliced/tiering/internal/index"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Names finds the objects in memory by their names, and knows why other names are misses.
// Copies in HBM are not in it.
type Names struct {
	cfg         *Options
	Segments    *index.Map[Object]
	Checkpoints *index.Map[Object] // the first of all checkpoints with a hash; Sibling links them
	Ghosts      *ghost.List
	corrupt     int // number of corrupt objects in memory
}

// Segment finds a segment of a profile and tenant, published or being filled; nil = none.
func (names *Names) Segment(key *[32]byte, p *Profile, t *Tenant) *Object {
	o := names.Segments.Find(key)
	if o == nil || o.Profile != p || o.Tenant != t {
		return nil
	}
	return o
}

// Checkpoint finds the checkpoint of a hash and kind, published or being filled; nil = none.
func (names *Names) Checkpoint(hash *[32]byte, kind tier.CheckpointKind, p *Profile, t *Tenant) *Object {
	for o := names.Checkpoints.Find(hash); o != nil; o = o.Sibling {
		if o.Profile == p && o.Tenant == t && o.Kind == kind {
			return o
		}
	}
	return nil
}

// Find finds an object in memory, published or being filled; nil = none.
func (names *Names) Find(n tier.Name, p *Profile, t *Tenant) *Object {
	if n.Kind == 0 {
		return names.Segment(&n.Key, p, t)
	}
	return names.Checkpoint(&n.Key, n.Kind, p, t)
}

// Same returns the object in memory that o would duplicate; nil = none.
func (names *Names) Same(o *Object) *Object {
	return names.Find(o.Label(), o.Profile, o.Tenant)
}

// Filled reports whether a client is filling an object of this name.
func (names *Names) Filled(n tier.Name, p *Profile, t *Tenant) bool {
	o := names.Find(n, p, t)
	return o != nil && o.Fill != nil && !o.Fill.Promoted
}

// Best finds the preferred published checkpoint of the accepted kinds. If there is none,
// it returns the most informative reason, or ReasonNone if no checkpoint has the hash.
func (names *Names) Best(hash *[32]byte, accept tier.CheckpointKind, p *Profile, t *Tenant) (*Object, tier.Reason) {
	return names.BestNode(hash, accept, p, t, false)
}

// BestNode is Best, but if the parameter rows is true it also accepts a stripped checkpoint,
// since the caller needs only its rows.
func (names *Names) BestNode(hash *[32]byte, accept tier.CheckpointKind, p *Profile, t *Tenant, rows bool) (*Object, tier.Reason) {
	var best *Object
	why := tier.ReasonNone
	for o := names.Checkpoints.Find(hash); o != nil; o = o.Sibling {
		switch {
		case o.Profile != p || o.Tenant != t:
		case o.Fill != nil && !(rows && o.Published()):
			why = MoreTelling(why, tier.ReasonPending)
		case o.Phase == Stripped && !rows:
			why = MoreTelling(why, tier.ReasonEvicted)
		case o.Kind&accept == 0:
			why = MoreTelling(why, tier.ReasonFlagOnly)
		case !names.Sound(o):
			why = MoreTelling(why, tier.ReasonAborted)
		case best == nil || o.Kind.Before(best.Kind):
			best = o
		}
	}
	return best, why
}

// MoreTelling returns the more informative of two reasons for a miss.
func MoreTelling(a, b tier.Reason) tier.Reason {
	rank := [tier.Reasons]uint8{tier.ReasonUnknown: 1, tier.ReasonRefused: 2, tier.ReasonAborted: 3, tier.ReasonRemoved: 4, tier.ReasonEvicted: 5, tier.ReasonPending: 6, tier.ReasonFlagOnly: 7}
	if rank[b] > rank[a] {
		return b
	}
	return a
}

// Gone returns why a key that no tier has is a miss.
func (names *Names) Gone(key *[32]byte, p *Profile, t *Tenant) tier.Reason {
	why, _ := names.Ghosts.Why(key, p.ID, t.ID)
	return why
}

// Sound reports whether neither an object nor its ancestors are known to be corrupt.
func (names *Names) Sound(o *Object) bool {
	if names.corrupt == 0 {
		return true
	}
	for ; o != nil; o = o.Parent {
		if o.Corrupt {
			return false
		}
	}
	return true
}

// Promotable reports whether an object is whole in memory and not known to be corrupt, so
// that it can be copied to HBM or pinned.
func (names *Names) Promotable(o *Object) bool {
	return o.Phase == Whole && o.Fill == nil && names.Sound(o)
}

// link makes an object visible to lookups.
func (names *Names) link(o *Object) {
	if o.Kind != 0 {
		o.Sibling = names.Checkpoints.Find(&o.Key)
		names.Checkpoints.Put(&o.Key, o)
		return
	}
	if names.Segments.Find(&o.Key) != nil {
		panic(fmt.Sprintf("objects: %s is held twice", o.Name()))
	}
	names.Segments.Put(&o.Key, o)
}

// unlink hides an object from lookups.
func (names *Names) unlink(o *Object) {
	if o.Kind == 0 {
		names.Segments.Remove(&o.Key)
		return
	}
	head := names.Checkpoints.Find(&o.Key)
	if head == o {
		if o.Sibling == nil {
			names.Checkpoints.Remove(&o.Key)
		} else {
			names.Checkpoints.Put(&o.Key, o.Sibling)
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

// countPublished adds d to the number of published objects of a profile and updates the
// segment index.
func (names *Names) countPublished(o *Object, d int) {
	switch {
	case o.Kind != 0:
		o.Profile.Checkpoints += d
		return
	case d > 0:
		names.cfg.Find.Add(o.scope(), o.Hash, o.Spec.Tokens)
	default:
		names.cfg.Find.Remove(o.scope(), o.Hash, o.Spec.Tokens)
	}
	o.Profile.Segments += d
}
