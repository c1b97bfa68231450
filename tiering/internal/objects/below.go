package objects

import "github.com/spliced-kv/spliced/tiering/tier"

// LookupBelow looks up an entry of this profile and tenant in the lower tier. An entry
// that an operator is removing counts as absent.
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

// Below returns the lower tier's entry of an object in memory. An entry of its name that
// covers other tokens is a different object, since clients choose the hashes of
// checkpoints. Two spliced checkpoints of one name that cover the same tokens are
// interchangeable for callers: both represent these tokens approximately, so the earlier
// one stays.
func (s *Set) Below(o *Object) (tier.Entry, bool) {
	e, ok := s.LookupBelow(o.Label(), o.Profile, o.Tenant)
	return e, ok && o.ShapeOf(&e)
}

// TouchBelow counts a use in the lower tier.
func (s *Set) TouchBelow(n tier.Name) {
	s.asked = n
	s.cfg.Lower.Touch(&s.asked)
}

// SegmentBelow finds a segment in the lower tier.
func (s *Set) SegmentBelow(key *[32]byte, p *Profile, t *Tenant) (tier.Entry, bool) {
	return s.LookupBelow(tier.Name{Key: *key}, p, t)
}

// MatchBelow finds a segment in the lower tier without copying its entry, since most keys
// miss. The entry is valid until the next call.
func (s *Set) MatchBelow(key *[32]byte, p *Profile, t *Tenant) *tier.Entry {
	e := s.EntryBelow(tier.Name{Key: *key})
	if e == nil || len(s.Deleting) > 0 && s.Deleting[s.asked] > 0 || e.Tenant != t.ID || e.Fingerprint != p.Fingerprint() {
		return nil
	}
	return e
}

// EntryBelow returns the lower tier's entry of a name, for any tenant and profile, even
// while it is being removed. It is valid until the next call; nil = none.
func (s *Set) EntryBelow(n tier.Name) *tier.Entry {
	s.asked = n
	var ok bool
	if s.found, ok = s.cfg.Lower.Lookup(&s.asked); !ok {
		return nil
	}
	return &s.found
}

// BestBelow finds a checkpoint of an accepted kind in the lower tier, exact before
// spliced, whose chain is there or in memory. One that a client is filling again cannot
// be promoted, so it does not count.
func (s *Set) BestBelow(hash *[32]byte, accept tier.CheckpointKind, p *Profile, t *Tenant) (tier.Entry, bool) {
	return s.BestBelowAt(hash, accept, p, t, anyEnd)
}

const anyEnd = -1

// BestBelowAt finds only a checkpoint that ends at a token. This is checked before its
// chain, which may be long, is walked.
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

// wholeChain walks a chain up to a node in memory or its root, and reports whether all of
// it is available.
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
			return s.Sound(o) // it can be made whole again
		}
		up, end, kind = node.Parent, node.Begin, node.Kind
	}
	return false
}
