package tiering

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/internal/index"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/internal/serve"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// primed returns a piece as it is after a primer.
func (b *bench) primed(p piece, primer byte) piece {
	p.spec.Primer = profile.PrimerID{primer}
	p.key = b.profile.SegmentKey(b.cat.Objects.Tenants[tenantA].Salt, p.spec, p.tokens)
	return p
}

// A row has two keys where the segment has a second variant: the first that hits is answered.
func TestMatchPrefersTheFirstOfTwoVariants(t *testing.T) {
	b := newBench(t, hybrid(1))
	c := b.NewSession("c")
	hit := func(other bool) SegmentStatus {
		return SegmentStatus{Status: tier.StatusHit, Place: tier.PlaceDRAM, Other: other, Tokens: 48}
	}
	miss := SegmentStatus{Status: tier.StatusMiss, Reason: tier.ReasonUnknown}
	q := &MatchQuery{Profile: b.id, Tenant: tenantA, Accept: tier.Exact | tier.Spliced}
	var want []SegmentStatus
	variants, misses := uint64(0), uint64(0)
	for i := range 2*serve.MatchRows + 3 { // more than one critical section
		p := b.mid(i, 64, 8)
		second := b.primed(p, 1)
		row := miss
		switch i % 5 {
		case 0: // neither
			misses++
		case 1:
			b.publish(c, p)
			row = hit(false)
		case 2:
			b.publish(c, second)
			row = hit(true)
			variants++
		case 3:
			b.publish(c, p)
			b.publish(c, second)
			row = hit(false)
		case 4: // it has no second variant
			b.publish(c, second)
			second.key = profile.SegmentKey{}
			misses++
		}
		q.Keys, q.Others, want = append(q.Keys, p.key), append(q.Others, second.key), append(want, row)
	}
	for i := range 32 {
		q.Positions, q.Prefixes = append(q.Positions, uint32(i+1)), append(q.Prefixes, hashOf(1, i+1))
	}
	b.save(c, b.saveQuery(1, 16, 0, tier.Exact), 0)
	var r MatchResult
	match := func() {
		t.Helper()
		b.must(b.Match(q, &r))
		if len(r.Segments) != len(want) || r.PrefixTokens != 16 {
			t.Fatalf("%d rows for %d keys, a prefix of %d tokens", len(r.Segments), len(want), r.PrefixTokens)
		}
		for i, got := range r.Segments {
			if got != want[i] {
				t.Fatalf("key %d: got %v, want %v", i, got, want[i])
			}
		}
	}
	match()
	n, hits := b.Counters(), uint64(len(q.Keys))-misses
	if n.HitSegmentsVariant != variants || n.HitSegments != hits || n.HitTokens != 48*hits || n.MissSegments[tier.ReasonUnknown] != misses {
		t.Fatalf("counted %d hits of %d tokens, %d of another variant, %d misses; want %d, %d, %d, %d", n.HitSegments, n.HitTokens,
			n.HitSegmentsVariant, n.MissSegments[tier.ReasonUnknown], hits, 48*hits, variants, misses)
	}
	if n := testing.AllocsPerRun(100, func() { b.must(b.Match(q, &r)) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
	q.Others = nil // no row has a second variant
	for i := range want {
		if want[i].Other {
			want[i] = miss
		}
	}
	match()
	if n := testing.AllocsPerRun(100, func() { b.must(b.Match(q, &r)) }); n > 0 {
		t.Errorf("%v allocations without variants", n)
	}
}

// While one variant is being filled, the other one is of use.
func TestMatchTakesTheVariantThatIsHeldBeforeTheOneThatComes(t *testing.T) {
	b := newBench(t, hybrid(1))
	c := b.NewSession("c")
	p := b.mid(1, 64, 8)
	second := b.primed(p, 1)
	_, err := c.Reserve(b.reserveQuery(p, 0))
	b.must(err)
	q := &MatchQuery{Profile: b.id, Tenant: tenantA, Keys: [][32]byte{p.key}, Others: [][32]byte{second.key}}
	var r MatchResult
	b.must(b.Match(q, &r))
	if want := (SegmentStatus{Status: tier.StatusPending, Reason: tier.ReasonPending}); r.Segments[0] != want {
		t.Fatalf("got %v, want %v", r.Segments[0], want)
	}
	b.publish(c, second)
	b.must(b.Match(q, &r))
	if got := r.Segments[0]; got.Status != tier.StatusHit || !got.Other {
		t.Fatalf("got %v, want a hit of the other variant", got)
	}
}

func TestMissesAreCountedInTheTokensTheyCost(t *testing.T) {
	b := newBench(t, hybrid(1), poolOf(1), func(c *Config) { c.MaxDeparted = 1 })
	c := b.NewSession("c")
	p, q := b.mid(1, 64, 8), b.mid(2, 60, 8)
	b.publish(c, p)
	b.publish(c, q)
	b.wantMiss(p, tier.ReasonEvicted)
	b.must(b.Evict(q.key))
	b.wantMiss(q, tier.ReasonRemoved)
	n := b.Counters()
	if n.MissTokens[tier.ReasonEvicted] != 48 || n.MissTokens[tier.ReasonRemoved] != 44 || n.MissSegments[tier.ReasonEvicted] != 1 {
		t.Fatalf("MissTokens[tier.ReasonEvicted] %v, want 48; MissTokens[tier.ReasonRemoved] %v, want 44; MissSegments[tier.ReasonEvicted] %v, want 1", n.MissTokens[tier.ReasonEvicted], n.MissTokens[tier.ReasonRemoved], n.MissSegments[tier.ReasonEvicted])
	}
	b.wantMiss(p, tier.ReasonUnknown) // only the last MaxDeparted keys are remembered
}

func TestMatchRefusesNonsense(t *testing.T) {
	b := newBench(t, hybrid(1))
	for name, q := range map[string]*MatchQuery{
		"no such profile":       {Profile: 9, Tenant: tenantA},
		"no such tenant":        {Profile: b.id, Tenant: 9},
		"no such kind":          {Profile: b.id, Tenant: tenantA, Accept: 8},
		"prefix missing":        {Profile: b.id, Tenant: tenantA, Positions: []uint32{1}},
		"positions go backward": {Profile: b.id, Tenant: tenantA, Positions: []uint32{2, 1}, Prefixes: make([][32]byte, 2)},
		"variants missing":      {Profile: b.id, Tenant: tenantA, Keys: make([][32]byte, 2), Others: make([][32]byte, 1)},
		"positions repeat":      {Profile: b.id, Tenant: tenantA, Positions: []uint32{2, 2}, Prefixes: make([][32]byte, 2)},
	} {
		var r MatchResult
		if err := b.Match(q, &r); err == nil {
			t.Errorf("%s: no error", name)
		} else {
			b.wantErr(err, tier.ErrInvalid)
		}
	}
}

// crowd puts n segments into the catalogue without memory behind them.
func crowd(b *bench, n int) (keys [][32]byte) {
	rng := rand.New(rand.NewPCG(3, 3))
	ps, err := b.Store.cat.Profile(b.id)
	b.must(err)
	for range n {
		var key [32]byte
		for i := range key {
			key[i] = byte(rng.Uint32())
		}
		o := &objects.Object{
			Key: key, Profile: ps, Tenant: b.cat.Objects.Tenants[tenantA], Pool: b.cat.Objects.Pools[objects.PublicPool],
			Spec: profile.FirstSpec(512), End: 512, Depth: 1, Phase: objects.Whole, Created: time.Now(),
		}
		b.cat.Objects.Names.Segments.Put(&o.Key, o)
		keys = append(keys, key)
	}
	return keys
}

func BenchmarkMatch(b *testing.B) {
	for _, n := range []int{1000, 100_000} {
		for _, hits := range []bool{true, false} {
			b.Run(fmt.Sprintf("keys=32/held=%d/hits=%v", n, hits), func(b *testing.B) {
				bench := newBench(b, hybrid(1))
				keys := crowd(bench, n)
				b.Cleanup(func() { bench.cat.Objects.Names.Segments = index.New[objects.Object]() })
				rng := rand.New(rand.NewPCG(4, 4))
				rng.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
				if !hits {
					for i := range keys {
						keys[i][31] ^= 1
					}
				}
				q := &MatchQuery{Profile: bench.id, Tenant: tenantA}
				var r MatchResult
				b.ReportAllocs()
				at := 0
				for b.Loop() {
					if at+32 > len(keys) {
						at = 0
					}
					q.Keys = keys[at : at+32]
					at += 32
					if err := bench.Match(q, &r); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func BenchmarkAcquireRelease(b *testing.B) {
	bench := newBench(b, hybrid(1))
	c := bench.NewSession("c")
	p := bench.mid(1, 64, 8)
	bench.publish(c, p)
	q := &AcquireQuery{Profile: bench.id, Tenant: tenantA, Keys: [][32]byte{p.key}}
	var rows []Acquired
	b.ReportAllocs()
	for b.Loop() {
		rows, _ = c.Acquire(q, rows[:0])
		if err := c.Release(rows[0].Lease); err != nil {
			b.Fatal(err)
		}
	}
}
