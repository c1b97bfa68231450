package disk

import (
	"maps"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spliced-kv/spliced/tiering/held"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/tiertest"
)

// What a tier holds is told when it is written, when its directory is opened, and when it
// leaves; entries of tenants that are not configured are nobody's.
func TestTierTellsWhatItHolds(t *testing.T) {
	tiertest.Leaks(t)
	s := newShelf(t)
	cfg := onMem(s.config(), vfs.NewMem())
	things := append(segments(1, 12), chain(50, 4, tenantB)...)
	want := map[tier.Name]tier.TenantID{}
	told := func() map[tier.Name]tier.TenantID {
		got := map[tier.Name]tier.TenantID{}
		for w := range cfg.Held.All() {
			got[w.Name] = w.Tenant
		}
		return got
	}
	cfg.Held = held.New()
	lower := s.openOK(cfg)
	for _, w := range things {
		s.mustWrite(lower.Tier, w, tier.LevelLogged)
		want[w.name()] = w.tenant
	}
	if got := told(); !maps.Equal(got, want) {
		t.Fatalf("written: %d are told of, want %d", len(got), len(want))
	}
	gone := things[3].name()
	if !lower.Remove(&gone) {
		t.Fatal("it was not there")
	}
	delete(want, gone)
	if got := told(); !maps.Equal(got, want) {
		t.Fatalf("removed: %d are told of, want %d", len(got), len(want))
	}
	must(t, lower.close())
	cfg.Held = held.New()
	lower = s.openOK(cfg)
	if got := told(); !maps.Equal(got, want) {
		t.Fatalf("opened: %d are told of, want %d", len(got), len(want))
	}
	must(t, lower.close())
	cfg.Held, cfg.Tenants = held.New(), cfg.Tenants[:1]
	lower = s.openOK(cfg)
	maps.DeleteFunc(want, func(_ tier.Name, of tier.TenantID) bool { return of != cfg.Tenants[0].ID })
	if got := told(); !maps.Equal(got, want) {
		t.Fatalf("a tenant less: %d are told of, want %d", len(got), len(want))
	}
	must(t, lower.close())
}
