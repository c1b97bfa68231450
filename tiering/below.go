package tiering

import (
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/transfer"
)

// lowerTier is what the store keeps of a lower tier. Guarded by the store's lock.
type lowerTier struct {
	asked      tier.Name               // argument of the call that is made to it
	found      tier.Entry              // answer to a match
	deleting   map[tier.Name]int       // being removed from it by operators
	removals   []tier.Name             // by an operator while they were written: to be removed again
	writes     map[tier.Name][]*object // with a write, wanted or running
	down       *transfer.Engine[*object]
	up         *transfer.Engine[tier.Name]
	aheadHints transfer.Hints[wanted]
}

// label is what the object is known by in every tier.
func (o *object) label() tier.Name { return tier.Name{Kind: o.kind, Key: o.key} }

// lookupLocked asks the lower tier for an entry of this profile and tenant. What
// an operator is removing is not there any more.
func (s *Store) lookupLocked(n tier.Name, p *profileState, t *tenant) (tier.Entry, bool) {
	if s.cfg.Lower == nil || len(s.deleting) > 0 && s.deleting[n] > 0 {
		return tier.Entry{}, false
	}
	s.asked = n // a name on the stack would be moved to the heap
	e, ok := s.cfg.Lower.Lookup(&s.asked)
	if !ok || e.Tenant != t.ID || e.Fingerprint != p.Fingerprint() {
		return tier.Entry{}, false
	}
	return e, true
}

// belowLocked is what the lower tier has of an object of memory. What has its name
// but covers other tokens is something else: hashes of checkpoints come from
// clients. Two spliced checkpoints of one name that cover the same tokens are the
// same as far as anybody can ask: both stand for these tokens, approximately, so
// the earlier one stays.
func (s *Store) belowLocked(o *object) (tier.Entry, bool) {
	e, ok := s.lookupLocked(o.label(), o.profile, o.tenant)
	return e, ok && o.shapeOf(&e)
}

// shapeOf tells whether an entry of an object's name holds the same tokens.
func (o *object) shapeOf(e *tier.Entry) bool {
	return e.Begin == o.begin && e.End == o.end && e.Spec == o.spec && e.Parent.Key == o.extends
}

func (s *Store) touchLocked(n tier.Name) {
	s.asked = n
	s.cfg.Lower.Touch(&s.asked)
}

// lowerUsed is how much a tenant holds in the lower tier.
func (s *Store) lowerUsed(t *tenant) int64 {
	if s.cfg.Lower == nil {
		return 0
	}
	return s.cfg.Lower.Used(t.ID)
}

// segmentBelowLocked finds a segment in the lower tier.
func (s *Store) segmentBelowLocked(key *[32]byte, p *profileState, t *tenant) (tier.Entry, bool) {
	return s.lookupLocked(tier.Name{Key: *key}, p, t)
}

// bestBelowLocked finds a checkpoint of an accepted kind in the lower tier, exact
// before spliced, whose chain is there or in memory. One that a client fills
// again at the moment cannot be promoted, so it does not count.
func (s *Store) bestBelowLocked(hash *[32]byte, accept tier.CheckpointKind, p *profileState, t *tenant) (tier.Entry, bool) {
	return s.bestBelowAtLocked(hash, accept, p, t, anyEnd)
}

const anyEnd = -1

// bestBelowAtLocked finds only what ends at a token: whether it does is known before its chain, which may be long, has been walked.
func (s *Store) bestBelowAtLocked(hash *[32]byte, accept tier.CheckpointKind, p *profileState, t *tenant, end int) (tier.Entry, bool) {
	if s.cfg.Lower == nil {
		return tier.Entry{}, false
	}
	for _, kind := range [...]tier.CheckpointKind{tier.Exact, tier.Spliced} {
		if accept&kind == 0 {
			continue
		}
		n := tier.Name{Kind: kind, Key: *hash}
		if e, ok := s.lookupLocked(n, p, t); ok && (end == anyEnd || e.End == end) && !s.filledLocked(n, p, t) && s.wholeLocked(&e, p, t) {
			return e, true
		}
	}
	return tier.Entry{}, false
}

// filledLocked tells whether a client fills an object of this name.
func (s *Store) filledLocked(n tier.Name, p *profileState, t *tenant) bool {
	o := s.namedLocked(n, p, t)
	return o != nil && o.fill != nil && o.fill.promotion == nil
}

// wholeLocked walks a chain up to a node that memory has, or its root.
func (s *Store) wholeLocked(e *tier.Entry, p *profileState, t *tenant) bool {
	up, end := e.Parent, e.Begin
	for range s.cfg.MaxChain {
		if up == (tier.Name{}) {
			return end == 0
		}
		o := s.namedLocked(up, p, t)
		if o != nil && o.published() {
			return o.end == end && s.soundLocked(o)
		}
		if o != nil && o.fill.promotion == nil {
			return false
		}
		node, ok := s.lookupLocked(up, p, t)
		if !ok || node.End != end {
			return false
		}
		up, end = node.Parent, node.Begin
	}
	return false
}
