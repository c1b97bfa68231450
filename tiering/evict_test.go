package tiering

import (
	"testing"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/stats"
	"github.com/spliced-kv/spliced/tiering/tier"
)

func quota(segments int64) option {
	return func(c *Config) { c.Tenants[0].QuotaBytes = segments }
}

// charge is what a segment of one rank takes of its tenant's quota, in pages of 4 KiB.
func (p *piece) charge() int64 { return chargeOf(p.layout) + 4*int64(len(p.tokens)) }

// chargeOf is the same for a share of some layout without token ids.
func chargeOf(l profile.Layout) int64 { return (l.Bytes+4095)/4096*4096 + recordOf(1, l) }

// recordOf is what an object takes of its tenant's quota beside pages and token ids:
// 1,280 bytes, and for each rank 96 bytes and its digests.
func recordOf(ranks int, l profile.Layout) int64 {
	digests := 0
	for _, p := range l.Parts {
		digests += gpuipc.Chunks(p.Len)
	}
	return 1280 + int64(ranks)*(96+8*int64(digests))
}

// b0 is a throw-away bench, for sizes.
func b0(t *testing.T) *bench { return newBench(t, hybrid(1)) }

func TestRefusedDemotionIsAnEviction(t *testing.T) {
	var lower *mapTier
	b := newBench(t, hybrid(1), poolOf(1), below(&lower, 1<<30))
	lower.attach(b, true)
	lower.refuse = tier.ErrFull
	c := b.NewSession("c")
	p := b.mid(1, 64, 8)
	b.publish(c, p)
	b.publish(c, b.mid(2, 64, 8))
	b.wantMiss(p, tier.ReasonEvicted)
	if n := b.Counters(); len(lower.offered) != 1 || n.DemotionsRefused != 1 || n.WritesRefused[stats.RefusalFull] != 1 || n.Demoted != 0 || n.EvictedRoom != 1 {
		t.Fatalf("%d offers, len(lower.offered) %v, want 1; DemotionsRefused %v, want 1; WritesRefused[stats.RefusalFull] %v, want 1; Demoted %v, want 0; EvictedRoom %v, want 1", len(lower.offered), len(lower.offered), n.DemotionsRefused, n.WritesRefused[stats.RefusalFull], n.Demoted, n.EvictedRoom)
	}
	o := lower.offered[0]
	if o.Key != p.key || o.Kind != 0 || o.Tenant != tenantA || o.Spec != p.spec || len(o.Tokens) != 64 || len(o.Shares) != 1 || o.Shares[0].Ref.Len() != p.layout.Bytes {
		t.Fatalf("Key %x, want %x; Kind %v, want 0; Tenant %v, want %v; Spec %v, want %v; len(o.Tokens) %v, want 64; len(o.Shares) %v, want 1", o.Key, p.key, o.Kind, o.Tenant, tenantA, o.Spec, p.spec, len(o.Tokens), len(o.Shares))
	}
	b.must(b.Evict(b.mid(2, 64, 8).key))
	if len(lower.removed) != 1 {
		t.Fatal("the tier was not told of a removal")
	}
}

func TestDemotedMemoryIsFreeWhenTheTierIsDone(t *testing.T) {
	var lower *mapTier
	b := newBench(t, hybrid(1), poolOf(2), below(&lower, 1<<30))
	lower.attach(b, true)
	lower.held = true
	c := b.NewSession("c")
	one, two, three := b.mid(1, 64, 8), b.mid(2, 64, 8), b.mid(3, 64, 8)
	b.publish(c, one)
	b.publish(c, two)
	for range 3 { // asking again does not push out more
		_, err := c.Reserve(b.reserveQuery(three, 0))
		b.wantErr(err, tier.ErrBusy)
	}
	if len(lower.offered) != 1 || b.Pools()[0].DemotingBytes != 48<<10+4*64 {
		t.Fatalf("%d objects offered, %v, want len(lower.offered) == 1, b.Pools()[0].DemotingBytes == 48<<10+4*64", len(lower.offered), b.Pools()[0])
	}
	b.wantHit(two)
	b.audit()
	if got, want := b.load(lower.offered[0].Shares[0].Ref), contentOf(one, 0); string(got[:1024]) != string(want[:1024]) {
		t.Fatal("the tier reads other bytes than were published")
	}
	lower.finish(0, nil)
	b.publish(c, three)
	b.wantHit(two)
	b.wantHit(three)
	if n := b.Counters(); n.Demoted != 1 || n.EvictedRoom != 1 {
		t.Fatalf("Demoted %v, want 1; EvictedRoom %v, want 1", n.Demoted, n.EvictedRoom)
	}
}

// A parent may leave in the same breath as its child, which the tier is to have
// after its parent.
func TestWholeChainIsDemotedParentsFirst(t *testing.T) {
	var lower *mapTier
	b := newBench(t, hybrid(1), below(&lower, 1<<30), func(c *Config) { c.PrivateBytes = 96 << 10 })
	lower.attach(b, true)
	lower.held = true
	c := b.NewSession("c")
	b.save(c, b.saveQuery(1, 16, 0, tier.Exact), 0)
	b.save(c, b.saveQuery(1, 32, 16, tier.Exact), 16)
	b.save(c, b.saveQuery(1, 48, 32, tier.Exact), 32)
	_, err := c.Save(b.saveQuery(2, 96, 0, tier.Exact))
	b.wantErr(err, tier.ErrBusy)
	for i, end := range []int{16, 32, 48} {
		b.audit()
		if len(lower.offered) != i+1 || lower.waiting() != 1 {
			t.Fatalf("%d nodes offered, %d are written", len(lower.offered), lower.waiting())
		}
		if o := lower.offered[i]; o.End != end || o.Parent.Key != b.parentHash(end) || o.Kind != tier.Exact {
			t.Fatalf("offer %d: End %v, want %v; Kind %v, want %v", i, o.End, end, o.Kind, tier.Exact)
		}
		lower.finish(0, nil)
	}
	if n := b.Counters(); n.Demoted != 3 || n.Written != 3 {
		t.Fatalf("Demoted %v, want 3; Written %v, want 3", n.Demoted, n.Written)
	}
	b.save(c, b.saveQuery(2, 96, 0, tier.Exact), 0)
}

func (b *bench) parentHash(n int) (h profile.PrefixHash) {
	if n > 16 {
		h = hashOf(1, n-16)
	}
	return h
}

// To demote for a quota would only move the bytes that are too many.
func TestQuotaIsNotPaidByDemotion(t *testing.T) {
	p0 := b0(t).mid(0, 64, 8)
	var lower *mapTier
	b := newBench(t, hybrid(1), quota(p0.charge()), below(&lower, 1<<30))
	lower.attach(b, true)
	c := b.NewSession("c")
	b.publish(c, b.mid(1, 64, 8))
	b.publish(c, b.mid(2, 64, 8))
	if n := b.Counters(); len(lower.offered) != 0 || n.EvictedQuota != 1 || n.Dropped != 1 {
		t.Fatalf("%d objects offered, len(lower.offered) %v, want 0; EvictedQuota %v, want 1; Dropped %v, want 1", len(lower.offered), len(lower.offered), n.EvictedQuota, n.Dropped)
	}
}

func TestOpenListsEveryProblem(t *testing.T) {
	_, err := Open(Config{PageBytes: 5000, PublicBytes: -1, LeaseTTL: -1, Tenants: []Tenant{{ID: 1, Name: "x"}, {ID: 1, Name: "x", QuotaBytes: -1}}})
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok || len(joined.Unwrap()) != 9 {
		t.Fatalf("%v", err)
	}
}

// However much is leased or extended by other nodes: a victim costs one question.
func TestVictimsAreFoundAtOnce(t *testing.T) {
	asked := 0
	b := newBench(t, hybrid(1), poolOf(40), func(c *Config) {
		c.PrivateBytes = 400 << 10
		c.Eviction = func() policy.Eviction { return counting{policy.NewLRU(), &asked} }
	})
	c := b.NewSession("c")
	for i := range 40 {
		p := b.mid(i, 64, 8)
		b.publish(c, p)
		if i < 30 {
			b.lease(c, p)
		}
	}
	b.clock.advance(time.Hour)
	b.Sweep()
	for i := range 5 {
		b.publish(c, b.mid(100+i, 64, 8))
	}
	for i := range 20 { // five chains that grow in turn
		n := 4*(i/5) + 4
		b.save(c, b.saveQuery(i%5, n, n-4, tier.Exact), n-4)
	}
	for i := range 200 {
		b.save(c, b.saveQuery(10+i, 4, 0, tier.Exact), 0)
	}
	n := b.Counters()
	if evicted := int(n.EvictedRoom); asked != evicted || evicted < 100 {
		t.Fatalf("%d questions for %d evictions", asked, evicted)
	}
	if got := b.matchPrefix(0, tier.Exact, 4); got.PrefixReason != tier.ReasonEvicted {
		t.Fatalf("a cold chain was not evicted: PrefixReason %v, want %v", got.PrefixReason, tier.ReasonEvicted)
	}
}

// counting counts how many objects are looked at for victims.
type counting struct {
	policy.Eviction
	asked *int
}

func (p counting) Victim(evictable func(policy.ID) bool) (policy.ID, bool) {
	return p.Eviction.Victim(func(id policy.ID) bool { *p.asked++; return evictable(id) })
}
