package tiering

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/decision"
	"github.com/spliced-kv/spliced/tiering/internal/move"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// slim is a model whose checkpoints of a few tokens fill one page of 4 KiB.
func slim() profile.Identity {
	id := tiny(1)
	id.Model = "slim"
	return id
}

// populate publishes n checkpoints of 8 tokens, each eighth extending the one
// before it, with pages that nobody has written yet.
func (b *bench) populate(n int) (hashes [][32]byte) {
	ps, err := b.Store.cat.Profile(b.id)
	b.must(err)
	rng := rand.New(rand.NewPCG(5, 5))
	l := ps.CheckpointParts(8)
	now := b.clock.Now()
	var up *objects.Object
	b.cat.Mu.Lock()
	defer b.cat.Mu.Unlock()
	for i := range n {
		o := &objects.Object{Kind: tier.Exact, Profile: ps, Tenant: b.cat.Objects.Tenants[tenantA], Pool: b.cat.Objects.Pools[objects.PrivatePool], End: 8, Depth: 1, Publisher: "crowd"}
		for w := 0; w < 32; w += 8 {
			binary.LittleEndian.PutUint64(o.Key[w:], rng.Uint64())
		}
		if i%8 == 7 {
			o.Parent, o.Begin, o.End, o.Depth, o.Extends, o.ExtendsKind = up, up.End, up.End+8, up.Depth+1, up.Key, tier.Exact
		}
		b.cat.Objects.Memory.Measure(o)
		b.cat.Objects.Memory.Allocate(o, l.Bytes)
		o.Shares[0].Digests = make([]uint64, l.Chunks())
		o.Created, o.Used, o.Fill = now, now, objects.NewFill(o, l)
		b.cat.Objects.Link(o)
		b.cat.Objects.Publish(o, now.Add(time.Duration(i)*time.Microsecond), decision.Filled)
		hashes = append(hashes, o.Key)
		up = o
	}
	b.clock.advance(time.Duration(n) * time.Microsecond)
	return hashes
}

// large is a bench whose private pool holds n checkpoints and no more.
func large(t testing.TB, n int, eviction func() policy.Eviction) (*bench, [][32]byte) {
	b := newBench(t, slim(), func(c *Config) {
		c.PublicBytes, c.PrivateBytes, c.Eviction = 4096, int64(n)*4096, eviction
	})
	hashes := b.populate(n)
	t.Cleanup(b.empty) // before the audit, which compares all objects with all
	return b, hashes
}

var scalePolicies = []struct {
	name     string
	eviction func() policy.Eviction
}{{"lru", policy.NewLRU}, {"default", policy.NewDefault}}

// BenchmarkAdmit saves a checkpoint into a full pool: reservation, eviction, the
// commit of each part, publication.
func BenchmarkAdmit(b *testing.B) {
	for _, p := range scalePolicies {
		for _, n := range []int{1000, 1_000_000} {
			b.Run(fmt.Sprintf("policy=%s/held=%d", p.name, n), func(b *testing.B) {
				bench, _ := large(b, n, p.eviction)
				c := bench.NewSession("c")
				l := bench.profile.CheckpointLayout(8)
				data := content(&l, 1)
				items := make([]CommitItem, len(l.Parts))
				for i, part := range l.Parts {
					items[i] = bench.item(0, i, 0, data[part.Off:part.Off+part.Len])
				}
				for i, part := range l.Parts {
					items[i].Src = bench.stage(part.Off, data[part.Off:part.Off+part.Len])
				}
				q := &SaveQuery{Profile: bench.id, Tenant: tenantA, Kind: tier.Exact, Tokens: 8}
				next := uint64(0)
				b.ReportAllocs()
				for b.Loop() {
					next++
					binary.LittleEndian.PutUint64(q.Hash[:], next*0x9e3779b97f4a7c15)
					bench.clock.advance(time.Microsecond)
					r, err := c.Save(q)
					bench.must(err)
					for i := range items {
						items[i].Reservation = r.ID
						_, err := c.Commit(bench.ctx, items[i])
						bench.must(err)
					}
				}
				b.StopTimer()
				if n := bench.Counters(); n.EvictedRoom < n.Published {
					b.Fatalf("%d published, %d evicted", n.Published, n.EvictedRoom)
				}
			})
		}
	}
}

// BenchmarkLoadRelease leases one checkpoint after another and gives it back.
func BenchmarkLoadRelease(b *testing.B) {
	for _, p := range scalePolicies {
		for _, n := range []int{1000, 1_000_000} {
			b.Run(fmt.Sprintf("policy=%s/held=%d", p.name, n), func(b *testing.B) {
				bench, hashes := large(b, n, p.eviction)
				c := bench.NewSession("c")
				rng := rand.New(rand.NewPCG(4, 4))
				q := &LoadQuery{Profile: bench.id, Tenant: tenantA, Accept: tier.Exact}
				b.ReportAllocs()
				for b.Loop() {
					bench.clock.advance(time.Microsecond)
					q.Hash = hashes[rng.IntN(len(hashes))]
					l, err := c.Load(q)
					bench.must(err)
					bench.must(c.Release(l.Lease))
				}
			})
		}
	}
}

// BenchmarkMatchPrefix asks for the longest of 32 prefixes, of which one is held.
func BenchmarkMatchPrefix(b *testing.B) {
	for _, n := range []int{1000, 1_000_000} {
		b.Run(fmt.Sprintf("prefixes=32/held=%d", n), func(b *testing.B) {
			bench, hashes := large(b, n, policy.NewDefault)
			rng := rand.New(rand.NewPCG(4, 4))
			q := &MatchQuery{Profile: bench.id, Tenant: tenantA, Accept: tier.Exact}
			for i := range 32 {
				q.Positions = append(q.Positions, uint32(8+8*i))
				q.Prefixes = append(q.Prefixes, [32]byte{byte(i), 1, 2, 3})
			}
			var r MatchResult
			b.ReportAllocs()
			for b.Loop() {
				q.Prefixes[0] = hashes[8*rng.IntN(len(hashes)/8)]
				if err := bench.Match(q, &r); err != nil || r.PrefixTokens != 8 {
					b.Fatalf("err %v, want nil; PrefixTokens %v, want 8, %v", err, r.PrefixTokens, err)
				}
			}
		})
	}
}

// empty evicts what may leave.
func (b *bench) empty() {
	b.cat.Mu.Lock()
	defer b.cat.Mu.Unlock()
	for _, p := range b.cat.Objects.Pools {
		for p.Used > p.Pinned {
			b.move.Evictor.EvictLocked(p.Evict, move.ForRoom, nil)
		}
	}
}

// What a node of the tree of checkpoints costs beside its pages. A record bounds what the heap
// has of it in all its policies, of which a quota adds one.
func TestMemoryOfANodeIsBounded(t *testing.T) {
	const n = 20_000
	for _, p := range scalePolicies {
		for _, limited := range []bool{false, true} {
			var lower *mapTier
			options := []option{func(c *Config) { c.PublicBytes, c.PrivateBytes, c.Eviction = 4096, n*4096, p.eviction }}
			if limited {
				options = append(options, quota(1<<40), below(&lower, 1<<40), func(*Config) { lower.refuse = tier.ErrFull })
			}
			b := newBench(t, slim(), options...)
			limit := int64(1200)
			if limited {
				limit = recordOf(1, b.profile.CheckpointLayout(8))
			}
			before := heapBytes()
			t.Cleanup(b.empty)
			hashes := b.populate(n)
			took := (heapBytes() - before - int64(len(hashes))*32) / n
			t.Logf("%s, quota %v: %d bytes a checkpoint, %d of them the object", p.name, limited, took, unsafe.Sizeof(objects.Object{}))
			if took > limit {
				t.Errorf("%s, quota %v: %d bytes a checkpoint, want %d at most", p.name, limited, took, limit)
			}
		}
	}
}

func heapBytes() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
