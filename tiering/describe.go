package tiering

import (
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// describe makes the Tier's view of an object.
func (s *Store) describe(o *object) *tier.Object {
	d := &tier.Object{
		Key: o.key, Kind: o.kind, Profile: o.profile.Profile, Tenant: o.tenant.ID, Publisher: o.publisher, Created: o.created,
		Spec: o.spec, Tokens: o.ids, Begin: o.begin, End: o.end,
		Shares: make([]tier.Share, len(o.shares)),
	}
	if o.extends != (profile.PrefixHash{}) {
		d.Parent = tier.Name{Kind: o.extendsKind, Key: o.extends}
	}
	for i := range o.shares {
		d.Shares[i] = tier.Share{Ref: s.ref(&o.shares[i]), Digests: o.shares[i].digests}
	}
	return d
}
