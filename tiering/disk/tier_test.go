package disk

import (
	"errors"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Unknown objects, parents and tenants are told apart from what is there.
func TestAdmitRefuses(t *testing.T) {
	s := newShelf(t)
	lower := s.openOK(onMem(s.config(), vfs.NewMem()))
	c := chain(1, 2, tenantA)
	for name, test := range map[string]struct {
		w    thing
		want error
	}{
		"parent not here":  {c[1], tier.ErrInvalid},
		"unknown tenant":   {thing{seed: 9, profile: smallOne, tenant: 77, tokens: 20}, tier.ErrInvalid},
		"larger than all":  {thing{seed: 9, profile: wide(profile.F32), tenant: tenantA, tokens: 1000}, tier.ErrFull},
		"larger than pool": {thing{seed: 9, profile: smallOne, tenant: tenantA, kind: tier.Exact, tokens: 4100}, tier.ErrFull},
	} {
		if err := s.write(lower.Tier, test.w, tier.LevelLogged); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
	}
	if c := lower.Counters(); c.Entries != 0 || c.RefusedInvalid != 2 || c.RefusedFull != 2 {
		t.Errorf("%+v", c)
	}
	s.check(lower.Tier)
}
