package tiering

import (
	"testing"

	"github.com/spliced-kv/spliced/tiering/tier"
)

func TestBudgetsMoveBetweenPools(t *testing.T) {
	b := newBench(t, hybrid(1))
	c := b.NewSession("writer")
	const page = 4096
	for i := 0; b.Pools()[0].UsedBytes < 7<<20; i++ {
		b.publish(c, b.mid(i, 64, 8))
	}
	leased := b.mid(0, 64, 8)
	rows, err := c.Acquire(&AcquireQuery{Profile: b.id, Tenant: tenantA, Keys: [][32]byte{leased.key}}, nil)
	b.must(err)
	b.must(rows[0].Err)
	want := Budgets{Public: 2 << 20, Private: 14 << 20}
	b.must(b.CheckBudgets(want))
	b.must(b.SetBudgets(want))
	p := b.Pools()
	if p[0].CapacityBytes != 2<<20 || p[1].CapacityBytes != 14<<20 || p[0].UsedBytes > 2<<20 || p[0].UsedBytes == 0 {
		t.Fatalf("pools %+v", p)
	}
	b.audit()

	// What is read stays, and the other pool waits for it.
	b.must(b.SetBudgets(Budgets{Public: page, Private: 16<<20 - page}))
	p = b.Pools()
	if used := p[0].UsedBytes; used <= page || p[1].CapacityBytes != 16<<20-used {
		t.Fatalf("with a lease: pools %+v", p)
	}
	c.Close()
	b.Sweep()
	p = b.Pools()
	if p[0].UsedBytes != 0 || p[0].CapacityBytes != page || p[1].CapacityBytes != 16<<20-page {
		t.Fatalf("after the last lease: pools %+v", p)
	}
	if got := b.Budgets(); got.Public != page || got.Private != 16<<20-page {
		t.Fatalf("wanted %+v", got)
	}
	for name, bad := range map[string]struct {
		b    Budgets
		want error
	}{
		"more than the arena": {Budgets{Public: 8 << 20, Private: 9 << 20}, tier.ErrUnavailable},
		"nothing":             {Budgets{Public: 16 << 20}, tier.ErrInvalid},
		"a negative quota":    {Budgets{8 << 20, 8 << 20, map[tier.TenantID]int64{tenantA: -1}}, tier.ErrInvalid},
		"a quota of nobody":   {Budgets{8 << 20, 8 << 20, map[tier.TenantID]int64{99: 1 << 20}}, tier.ErrInvalid},
	} {
		b.wantErr(b.SetBudgets(bad.b), bad.want)
		if got := b.Budgets(); got.Public != page {
			t.Errorf("%s: refused, and yet %+v", name, got)
		}
	}
	b.must(b.SetBudgets(Budgets{Public: 8 << 20, Private: 8 << 20}))
	c = b.NewSession("again")
	for i := range 200 {
		b.publish(c, b.mid(i, 64, 8))
	}
}

func TestLowerQuotasAreKeptAtOnce(t *testing.T) {
	x := newTwoTiers(t, hybrid(1), quota(6<<20))
	for i := range 10 {
		x.sink(x.mid(1000+i, 64, 8))
	}
	for i := 0; x.held() < 5<<20; i++ {
		x.publish(x.c, x.mid(i, 64, 8))
	}
	x.tier.lowered = true
	x.must(x.SetBudgets(Budgets{Public: 8 << 20, Private: 8 << 20, Quotas: map[tier.TenantID]int64{tenantA: 1 << 20}}))
	x.tier.lowered = false
	if n := x.held(); n > 1<<20 || n == 0 {
		t.Fatalf("%d bytes are held under a quota of 1 MiB", n)
	}
	x.must(x.SetBudgets(Budgets{Public: 8 << 20, Private: 8 << 20, Quotas: map[tier.TenantID]int64{tenantA: 0}}))
	for i := range 40 {
		x.publish(x.c, x.mid(5000+i, 64, 8))
	}
	if n := x.held(); n <= 1<<20 {
		t.Fatalf("%d bytes are held without a quota", n)
	}
}

// held is what the first tenant holds in both tiers.
func (x *twoTiers) held() int64 {
	p := x.Pools()
	return p[0].Tenants[0].UsedBytes + p[1].Tenants[0].UsedBytes + p[0].Tenants[0].LowerBytes
}
