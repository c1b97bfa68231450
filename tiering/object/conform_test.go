package object

import (
	"context"
	"testing"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/tiertest"
)

// chained is a subject behind a nearer source that has nothing.
type chained struct {
	*subject
	tier.Remotes
}

// nothing is a source without objects.
type nothing struct{}

func (nothing) Hint(*tier.Want) (tier.Hint, bool) { return tier.Hint{}, false }
func (nothing) Find(_ context.Context, wants []tier.Want) ([]tier.Copy, error) {
	return make([]tier.Copy, len(wants)), nil
}

func TestSeveralSourcesConform(t *testing.T) {
	tiertest.RemoteConformance(t, func(t testing.TB, tenants []tiertest.Tenant) tiertest.RemoteSubject {
		s := openSubject(t, tenants, func(*Config) {})
		return &chained{s, tier.Remotes{nothing{}, s.node}}
	})
}

func TestObjectStoreConforms(t *testing.T) {
	for name, coded := range map[string][]profile.PartKind{"none": nil, "kv": {profile.PartK, profile.PartV}} {
		t.Run("codec="+name, func(t *testing.T) {
			if testing.Short() && coded == nil {
				t.Skip("short: several sources conform without a codec")
			}
			tiertest.RemoteConformance(t, func(t testing.TB, tenants []tiertest.Tenant) tiertest.RemoteSubject {
				return openSubject(t, tenants, func(c *Config) { c.Coded = coded })
			})
		})
	}
}
