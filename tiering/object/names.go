package object

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"strings"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/disk/extent"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// tag identifies an object in the bucket.
type tag [16]byte

// The method short returns the tag's key in the index. If two objects have the same key, a
// request may be wasted.
func (t tag) short() uint64 { return binary.BigEndian.Uint64(t[:]) }

const formatDir = "v1/"

// name returns the tag's name below the prefix. Names have the same order as tags.
func (t tag) name() string {
	h := hex.EncodeToString(t[:])
	return formatDir + h[:2] + "/" + h[2:]
}

// parseName parses the result of name.
func parseName(s string) (t tag, ok bool) {
	s, ok = strings.CutPrefix(s, formatDir)
	if !ok || len(s) != 2*len(t)+1 || s[2] != '/' || strings.ToLower(s) != s {
		return t, false
	}
	_, err := hex.Decode(t[:], []byte(s[:2]+s[3:]))
	return t, err == nil
}

// keys holds the keys derived from the cluster's secret and the tenants. It does not change.
type keys struct {
	head    [sha256.Size]byte
	seal    *extent.Key
	tenants map[tier.TenantID]*tenant
}

type tenant struct {
	Tenant
	key   [sha256.Size]byte // key for the tags of its objects
	label string            // the tenant's name in manifests
}

func newKeys(secret []byte, tenants []Tenant) *keys {
	k := &keys{head: derive(secret, "spliced object head"), tenants: map[tier.TenantID]*tenant{}}
	k.seal = extent.NewKey(derive(secret, "spliced object seal"), 0)
	for _, t := range tenants {
		var size [4]byte
		binary.LittleEndian.PutUint32(size[:], uint32(len(t.Name)))
		t.Salt = bytes.Clone(t.Salt)
		label := derive(secret, "spliced object tenant\x00", string(size[:]), t.Name, string(t.Salt))
		k.tenants[t.ID] = &tenant{
			Tenant: t,
			key:    derive(secret, "spliced object names\x00", string(label[:])),
			label:  hex.EncodeToString(label[:16]),
		}
	}
	return k
}

func derive(secret []byte, parts ...string) (key [sha256.Size]byte) {
	m := hmac.New(sha256.New, secret)
	for _, p := range parts {
		m.Write([]byte(p))
	}
	m.Sum(key[:0])
	return key
}

// tagBytes is the length of the hash input of a tag, two blocks of SHA-256. The input
// starts with a secret key. Since its length is fixed and tags are truncated, a plain
// hash is enough: a tag cannot be computed without the key.
const tagBytes = sha256.Size + len(profile.Fingerprint{}) + 1 + 32

// tag returns the tag of a tenant's object; false if the tenant is unknown.
func (k *keys) tag(owner tier.TenantID, f *profile.Fingerprint, n *tier.Name) (t tag, ok bool) {
	who := k.tenants[owner]
	if who == nil {
		return t, false
	}
	var b [tagBytes]byte
	at := copy(b[:], who.key[:])
	at += copy(b[at:], f[:])
	b[at] = byte(n.Kind)
	copy(b[at+1:], n.Key[:])
	sum := sha256.Sum256(b[:])
	return tag(sum[:len(t)]), true
}

func (k *keys) tagOf(w *tier.Want) (tag, bool) { return k.tag(w.Tenant, &w.Fingerprint, &w.Name) }
