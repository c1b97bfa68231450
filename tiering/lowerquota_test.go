package tiering

import (
	"testing"

	"github.com/spliced-kv/spliced/tiering/stats"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// below is what mapTier takes for a segment of one rank.
func (x *twoTiers) below(p piece) int64 {
	return 100 + (p.layout.Bytes+511)/512*512
}

func TestQuotaSpansBothTiers(t *testing.T) {
	p0 := b0(t).mid(0, 64, 8)
	mem := p0.charge()
	disk := (&twoTiers{}).below(p0)
	limit := 3*mem + disk // and two copies below leave less than one more takes in memory
	x := newTwoTiers(t, hybrid(1), quota(limit), writeBehind)
	one, two, three := x.mid(1, 64, 8), x.mid(2, 64, 8), x.mid(3, 64, 8)
	x.publish(x.c, one)
	x.publish(x.c, two)
	x.tier.finishAll()
	x.audit()
	if got := x.Pools()[0].Tenants[0]; got.UsedBytes != 2*mem || got.LowerBytes != 2*disk {
		t.Fatalf("UsedBytes %v, want %v; LowerBytes %v, want %v", got.UsedBytes, 2*mem, got.LowerBytes, 2*disk)
	}
	// The third pays from below: one copy goes, for its room in memory, and another
	// for its own copy.
	x.publish(x.c, three)
	x.tier.finishAll()
	x.audit()
	for _, p := range []piece{one, two, three} {
		x.wantHit(p)
	}
	if n := x.Counters(); n.TrimmedBytes == 0 || n.EvictedQuota != 0 {
		t.Fatalf("TrimmedBytes %v, want other than 0; EvictedQuota %v, want 0", n.TrimmedBytes, n.EvictedQuota)
	}
	if got := x.Pools()[0].Tenants[0]; got.UsedBytes+got.LowerBytes > limit || got.LowerBytes != disk {
		t.Fatalf("UsedBytes+got.LowerBytes %v, want at most %v; LowerBytes %v, want %v", got.UsedBytes+got.LowerBytes, limit, got.LowerBytes, disk)
	}
}

func TestQuotaOverBothTiersIsExactToTheByte(t *testing.T) {
	p0 := b0(t).mid(0, 64, 8)
	mem, disk := p0.charge(), (&twoTiers{}).below(p0)
	for _, row := range []struct {
		quota   int64
		written int64
		refused uint64
	}{{mem + disk, disk, 0}, {mem + disk - 1, 0, 1}} {
		x := newTwoTiers(t, hybrid(1), quota(row.quota), writeBehind)
		p := x.mid(1, 64, 8)
		x.publish(x.c, p)
		x.tier.finishAll()
		x.wantHit(p)
		if got := x.Pools()[0].Tenants[0].LowerBytes; got != row.written || x.Counters().WritesRefused[stats.RefusalQuota] != row.refused {
			t.Fatalf("quota of %d: %d bytes below, %v, want got == row.written, x.Counters().WritesRefused[stats.RefusalQuota] == row.refused", row.quota, got, x.Counters())
		}
	}
}

// Memory pays only for what the lower tier cannot.
func TestQuotaIsPaidFromTheSlowestTierUp(t *testing.T) {
	p0 := b0(t).mid(0, 64, 8)
	mem, disk := p0.charge(), (&twoTiers{}).below(p0)
	x := newTwoTiers(t, hybrid(1), quota(mem+disk))
	one, two := x.mid(1, 64, 8), x.mid(2, 64, 8)
	x.sink(one)
	x.publish(x.c, two) // fits beside it
	x.wantOnDisk(one)
	three := x.mid(3, 100, 8) // more than the copy below
	x.publish(x.c, three)     // which goes, and then the one in memory
	x.wantMiss(one, tier.ReasonEvicted)
	x.wantMiss(two, tier.ReasonEvicted)
	x.wantHit(three)
	if n := x.Counters(); n.TrimmedBytes != uint64(disk) || n.EvictedQuota != 1 || n.Dropped != 1 {
		t.Fatalf("TrimmedBytes %v, want %v; EvictedQuota %v, want 1; Dropped %v, want 1", n.TrimmedBytes, uint64(disk), n.EvictedQuota, n.Dropped)
	}
}

func TestWhatCannotFitAQuotaCostsNothing(t *testing.T) {
	p0 := b0(t).mid(0, 64, 8)
	mem, disk := p0.charge(), (&twoTiers{}).below(p0)
	x := newTwoTiers(t, hybrid(1), quota(mem+disk))
	one, two := x.mid(1, 64, 8), x.mid(2, 64, 8)
	x.sink(one)
	x.publish(x.c, two)
	x.lease(x.c, two)
	_, err := x.c.Reserve(x.reserveQuery(x.mid(3, 128, 8), 0))
	x.wantErr(err, tier.ErrQuota)
	x.wantOnDisk(one)
	x.wantHit(two)
}

// To bring something up must not push out the very thing.
func TestPromotionDoesNotTrimWhatItPromotes(t *testing.T) {
	p0 := b0(t).mid(0, 64, 8)
	mem, disk := p0.charge(), (&twoTiers{}).below(p0)
	for _, row := range []struct {
		quota int64
		fits  bool
	}{{mem + disk, true}, {mem + disk - 1, false}} {
		x := newTwoTiers(t, hybrid(1), quota(row.quota))
		p := x.mid(1, 64, 8)
		x.sinkBelowQuota(p)
		x.try(p)
		x.carry()
		if x.tier.entries[tier.Name{Key: p.key}] == nil {
			t.Fatalf("quota of %d: it is gone", row.quota)
		}
		if hit := x.status(p).Place == tier.PlaceDRAM; hit != row.fits {
			t.Fatalf("quota of %d: in memory %v", row.quota, hit)
		}
		x.audit()
	}
}

// Nor may it push it out where the tenant's other entries cannot go, since they
// are being read.
func TestPromotionUnderATightQuotaKeepsItsEntryWhileAnotherIsRead(t *testing.T) {
	p0 := b0(t).mid(0, 64, 8)
	mem, disk := p0.charge(), (&twoTiers{}).below(p0)
	x := newTwoTiers(t, hybrid(1), quota(2*disk+mem-1))
	wanted, read := x.mid(1, 64, 8), x.mid(2, 64, 8)
	x.sinkBelowQuota(wanted) // the less recently used one
	x.sinkBelowQuota(read)
	x.try(wanted)
	x.tier.touch(x.tier.entries[tier.Name{Key: read.key}])
	x.tier.entries[tier.Name{Key: read.key}].readers++
	x.carry()
	x.wantOnDisk(wanted)
	x.wantOnDisk(read)
	x.tier.entries[tier.Name{Key: read.key}].readers--
	x.try(wanted)
	x.carry()
	x.wantHit(wanted)
	x.wantMiss(read, tier.ReasonEvicted)
	x.audit()
}

// sinkBelowQuota puts an entry below without room for both copies.
func (x *twoTiers) sinkBelowQuota(p piece) {
	x.Helper()
	t := x.objects.Tenants[tenantA]
	was := t.QuotaBytes
	t.QuotaBytes = 1 << 40
	x.sink(p)
	t.QuotaBytes = was
}

func TestPromotionTrimsOthers(t *testing.T) {
	p0 := b0(t).mid(0, 64, 8)
	mem, disk := p0.charge(), (&twoTiers{}).below(p0)
	x := newTwoTiers(t, hybrid(1), quota(2*disk+mem-1))
	old, wanted := x.mid(1, 64, 8), x.mid(2, 64, 8)
	x.sinkBelowQuota(wanted) // the less recently used one
	x.sinkBelowQuota(old)
	x.try(wanted)
	x.carry()
	x.wantHit(wanted)
	x.wantMiss(old, tier.ReasonEvicted)
	x.audit()
}

// A tier that comes up late may hold more than a tenant's quota.
func TestSweepBringsATenantBackUnderItsQuota(t *testing.T) {
	p0 := b0(t).mid(0, 64, 8)
	disk := (&twoTiers{}).below(p0)
	x := newTwoTiers(t, hybrid(1), quota(1<<40))
	for i := range 4 {
		x.sink(x.mid(i, 64, 8))
	}
	x.objects.Tenants[tenantA].QuotaBytes = 2*disk + 5
	x.Sweep()
	x.audit()
	if got := x.tier.Used(tenantA); got != 2*disk {
		t.Fatalf("%d bytes below", got)
	}
	x.wantOnDisk(x.mid(3, 64, 8))
	x.wantMiss(x.mid(0, 64, 8), tier.ReasonEvicted)
}
