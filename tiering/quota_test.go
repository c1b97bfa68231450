package tiering

import (
	"errors"
	"testing"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/policy/profile/profiletest"
	"github.com/spliced-kv/spliced/tiering/internal/move"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/stats"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Segments of a few bytes take a page each: what a tenant holds of the arena is
// bounded by its quota all the same.
func TestQuotaCountsThePagesThatAreHeld(t *testing.T) {
	const limit = 1 << 20
	b := newBench(t, profiletest.Speck(1), quota(limit), func(c *Config) { c.PageBytes, c.PublicBytes = 64<<10, 128<<20 })
	c := b.NewSession("c")
	for i := range 1023 {
		p := b.piece(i, profile.FirstSpec(4))
		if p.layout.Bytes > 200 {
			t.Fatalf("a segment of %d bytes", p.layout.Bytes)
		}
		b.publish(c, p)
		if held := b.cat.Objects.Memory.Pages.UsedBytes(); held > limit {
			t.Fatalf("%d segments of %d bytes hold %d bytes of pages under a quota of %d", i+1, p.layout.Bytes, held, limit)
		}
	}
	pool := b.Pools()[0]
	if used := pool.Tenants[0].UsedBytes; used < pool.UsedBytes || used > limit {
		t.Errorf("the tenant is shown %d bytes, the pool holds %d for it, its quota is %d", used, pool.UsedBytes, limit)
	}
	if n := b.Counters(); pool.Objects != 15 || n.EvictedQuota != 1023-15 {
		t.Errorf("%d segments are held and %d have left, want 15 of 64 KiB and a record each", pool.Objects, n.EvictedQuota)
	}
}

// A stripped node without rows has no page left, but the daemon still knows it: with
// records a quota bounds the chains behind a tenant's leaves.
func TestQuotaCountsNodesWithoutPages(t *testing.T) {
	for _, ranks := range []int{1, 4} {
		limit := int64(ranks) * 64 << 10
		b := newBench(t, profiletest.Speck(ranks), quota(limit), func(c *Config) { c.MaxChain = 1000 })
		c := b.NewSession("c")
		l := b.profile.CheckpointLayout(1)
		saved, stripped := 0, 0
		for ; saved < 1000; saved++ { // two chains in turns: each has the states of the other leave
			chain, n := byte(saved%2), saved/2
			q := &SaveQuery{Profile: b.id, Tenant: tenantA, Kind: tier.Exact, Hash: profile.PrefixHash{1 + chain, byte(n), byte(n >> 8)}, Tokens: n + 1}
			if n > 0 {
				q.Parent = profile.PrefixHash{1 + chain, byte(n - 1), byte((n - 1) >> 8)}
			}
			err := b.trySave(c, q, &l)
			if errors.Is(err, tier.ErrQuota) || errors.Is(err, tier.ErrGone) {
				break
			}
			b.must(err)
			if n := b.Pools()[1].Objects; int64(n)*recordOf(ranks, l) > limit {
				t.Fatalf("%d nodes are held under a quota of %d bytes", n, limit)
			}
		}
		for _, o := range b.cat.Objects.Table.Places() {
			if o != nil && o.Phase == objects.Stripped && o.PageBytes == 0 {
				stripped++
			}
		}
		if stripped < 10 || saved == 1000 {
			t.Errorf("%d ranks: %d nodes were saved in chains, %d of those held have no page", ranks, saved, stripped)
		}
	}
}

// trySave publishes a checkpoint of all ranks unless there is no room for it.
func (b *bench) trySave(c *Session, q *SaveQuery, l *profile.Layout) error {
	for q.Rank = range b.profile.TPSize() {
		r, err := c.Save(q)
		if err != nil {
			return err
		}
		b.commitAll(c, r, l, content(l, uint64(q.Tokens)))
	}
	return nil
}

// What a tenant has too much below leaves a bounded number of entries at a time, with
// the lock free in between.
func TestTrimmingLetsOthersHaveTheLock(t *testing.T) {
	over := func() (*twoTiers, *objects.Tenant) {
		x := newTwoTiers(t, hybrid(1), quota(1<<40))
		for i := range 4 {
			x.sink(x.mid(i, 64, 8))
		}
		mem, disk := takes(t)
		tenant := x.cat.Objects.Tenants[tenantA]
		tenant.QuotaBytes = disk + mem
		return x, tenant
	}
	x, tenant := over()
	steps := 1
	trim := func() error {
		x.cat.Mu.Lock()
		defer x.cat.Mu.Unlock()
		return x.move.Evictor.TrimTenantLocked(tenant)
	}
	for ; errors.Is(trim(), objects.ErrAgain); steps++ {
		if n := len(x.tier.entries); n != 4-steps {
			t.Fatalf("%d entries are left after step %d of a sweep", n, steps)
		}
	}
	if steps != 2 || len(x.tier.entries) != 2 {
		t.Errorf("%d entries are left after %d steps, want 2 after 2", len(x.tier.entries), steps)
	}

	x, _ = over()
	p := x.mid(9, 64, 8)
	o := &objects.Object{Profile: x.profileState(), Tenant: x.cat.Objects.Tenants[tenantA], Pool: x.cat.Objects.Pools[objects.PublicPool], Spec: p.spec}
	o.Begin, o.End = p.spec.Interior()
	o.End += o.Begin
	x.cat.Objects.Memory.Measure(o)
	x.cat.Mu.Lock()
	err := x.move.Evictor.MakeRoomLocked(o, move.Spared{})
	x.cat.Mu.Unlock()
	if n := len(x.tier.entries); n != 3 || !errors.Is(err, objects.ErrAgain) {
		t.Errorf("room for a segment in one step: %v, %d entries are left, want 3 and another step", err, n)
	}
	x.publish(x.c, p)
	x.wantHit(p)
	x.audit()
}

// takes is what memory and mapTier take for a segment of 64 tokens, of one rank.
func takes(t *testing.T) (mem, disk int64) {
	p := b0(t).mid(0, 64, 8)
	return p.charge(), 100 + (p.layout.Bytes+511)/512*512
}

func TestQuotaSpansBothTiers(t *testing.T) {
	mem, disk := takes(t)
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
	mem, disk := takes(t)
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
	mem, disk := takes(t)
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
	mem, disk := takes(t)
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
	mem, disk := takes(t)
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
	mem, disk := takes(t)
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
	t := x.cat.Objects.Tenants[tenantA]
	was := t.QuotaBytes
	t.QuotaBytes = 1 << 40
	x.sink(p)
	t.QuotaBytes = was
}

// A tier that comes up late may hold more than a tenant's quota.
func TestSweepBringsATenantBackUnderItsQuota(t *testing.T) {
	_, disk := takes(t)
	x := newTwoTiers(t, hybrid(1), quota(1<<40))
	for i := range 4 {
		x.sink(x.mid(i, 64, 8))
	}
	x.cat.Objects.Tenants[tenantA].QuotaBytes = 2*disk + 5
	x.Sweep()
	x.audit()
	if got := x.tier.Used(tenantA); got != 2*disk {
		t.Fatalf("%d bytes below", got)
	}
	x.wantOnDisk(x.mid(3, 64, 8))
	x.wantMiss(x.mid(0, 64, 8), tier.ReasonEvicted)
}

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
		"a negative quota":    {Budgets{Public: 8 << 20, Private: 8 << 20, Quotas: map[tier.TenantID]int64{tenantA: -1}}, tier.ErrInvalid},
		"a quota of nobody":   {Budgets{Public: 8 << 20, Private: 8 << 20, Quotas: map[tier.TenantID]int64{99: 1 << 20}}, tier.ErrInvalid},
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

// One rank's bytes fit an int64, those of 1024 ranks do not.
func TestSizesOfAllRanksDoNotOverflow(t *testing.T) {
	id := profile.Identity{Model: "big", Weights: [32]byte{3}, Tokenizer: "bytes", TPSize: 1024}
	for range 1100 {
		id.Layers = append(id.Layers, profile.Layer{Kind: profile.KindMLA, Attention: profile.Attention{
			KVHeads: 1, KeyDim: 65536, ValueDim: 65536, DType: profile.F32, Keys: profile.AtZero,
		}})
	}
	b := newBench(t, id)
	c := b.NewSession("c")
	_, err := c.Save(&SaveQuery{Profile: b.id, Tenant: tenantA, Kind: tier.Exact, Hash: profile.PrefixHash{1}, Tokens: profile.MaxTokens})
	b.wantErr(err, tier.ErrFull)
	_, err = c.Reserve(b.reserveQuery(b.piece(1, profile.FirstSpec(100_000)), 0))
	b.wantErr(err, tier.ErrFull)
	b.wantUsed(0, 0)
	if n := b.Counters().RefusedFull; n != 2 {
		t.Fatalf("%d refusals counted", n)
	}
}

func TestTokenIDsAreCounted(t *testing.T) {
	b := newBench(t, hybrid(1), func(c *Config) {
		c.PublicBytes = 512 << 10
		c.Tenants[1].QuotaBytes = 100 << 10
	})
	c := b.NewSession("c")
	spec := profile.SegmentSpec{Role: profile.RoleMid, Head: 100_000, Tokens: 100_010} // 10 tokens are kept, and 390 KiB of ids
	p := b.piece(1, spec)
	r, err := c.Reserve(b.reserveQuery(p, 0))
	b.must(err)
	b.wantUsed(b.cost(p), 0)
	if used := b.Pools()[0].UsedBytes; used < 400_000 {
		t.Fatalf("%d bytes used", used)
	}
	_, err = c.Reserve(b.reserveQuery(b.piece(2, spec), 0))
	b.wantErr(err, tier.ErrFull)
	b.must(c.Abort(r.ID))
	b.wantUsed(0, 0)
	q := b.reserveQuery(b.pieceOf(tenantB, 3, spec), 0)
	q.Tenant = tenantB
	_, err = c.Reserve(q)
	b.wantErr(err, tier.ErrQuota)
}
