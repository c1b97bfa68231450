package tiering

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// quotaOfA is a change of nothing but the first tenant's quota.
func (b *bench) quotaOfA(bytes int64) Budgets {
	now := b.Budgets()
	now.Quotas = map[tier.TenantID]int64{tenantA: bytes}
	return now
}

// beginQuota sets a quota and does nothing for it yet.
func (b *bench) beginQuota(bytes int64) {
	b.cat.Mu.Lock()
	b.cat.Objects.Quotas.Set(b.cat.Objects.Tenants[tenantA], bytes)
	b.cat.Mu.Unlock()
}

// catchUp is one step of it.
func (b *bench) catchUp() (more bool) {
	b.cat.Mu.Lock()
	defer b.cat.Mu.Unlock()
	return b.cat.Objects.Quotas.CatchUp(b.cat.Objects.Tenants[tenantA])
}

// order is what a policy would let go, first to last.
func (b *bench) order(p policy.Eviction) (names []string) {
	named := map[policy.ID]bool{}
	for {
		id, ok := p.Victim(func(id policy.ID) bool { return !named[id] })
		if !ok {
			return names
		}
		named[id] = true
		names = append(names, b.cat.Objects.Table.Get(id).Name())
	}
}

// A tenant that gets its first quota late has its objects in the order that they would have if
// the quota had been there from the start, whatever happens while it is introduced.
func TestTheOrderUnderAFirstQuota(t *testing.T) {
	run := func(late bool, seed uint64) ([]string, int) {
		o := setup{states: true, ranks: 1, public: 8 << 20, private: 8 << 20, quota: 1 << 40, tenants: 1, segments: 120, checkpoints: 40}
		if late {
			o.quota = 0
		}
		m := newModel(t, alone, o, seed)
		act := func() {
			m.clock.advance(time.Millisecond)
			m.one()
		}
		for range 300 {
			act()
		}
		if late {
			m.beginQuota(1 << 40)
		}
		steps := 0
		for more, n := late, 0; n < 120 || more; n++ {
			if n < 120 && n%2 == 0 {
				act()
			}
			if more = late && m.catchUp(); more {
				steps++
			}
			if more && m.cat.Objects.Tenants[tenantA].QuotaBytes != 0 {
				t.Fatal("a quota counts while the policy lacks objects")
			}
			m.audit()
		}
		if got := m.Budgets().Quotas[tenantA]; got != 1<<40 || m.cat.Objects.Tenants[tenantA].QuotaBytes != got {
			t.Fatalf("a quota of %d", got)
		}
		return m.order(m.cat.Objects.Tenants[tenantA].Evict), steps
	}
	seeds := uint64(20)
	if testing.Short() {
		seeds = 5
	}
	between := 0 // steps while something happened
	for seed := range seeds {
		want, _ := run(false, seed)
		got, steps := run(true, seed)
		if !slices.Equal(want, got) || len(got) < 30 {
			t.Fatalf("seed %d: evicted first to last\n%v\nwant\n%v", seed, got, want)
		}
		between += steps
	}
	if between < 5*int(seeds) {
		t.Fatalf("%d steps in %d runs: nearly all that happened came after them", between, seeds)
	}
}

// With many objects a first quota lets others have the lock, and ends though they use more
// meanwhile than one step tells.
func TestAFirstQuotaIsGivenInTurns(t *testing.T) {
	const n = 4000
	b, _ := large(t, n, policy.NewDefault)
	tenant := b.cat.Objects.Tenants[tenantA]
	b.beginQuota(n / 4 * 4096)
	rng := rand.New(rand.NewPCG(1, 1))
	listing := true
	for steps, held := 0, 0; b.catchUp(); steps++ {
		if steps > n {
			t.Fatalf("%d objects take more than %d steps", n, steps)
		}
		now := tenant.Evict.Len()
		listing = listing && now == 0
		uses := 3 * objects.EvictRows
		if !listing {
			if most := objects.EvictRows + uses + 1; now-held > most { // the last one with what it extends
				t.Fatalf("%d objects in one step, want at most %d", now-held, most)
			}
		}
		held = now
		b.cat.Mu.Lock()
		for range uses {
			b.cat.Objects.Policies.Used(b.cat.Objects.Table.Places()[rng.IntN(n)], b.clock.Now())
		}
		b.cat.Mu.Unlock()
		b.clock.advance(time.Microsecond)
	}
	if got := tenant.Evict.Len(); got != n {
		t.Fatalf("the policy holds %d of %d", got, n)
	}
	b.move.Limits.Settle()
	if got := tenant.Total(); got > n/4*4096 || got < n/4*4096*9/10 {
		t.Fatalf("%d bytes are held under a quota of %d", got, n/4*4096)
	}
}

// The last of several changes counts.
func TestAFirstQuotaThatIsChangedAtOnce(t *testing.T) {
	b := newBench(t, hybrid(1))
	c := b.NewSession("c")
	for i := range 100 {
		b.publish(c, b.mid(i, 64, 8))
	}
	used := b.Pools()[0].UsedBytes
	b.beginQuota(1 << 12)
	b.catchUp()
	b.must(b.SetBudgets(b.quotaOfA(0)))
	if got := b.Pools()[0].UsedBytes; got != used || b.Budgets().Quotas[tenantA] != 0 {
		t.Fatalf("%d bytes are held without a quota, %d before", got, used)
	}
	b.audit()
	b.must(b.SetBudgets(b.quotaOfA(used / 2)))
	if got := b.Pools()[0].UsedBytes; got > used/2 || got == 0 {
		t.Fatalf("%d bytes are held under a quota of %d", got, used/2)
	}
	b.wantHit(b.mid(99, 64, 8))
	b.wantMiss(b.mid(0, 64, 8), tier.ReasonEvicted)
	b.must(b.SetBudgets(b.quotaOfA(used)))
	for i := range 100 {
		b.publish(c, b.mid(1000+i, 64, 8))
	}
	if got := b.Pools()[0].UsedBytes; got > used || got < used/2 {
		t.Fatalf("%d bytes are held under a quota of %d", got, used)
	}
}

// Over a lower tier and HBM, with what is read and what is pinned.
func TestAFirstQuotaOverAllTiers(t *testing.T) {
	x := newTwoAndHBM(t, hybrid(1))
	for i := range 10 {
		x.sink(x.mid(1000+i, 64, 8))
	}
	for i := range 5 {
		x.publish(x.c, x.mid(i, 64, 8))
		x.up(x.mid(i, 64, 8))
	}
	for prompt := range 5 {
		for end := 16; end <= 48; end += 16 {
			x.save(x.c, x.saveQuery(1+prompt, end, end-16, tier.Exact), end-16)
		}
	}
	leased, pinned := x.mid(3, 64, 8), x.mid(4, 64, 8)
	row := x.try(leased)
	if !row.Hit {
		t.Fatal(row.Reason)
	}
	_, err := x.Pin(t.Context(), PinQuery{Key: pinned.key, TTL: time.Hour, By: "me"})
	x.must(err)
	other := x.pieceOf(tenantB, 1, x.mid(1, 64, 8).spec)
	x.publishFor(x.c, tenantB, other)

	x.tier.lowered = true
	quota := 2*leased.charge() - 1 // less than what is in use
	x.must(x.SetBudgets(x.quotaOfA(quota)))
	for x.finishAny() {
	}
	x.carryAll()
	x.Sweep()
	tenant := x.cat.Objects.Tenants[tenantA]
	total := func() int64 { return tenant.Total() + x.tier.Used(tenantA) }
	if got := total(); got <= quota || got != tenant.Pinned {
		t.Fatalf("%d bytes are held, %d of them in use", got, tenant.Pinned)
	}
	x.wantHit(pinned)
	x.must(x.c.Release(row.Lease))
	x.Sweep()
	x.tier.lowered = false
	if got := total(); got > quota || got == 0 {
		t.Fatalf("%d bytes are held after the last lease, under a quota of %d", got, quota)
	}
	x.wantHit(pinned)
	x.wantMiss(leased, tier.ReasonEvicted)
	if got := x.statusFor(tenantB, other); got.Status != tier.StatusHit {
		t.Fatalf("another tenant's is %v", got)
	}
	x.audit()
}

// finishAny ends the writes that run, and tells whether there were any.
func (x *twoTiers) finishAny() bool {
	x.cat.Launch()
	n := x.Counters().Writing
	x.tier.finishAll()
	return n > 0
}

// Copies in HBM go before anything else, also under a first quota.
func TestCopiesYieldToAFirstQuota(t *testing.T) {
	x := newTwoAndHBM(t, hybrid(1))
	var ps []piece
	for i := range 4 {
		ps = append(ps, x.mid(1+i, 64, 8))
		x.publish(x.c, ps[i])
		x.up(ps[i])
	}
	x.beginQuota(4*ps[0].charge() + x.costHBM(ps[0].layout.Bytes) + recordOf(1, ps[0].layout))
	x.up(ps[0]) // the last use
	x.move.Limits.Settle()
	if n := x.hbmCounters(); n.Copies != 1 {
		t.Fatalf("%d copies in HBM under a quota for one", n.Copies)
	}
	x.wantPlace(ps[0], tier.PlaceHBM)
	for _, p := range ps[1:] {
		x.wantPlace(p, tier.PlaceDRAM)
	}
	x.audit()
}

// Clients go on while a first quota is given, changed and ended.
func TestCrowdUnderAFirstQuota(t *testing.T) {
	for round := range 20 {
		x := &crowdTest{bench: newBench(t, hybrid(2), crowdOptions)}
		x.closing.Go(func() { // ends before the crowd's audit, which holds every quota to be kept
			rng := rand.New(rand.NewPCG(uint64(round), 3))
			for range 20 {
				time.Sleep(time.Duration(rng.IntN(1000)) * time.Microsecond)
				if err := x.SetBudgets(x.quotaOfA(int64(rng.IntN(4)) * (100 << 10))); err != nil {
					x.Error(err)
				}
			}
			if err := x.SetBudgets(x.quotaOfA(0)); err != nil {
				x.Error(err)
			}
		})
		x.run(30)
		x.must(x.SetBudgets(x.quotaOfA(150 << 10)))
		if got := x.cat.Objects.Tenants[tenantA].Total(); got > 150<<10 {
			t.Fatalf("round %d: %d bytes under a quota of 150 KiB", round, got)
		}
	}
}
