package peer

import (
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// TenantTag stands for a tenant between nodes, as it does in requests for objects.
type TenantTag = [16]byte

// TenantTag gives the tag of a tenant; false for one that is not configured.
func (n *Names) TenantTag(id tier.TenantID) (TenantTag, bool) {
	tag, ok := n.tags[id]
	return TenantTag(tag), ok
}

// TenantOf finds the tenant of a tag; false where this node has none of that name and salt.
func (n *Names) TenantOf(tag TenantTag) (tier.TenantID, bool) {
	t, ok := n.tenants[tenantTag(tag)]
	if !ok {
		return 0, false
	}
	return t.ID, true
}

// workerKind tells the name of a node's engines from those of objects.
const workerKind tier.CheckpointKind = 0xff

// Workers is the name under which a node's index says that it has engines that compute
// segments of a profile and tenant for others.
func Workers(of profile.Fingerprint, tenant tier.TenantID) tier.Want {
	return tier.Want{Name: tier.Name{Kind: workerKind}, Fingerprint: of, Tenant: tenant}
}
