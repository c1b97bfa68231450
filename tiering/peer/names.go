package peer

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// Tenant is a tenant of this node. Nodes share the objects of tenants with the same name
// and salt.
type Tenant struct {
	ID   tier.TenantID
	Name string
	Salt []byte
}

// MinSecret is the minimum length of a cluster's secret, in bytes.
const MinSecret = 16

// tenantTag identifies a tenant between nodes. It reveals nothing about the tenant's name
// or salt to outsiders, and differs between clusters.
type tenantTag [16]byte

// Names derives the tags by which the nodes of a cluster identify tenants and objects. It
// does not change.
type Names struct {
	key     [sha256.Size]byte
	tags    map[tier.TenantID]tenantTag
	tenants map[tenantTag]*Tenant
	salts   map[tier.TenantID][]byte
}

// NewNames derives the tags from the cluster's secret.
func NewNames(secret []byte, tenants []Tenant) (*Names, error) {
	if len(secret) < MinSecret {
		return nil, fmt.Errorf("peer: secret of %d bytes, at least %d: %w", len(secret), MinSecret, tier.ErrInvalid)
	}
	n := &Names{tags: map[tier.TenantID]tenantTag{}, tenants: map[tenantTag]*Tenant{}, salts: map[tier.TenantID][]byte{}}
	derive(n.key[:0], secret, "spliced object\x00")
	for _, t := range tenants {
		var size [4]byte
		binary.LittleEndian.PutUint32(size[:], uint32(len(t.Name)))
		sum := derive(nil, secret, "spliced tenant\x00", string(size[:]), t.Name, string(t.Salt))
		tag := tenantTag(sum[:len(tenantTag{})])
		n.tags[t.ID] = tag
		n.salts[t.ID] = bytes.Clone(t.Salt)
		n.tenants[tag] = &Tenant{t.ID, t.Name, n.salts[t.ID]}
	}
	return n, nil
}

func derive(dst, secret []byte, parts ...string) []byte {
	mac := hmac.New(sha256.New, secret)
	for _, p := range parts {
		mac.Write([]byte(p))
	}
	return mac.Sum(dst)
}

// Tag returns the tag of an object in the index: a keyed hash of its full name, the same
// on every node. ok is false for a tenant that is not configured. It allocates nothing.
func (n *Names) Tag(w *tier.Want) (tag uint64, ok bool) {
	tenant, ok := n.tags[w.Tenant]
	if !ok {
		return 0, false
	}
	// The secret key comes first and the input has a fixed length, so a plain hash is a
	// sufficient MAC. HMAC takes four times as long, and a match computes one tag per key.
	var b [sha256.Size + namedBytes]byte
	copy(b[:], n.key[:])
	putNamed(b[sha256.Size:], &name{Name: w.Name, fingerprint: w.Fingerprint, tenant: tenant})
	sum := sha256.Sum256(b[:])
	return binary.LittleEndian.Uint64(sum[:]), true
}
