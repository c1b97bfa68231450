package peer

import (
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// TenantTag identifies a tenant in messages between nodes, for other packages.
type TenantTag = [16]byte

// TenantTag returns the tag of a tenant; false if the tenant is not configured.
func (n *Names) TenantTag(id tier.TenantID) (TenantTag, bool) {
	tag, ok := n.tags[id]
	return TenantTag(tag), ok
}

// TenantOf returns the tenant with a tag; false if this node has no tenant of that name
// and salt.
func (n *Names) TenantOf(tag TenantTag) (tier.TenantID, bool) {
	t, ok := n.tenants[tenantTag(tag)]
	if !ok {
		return 0, false
	}
	return t.ID, true
}

// workerKind is the kind in names of Workers, which no object has.
const workerKind tier.CheckpointKind = 0xff

// Workers returns a name that a node publishes in its index, like that of an object, if
// it has engines that compute segments of a profile and tenant for other nodes.
func Workers(of profile.Fingerprint, tenant tier.TenantID) tier.Want {
	return tier.Want{Name: tier.Name{Kind: workerKind}, Fingerprint: of, Tenant: tenant}
}
