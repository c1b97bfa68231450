package objects

import "github.com/spliced-kv/spliced/tiering/tier"

// LookupBelow looks up an entry of a profile and tenant in the lower tier. An entry that
// an operator is removing counts as absent.
func (s *Set) LookupBelow(n tier.Name, p *Profile, t *Tenant) (tier.Entry, bool) {
	if s.cfg.Lower == nil || len(s.Deleting) > 0 && s.Deleting[n] > 0 {
		return tier.Entry{}, false
	}
	s.asked = n // a name on the stack would escape to the heap
	e, ok := s.cfg.Lower.Lookup(&s.asked)
	if !ok || e.Tenant != t.ID || e.Fingerprint != p.Fingerprint() {
		return tier.Entry{}, false
	}
	return e, true
}

// Below returns the lower tier's entry of an object in memory. Clients choose the hashes of
// checkpoints, so an entry of the same name that covers other tokens is a different object and
// does not count. Two spliced checkpoints of one name and the same tokens are interchangeable
// for callers, since both represent these tokens approximately. The lower tier keeps the one
// that it had first.
func (s *Set) Below(o *Object) (tier.Entry, bool) {
	e, ok := s.LookupBelow(o.Label(), o.Profile, o.Tenant)
	return e, ok && o.ShapeOf(&e)
}

// TouchBelow counts a use of an entry of the lower tier.
func (s *Set) TouchBelow(n tier.Name) {
	s.asked = n
	s.cfg.Lower.Touch(&s.asked)
}

// SegmentBelow finds a segment in the lower tier.
func (s *Set) SegmentBelow(key *[32]byte, p *Profile, t *Tenant) (tier.Entry, bool) {
	return s.LookupBelow(tier.Name{Key: *key}, p, t)
}

// MatchBelow finds a segment in the lower tier. It returns a pointer, valid until the next
// call, so that a match copies no entries; nil = none.
func (s *Set) MatchBelow(key *[32]byte, p *Profile, t *Tenant) *tier.Entry {
	e := s.EntryBelow(tier.Name{Key: *key})
	if e == nil || len(s.Deleting) > 0 && s.Deleting[s.asked] > 0 || e.Tenant != t.ID || e.Fingerprint != p.Fingerprint() {
		return nil
	}
	return e
}

// EntryBelow returns the lower tier's entry of a name, whatever its tenant and profile,
// even while an operator removes it. It is valid until the next call; nil = none.
func (s *Set) EntryBelow(n tier.Name) *tier.Entry {
	s.asked = n
	var ok bool
	if s.found, ok = s.cfg.Lower.Lookup(&s.asked); !ok {
		return nil
	}
	return &s.found
}

// BestBelow finds a checkpoint of an accepted kind in the lower tier, an exact one rather than
// a spliced one. All its ancestors must be in the lower tier or in memory. A checkpoint that a
// client is filling again cannot be promoted, so it does not count.
func (s *Set) BestBelow(hash *[32]byte, accept tier.CheckpointKind, p *Profile, t *Tenant) (tier.Entry, bool) {
	return s.BestBelowAt(hash, accept, p, t, anyEnd)
}

const anyEnd = -1

// BestBelowAt is BestBelow for checkpoints whose number of tokens is the parameter end. It
// compares the number of tokens before it walks the chain, which may be long.
func (s *Set) BestBelowAt(hash *[32]byte, accept tier.CheckpointKind, p *Profile, t *Tenant, end int) (tier.Entry, bool) {
	if s.cfg.Lower == nil {
		return tier.Entry{}, false
	}
	for _, kind := range tier.Kinds {
		if accept&kind == 0 {
			continue
		}
		n := tier.Name{Kind: kind, Key: *hash}
		if e, ok := s.LookupBelow(n, p, t); ok && (end == anyEnd || e.End == end) && !s.Filled(n, p, t) && s.wholeChain(&e, p, t) {
			return e, true
		}
	}
	return tier.Entry{}, false
}

// Filled reports whether a client is filling an object of this name.
func (s *Set) Filled(n tier.Name, p *Profile, t *Tenant) bool {
	o := s.Named(n, p, t)
	return o != nil && o.Fill != nil && !o.Fill.Promoted
}

// wholeChain reports whether all ancestors of an entry are available. It walks up to the
// first one that is in memory, or to the root.
func (s *Set) wholeChain(e *tier.Entry, p *Profile, t *Tenant) bool {
	up, end, kind := e.Parent, e.Begin, e.Kind
	for range s.cfg.MaxChain {
		if up == (tier.Name{}) {
			return end == 0
		}
		o := s.Named(up, p, t)
		if o != nil && o.Published() && !(kind == tier.Rows && o.Phase == Stripped) {
			return o.End == end && s.Sound(o)
		}
		if o != nil && o.Fill != nil && !o.Fill.Promoted {
			return false
		}
		node, ok := s.LookupBelow(up, p, t)
		if !ok || node.End != end {
			return false
		}
		if o != nil && o.Phase == Stripped {
			return s.Sound(o) // its states can be restored
		}
		up, end, kind = node.Parent, node.Begin, node.Kind
	}
	return false
}
