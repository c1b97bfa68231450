package hostile

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/policy/profile/profiletest"
)

const (
	tinyQuota    = 1 << 20
	tinySegments = 1023
	tinyTenant   = "attacker"
)

// A segment of a few bytes takes a page of memory and a granule of disk. A tenant with
// a small quota publishes many of them, and pins 64 times its quota.
func TestHostileTinySegmentsTakeNoMoreThanTheQuota(t *testing.T) {
	config := filepath.Join(shortDir(t), "config.yaml")
	text := fmt.Sprintf("tenants: [{name: default}, {name: %s, salt: x, quota: %d}]\n", tinyTenant, tinyQuota)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	v := start(t, bounds{}, "-config="+config, "-arena=128MiB", "-page-bytes=64KiB", "-disk="+filepath.Join(shortDir(t), "d"), "-disk-size=128MiB", "-disk-slab=4MiB", "-disk-reserve=0B")
	m := registered(t, v.client(connector.Options{Name: "attacker", Tenants: []connector.Tenant{{Name: tinyTenant}}}), profiletest.New(profiletest.Speck(1)), connector.Binding{})
	each := m.Profile().SegmentLayout(4).Bytes
	flood := func(n int) (published int) {
		for range n {
			switch _, err := put(m, 4); {
			case err == nil:
				published++
			case !errors.Is(err, connector.ErrQuota) && !errors.Is(err, connector.ErrBusy):
				t.Fatalf("put: %v", err)
			}
			v.mustRun()
		}
		return published
	}
	published := flood(tinySegments)
	held, counted := v.heldBytes(t)
	if held > tinyQuota || counted > tinyQuota || counted < held {
		t.Errorf("%d segments of %d bytes: %d bytes of pages and extents are held under a quota of %d, %d are listed for the tenant",
			published, each, held, tinyQuota, counted)
	}
	felt := v.neighbour().during(func() { flood(tinySegments / 8) })
	report(t, fmt.Sprintf("%d segments of %d bytes under a quota of %d KiB", tinySegments, each, tinyQuota>>10),
		fmt.Sprintf("%d KiB of pages and extents, %d KiB of its quota", held>>10, counted>>10), felt)
}

// heldBytes is what all pools hold, in pages and extents, while only the attacker has
// anything there, and what of it is listed for him.
func (v *victim) heldBytes(t testing.TB) (held, counted int64) {
	t.Helper()
	_, body := v.get("/api/v1/pools")
	var list struct{ Items []api.Pool }
	if err := json.Unmarshal([]byte(body), &list); err != nil || len(list.Items) == 0 {
		t.Fatalf("%d pools: %v: %s", len(list.Items), err, body)
	}
	for _, p := range list.Items {
		held += p.UsedBytes
		for _, tenant := range p.Tenants {
			if tenant.Tenant == tinyTenant {
				counted += tenant.UsedBytes
			}
		}
	}
	return held, counted
}
