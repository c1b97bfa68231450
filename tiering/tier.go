package tiering

import (
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
)

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
