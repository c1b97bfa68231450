package tiering

import (
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
)

// demoter is the next slower tier below memory. The store calls it without holding
// a lock; implementations are safe for concurrent use.
type demoter interface {
	// Demote offers an object that has to leave memory and that no lookup finds
	// any more. It must not wait for I/O: it takes the object and answers true,
	// or refuses. Having taken it, it calls done exactly once, when it no longer
	// reads the object's memory; until then the memory stays as it is and cannot
	// be given to anybody else. A demotion that is refused is an eviction.
	Demote(o *Object, done func()) bool
	// Remove forgets a segment that an operator removed.
	Remove(key profile.SegmentKey)
}

// Object describes a published segment or checkpoint to a Tier. It must not be
// written; Shares and their memory are valid until done, the rest for ever.
type Object struct {
	Key       [32]byte // segment key or prefix hash
	Kind      CheckpointKind
	Profile   *profile.Profile
	Tenant    TenantID
	Publisher string
	Created   time.Time

	Spec   profile.SegmentSpec // segments (Kind 0)
	Tokens []uint32            // segments: the token ids

	Begin, End int  // checkpoints: rows held
	Parent     Name // checkpoints: the node this one extends; zero = none

	Shares []Share // by rank
}

// Share is one rank's bytes and the digests of their chunks, part by part.
type Share struct {
	Ref     gpuipc.Ref
	Digests []uint64
}

// describe makes the Tier's view of an object.
func (s *Store) describe(o *object) *Object {
	d := &Object{
		Key: o.key, Kind: o.kind, Profile: o.profile.Profile, Tenant: o.tenant.ID, Publisher: o.publisher, Created: o.created,
		Spec: o.spec, Tokens: o.ids, Begin: o.begin, End: o.end,
		Shares: make([]Share, len(o.shares)),
	}
	if o.extends != (profile.PrefixHash{}) {
		d.Parent = Name{o.extendsKind, o.extends}
	}
	for i := range o.shares {
		d.Shares[i] = Share{Ref: s.ref(&o.shares[i]), Digests: o.shares[i].digests}
	}
	return d
}

// offerLeaving offers the objects that evictions set aside to the lower tier and
// reports how many were refused: their memory is free at once.
func (s *Store) offerLeaving(leaving []*object) (refused int) {
	for _, o := range leaving {
		if s.cfg.Lower.Demote(s.describe(o), func() { s.left(o, true) }) {
			continue
		}
		refused++
		s.left(o, false)
	}
	return refused
}

// left ends an object's demotion.
func (s *Store) left(o *object, demoted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !o.demoting {
		panic("tiering: demotion of an object ended twice")
	}
	o.demoting = false
	o.tenant.leaving -= o.bytes
	if demoted {
		s.counters.Demoted++
	} else {
		s.counters.DemotionsRefused++
	}
	s.settleLocked(o)
}
