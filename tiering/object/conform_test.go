package object

import (
	"testing"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tiertest"
)

func TestObjectStoreConforms(t *testing.T) {
	for name, coded := range map[string][]profile.PartKind{"none": nil, "kv": {profile.PartK, profile.PartV}} {
		t.Run("codec="+name, func(t *testing.T) {
			tiertest.RemoteConformance(t, func(t testing.TB, tenants []tiertest.Tenant) tiertest.RemoteSubject {
				return openSubject(t, tenants, func(c *Config) { c.Coded = coded })
			})
		})
	}
}
