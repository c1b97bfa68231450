package tiering_test

import (
	"cmp"
	"testing"

	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/tiertest"
	"github.com/spliced-kv/spliced/tiering/tiertest/storetest"
)

// inMemory opens a store that has no tier below.
func inMemory(t testing.TB, o tiertest.Options) tiertest.Subject {
	t.Helper()
	dev := tiertest.NewDevice(t)
	begun := cmp.Or(o.MaxBegun, 1024)
	s, err := storetest.New(tiering.Config{
		Device: dev, PublicBytes: o.PublicBytes, PrivateBytes: o.PrivateBytes, PageBytes: 4096,
		Tenants: storetest.Tenants(o.Tenants), MaxReservations: begun, Eviction: policy.NewLRU,
	}, tiertest.NewMemory(t, dev, 32<<20), tiertest.Traits{
		Lowest: tier.LevelMemory, Highest: tier.LevelMemory, Budget: o.PublicBytes + o.PrivateBytes, MaxBegun: begun,
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestMemoryConforms(t *testing.T) { tiertest.Conformance(t, inMemory) }
