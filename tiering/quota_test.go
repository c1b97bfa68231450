package tiering

import (
	"errors"
	"testing"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/policy/profile/profiletest"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
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
		if held := b.objects.Pages.UsedBytes(); held > limit {
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
		for _, o := range b.objects.Table.Places() {
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

// A record bounds what the heap has of an object, in all its policies.
func TestRecordBoundsTheHeap(t *testing.T) {
	const n = 20_000
	for _, p := range scalePolicies {
		var lower *mapTier
		b := newBench(t, slim(), quota(1<<40), below(&lower, 1<<40), func(c *Config) {
			lower.refuse = tier.ErrFull
			c.PublicBytes, c.PrivateBytes, c.Eviction = 4096, n*4096, p.eviction
		})
		before := heapBytes()
		t.Cleanup(b.empty)
		hashes := b.populate(n)
		took := (heapBytes() - before - int64(len(hashes))*32) / n
		if record := recordOf(1, b.profile.CheckpointLayout(8)); took > record {
			t.Errorf("%s: %d bytes of heap for a checkpoint, its record is %d", p.name, took, record)
		} else {
			t.Logf("%s: %d bytes of heap for a checkpoint, its record is %d", p.name, took, record)
		}
	}
}

// What a tenant has too much below leaves a bounded number of entries at a time, with
// the lock free in between.
func TestTrimmingLetsOthersHaveTheLock(t *testing.T) {
	over := func() (*twoTiers, *objects.Tenant) {
		x := newTwoTiers(t, hybrid(1), quota(1<<40))
		for i := range 4 {
			x.sink(x.mid(i, 64, 8))
		}
		p0 := x.mid(0, 64, 8)
		tenant := x.objects.Tenants[tenantA]
		tenant.QuotaBytes = x.below(p0) + p0.charge()
		return x, tenant
	}
	x, tenant := over()
	steps := 1
	trim := func() error {
		x.mu.Lock()
		defer x.mu.Unlock()
		return x.trimTenantLocked(tenant)
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
	o := &objects.Object{Profile: x.profileState(), Tenant: x.objects.Tenants[tenantA], Pool: x.objects.Pools[objects.PublicPool], Spec: p.spec}
	o.Begin, o.End = p.spec.Interior()
	o.End += o.Begin
	x.objects.Measure(o)
	x.mu.Lock()
	err := x.makeRoomLocked(o, spared{})
	x.mu.Unlock()
	if n := len(x.tier.entries); n != 3 || !errors.Is(err, objects.ErrAgain) {
		t.Errorf("room for a segment in one step: %v, %d entries are left, want 3 and another step", err, n)
	}
	x.publish(x.c, p)
	x.wantHit(p)
	x.audit()
}
