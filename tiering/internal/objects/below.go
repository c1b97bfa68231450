package objects

import "github.com/spliced-kv/spliced/tiering/tier"

// Below looks up entries of the lower tier. It asks only for answers that the tier has in
// memory.
type Below struct {
	cfg      *Options
	names    *Names
	Deleting map[tier.Name]int // names that operators are removing from the lower tier
	asked    tier.Name         // argument of the last call to the lower tier
	found    tier.Entry        // result of Entry
}

// Lookup looks up an entry of a profile and tenant in the lower tier. An entry that
// an operator is removing counts as absent.
func (below *Below) Lookup(n tier.Name, p *Profile, t *Tenant) (tier.Entry, bool) {
	if below.cfg.Lower == nil || len(below.Deleting) > 0 && below.Deleting[n] > 0 {
		return tier.Entry{}, false
	}
	below.asked = n // a name on the stack would escape to the heap
	e, ok := below.cfg.Lower.Lookup(&below.asked)
	if !ok || e.Tenant != t.ID || e.Fingerprint != p.Fingerprint() {
		return tier.Entry{}, false
	}
	return e, true
}

// Of returns the lower tier's entry of an object in memory. Clients choose the hashes of
// checkpoints, so an entry of the same name that covers other tokens is a different object and
// does not count. Two spliced checkpoints of one name and the same tokens are interchangeable
// for callers, since both represent these tokens approximately. The lower tier keeps the one
// that it had first.
func (below *Below) Of(o *Object) (tier.Entry, bool) {
	e, ok := below.Lookup(o.Label(), o.Profile, o.Tenant)
	return e, ok && o.ShapeOf(&e)
}

// Touch counts a use of an entry of the lower tier.
func (below *Below) Touch(n tier.Name) {
	below.asked = n
	below.cfg.Lower.Touch(&below.asked)
}

// Segment finds a segment in the lower tier.
func (below *Below) Segment(key *[32]byte, p *Profile, t *Tenant) (tier.Entry, bool) {
	return below.Lookup(tier.Name{Key: *key}, p, t)
}

// Match finds a segment in the lower tier. It returns a pointer, valid until the next
// call, so that a match copies no entries; nil = none.
func (below *Below) Match(key *[32]byte, p *Profile, t *Tenant) *tier.Entry {
	e := below.Entry(tier.Name{Key: *key})
	if e == nil || len(below.Deleting) > 0 && below.Deleting[below.asked] > 0 || e.Tenant != t.ID || e.Fingerprint != p.Fingerprint() {
		return nil
	}
	return e
}

// Entry returns the lower tier's entry of a name, whatever its tenant and profile,
// even while an operator removes it. It is valid until the next call; nil = none.
func (below *Below) Entry(n tier.Name) *tier.Entry {
	below.asked = n
	var ok bool
	if below.found, ok = below.cfg.Lower.Lookup(&below.asked); !ok {
		return nil
	}
	return &below.found
}

// Best finds a checkpoint of an accepted kind in the lower tier, an exact one rather than
// a spliced one. All its ancestors must be in the lower tier or in memory. A checkpoint that a
// client is filling again cannot be promoted, so it does not count.
func (below *Below) Best(hash *[32]byte, accept tier.CheckpointKind, p *Profile, t *Tenant) (tier.Entry, bool) {
	return below.BestAt(hash, accept, p, t, anyEnd)
}

const anyEnd = -1

// BestAt is Best for checkpoints whose number of tokens is the parameter end. It
// compares the number of tokens before it walks the chain, which may be long.
func (below *Below) BestAt(hash *[32]byte, accept tier.CheckpointKind, p *Profile, t *Tenant, end int) (tier.Entry, bool) {
	if below.cfg.Lower == nil {
		return tier.Entry{}, false
	}
	for _, kind := range tier.Kinds {
		if accept&kind == 0 {
			continue
		}
		n := tier.Name{Kind: kind, Key: *hash}
		if e, ok := below.Lookup(n, p, t); ok && (end == anyEnd || e.End == end) && !below.names.Filled(n, p, t) && below.wholeChain(&e, p, t) {
			return e, true
		}
	}
	return tier.Entry{}, false
}

// wholeChain reports whether all ancestors of an entry are available. It walks up to the
// first one that is in memory, or to the root.
func (below *Below) wholeChain(e *tier.Entry, p *Profile, t *Tenant) bool {
	up, end, kind := e.Parent, e.Begin, e.Kind
	for range below.cfg.MaxChain {
		if up == (tier.Name{}) {
			return end == 0
		}
		o := below.names.Find(up, p, t)
		if o != nil && o.Published() && !(kind == tier.Rows && o.Phase == Stripped) {
			return o.End == end && below.names.Sound(o)
		}
		if o != nil && o.Fill != nil && !o.Fill.Promoted {
			return false
		}
		node, ok := below.Lookup(up, p, t)
		if !ok || node.End != end {
			return false
		}
		if o != nil && o.Phase == Stripped {
			return below.names.Sound(o) // its states can be restored
		}
		up, end, kind = node.Parent, node.Begin, node.Kind
	}
	return false
}

// Used returns the tenant's bytes in the lower tier.
func (below *Below) Used(t *Tenant) int64 {
	if below.cfg.Lower == nil {
		return 0
	}
	return below.cfg.Lower.Used(t.ID)
}
