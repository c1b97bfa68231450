package peer

import (
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// TenantTag identifies a tenant between nodes, as in requests for objects.
type TenantTag = [16]byte

// TenantTag returns the tag of a tenant; false for one that is not configured.
func (n *Names) TenantTag(id tier.TenantID) (TenantTag, bool) {
	tag, ok := n.tags[id]
	return TenantTag(tag), ok
}

// TenantOf returns the tenant of a tag; false if this node has none with that name and
// salt.
func (n *Names) TenantOf(tag TenantTag) (tier.TenantID, bool) {
	t, ok := n.tenants[tenantTag(tag)]
	if !ok {
		return 0, false
	}
	return t.ID, true
}

// workerKind distinguishes the names of nodes' engines from those of objects.
const workerKind tier.CheckpointKind = 0xff

// Workers returns the name in a node's index that means: it has engines that compute
// segments of a profile and tenant for others.
func Workers(of profile.Fingerprint, tenant tier.TenantID) tier.Want {
	return tier.Want{Name: tier.Name{Kind: workerKind}, Fingerprint: of, Tenant: tenant}
}
