package disk

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/disk/slab"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// A tenant is charged all that its entries take: their extents in whole granules, and
// their rows in the catalogue, which have the token ids and digests once more.
func TestEntriesAreChargedTheirExtentsAndRows(t *testing.T) {
	s := newShelf(t)
	cfg := onMem(s.config(), vfs.NewMem())
	lower := s.openOK(cfg)
	things := segments(1, 5)
	things = append(things, thing{seed: 9, profile: smallOne, tenant: tenantA, tokens: 3000})
	var used int64
	for _, w := range things {
		s.mustWrite(lower.Tier, w, tier.LevelSynced)
		n := w.name()
		e, ok := lower.Lookup(&n)
		if !ok {
			t.Fatalf("%x is not found", n.Key[:4])
		}
		row, _, err := lower.mount.Catalog.Entry(extentName(n))
		must(t, err)
		manifest, _, err := lower.mount.Catalog.Manifest(extentName(n))
		if err != nil || len(manifest) == 0 {
			t.Fatalf("a manifest of %d bytes: %v", len(manifest), err)
		}
		runs := slab.RunBytes(row.Runs)
		if runs%cfg.GranuleBytes != 0 || e.Bytes != runs+int64(row.HeaderBytes) || row.HeaderBytes < len(manifest) {
			t.Errorf("an entry of %d bytes with a header of %d and a manifest of %d is charged %d", runs, row.HeaderBytes, len(manifest), e.Bytes)
		}
		used += e.Bytes
	}
	if got := lower.Used(tenantA); got != used {
		t.Errorf("the tenant is charged %d bytes, its entries %d", got, used)
	}
	must(t, lower.close())
	again := s.openOK(cfg)
	if got := again.Used(tenantA); got != used {
		t.Errorf("after a restart the tenant is charged %d bytes, before %d", got, used)
	}
	s.check(again.Tier)
}

// A directory that was full to its tenant's quota by a count of extents alone, as it
// once was, comes up, and gives up only what is too much.
func TestDirectoryOverAQuotaComesUpAndIsTrimmed(t *testing.T) {
	s := newShelf(t)
	cfg := onMem(s.config(), vfs.NewMem())
	lower := s.openOK(cfg)
	things := segments(1, 60)
	var quota int64
	for _, w := range things {
		s.mustWrite(lower.Tier, w, tier.LevelSynced)
		n := w.name()
		row, _, err := lower.mount.Catalog.Entry(extentName(n))
		must(t, err)
		quota += slab.RunBytes(row.Runs)
	}
	must(t, lower.close())
	again := s.openOK(cfg)
	over := again.Used(tenantA) - quota
	if over <= 0 {
		t.Fatalf("the tenant is charged %d bytes, its quota is %d", again.Used(tenantA), quota)
	}
	store, err := tiering.Open(tiering.Config{
		Device: s.dev, PublicBytes: 1 << 20, PrivateBytes: 1 << 20, PageBytes: 4096, Lower: again.Tier,
		Tenants: []tiering.Tenant{{ID: tenantA, Name: "a", QuotaBytes: quota}, {ID: tenantB, Name: "b", Salt: []byte("b")}},
	})
	must(t, err)
	defer func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	}()
	store.Sweep()
	used, left := again.Used(tenantA), 0
	for _, w := range things {
		n := w.name()
		if e, ok := again.Lookup(&n); ok {
			left++
			if used+e.Bytes <= quota {
				t.Errorf("%d bytes are held of %d: more has left than was too much", used, quota)
				break
			}
		}
	}
	if used > quota || left == 0 {
		t.Errorf("%d bytes are held in %d entries, the quota is %d", used, left, quota)
	}
	for _, w := range things[len(things)-left:] {
		s.mustRead(again.Tier, w)
	}
	if n := store.Counters().TrimmedBytes; n < uint64(over) {
		t.Errorf("%d bytes were trimmed, %d were too much", n, over)
	}
}
