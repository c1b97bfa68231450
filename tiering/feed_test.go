package tiering

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/held"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// feed is what a listener has heard: exactly once what came and what has left.
type feed struct {
	t    testing.TB
	held map[tier.Name]bool
}

func (f *feed) Added(w tier.Want) {
	if f.held[w.Name] {
		f.t.Errorf("%v is added twice", w.Name)
	}
	f.held[w.Name] = true
}

func (f *feed) Removed(w tier.Want) {
	if !f.held[w.Name] {
		f.t.Errorf("%v is removed twice", w.Name)
	}
	delete(f.held, w.Name)
}

// Whatever becomes of objects in memory, on disk and beyond the node, what was told of
// them is what a match finds here.
func TestFeedIsWhatMatchesFind(t *testing.T) {
	for seed := range uint64(30) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { walkFeed(t, rand.New(rand.NewPCG(seed, 5))) })
	}
}

func walkFeed(t *testing.T, rng *rand.Rand) {
	f := &feed{t: t, held: map[tier.Name]bool{}}
	x := newApart(t, hybrid(1), poolOf(10), func(c *Config) {
		c.WriteBehind, c.Held = rng.IntN(2) == 0, held.New(f)
		c.Tenants[0].QuotaBytes = int64(rng.IntN(2)) * (600 << 10)
	})
	x.tier.capacity = 400 << 10
	var ps []piece
	for i := range 12 {
		p := x.mid(i, 64, 8)
		if ps = append(ps, p); i%3 == 0 {
			x.keep(p)
		}
	}
	x.keepChain(9, 8, 16)
	ends := []int{8, 16, 24, 32}
	for range 250 {
		x.stepFeed(rng, ps, ends)
		x.wantFeed(f, ps, ends)
	}
	if len(f.held) == 0 {
		t.Error("nothing is held at the end")
	}
}

func (x *apart) stepFeed(rng *rand.Rand, ps []piece, ends []int) {
	x.Helper()
	p := ps[rng.IntN(len(ps))]
	switch rng.IntN(9) {
	case 0, 1:
		if r, err := x.c.Reserve(x.reserveQuery(p, 0)); err == nil {
			x.commitAll(x.c, r, &p.layout, contentOf(p, 0))
		}
	case 2:
		i := rng.IntN(len(ends))
		q := x.saveQuery(1, ends[i], 0, tier.Exact)
		begin := 0
		if i > 0 {
			begin = ends[i-1]
			q.Parent = hashOf(1, begin)
		}
		if r, err := x.c.Save(q); err == nil {
			l := x.profile.CheckpointLayout(q.Tokens - begin)
			x.commitAll(x.c, r, &l, content(&l, 7))
		}
	case 3:
		if row := x.try(p); row.Hit {
			x.must(x.c.Release(row.Lease))
		}
	case 4:
		q := &LoadQuery{Profile: x.id, Tenant: tenantA, Accept: tier.Exact, Hash: hashOf(1+8*rng.IntN(2), ends[rng.IntN(len(ends))])}
		if got, err := x.c.Load(q); err == nil && got.Hit {
			x.must(x.c.Release(got.Lease))
		}
	case 5:
		_ = x.Evict(p.key)
	case 6:
		x.push()
	case 7:
		x.dropAll()
		x.tier.finishAll()
	case 8:
		x.clock.advance(answerTTL)
		x.Sweep()
	}
	x.seekAll()
	x.fetchAll()
	x.carry()
	x.tier.finishAll()
	x.audit()
}

// wantFeed compares what was told with what matches find on this node.
func (x *apart) wantFeed(f *feed, ps []piece, ends []int) {
	x.Helper()
	found := 0
	here := func(n tier.Name, status tier.Status, place tier.Place) {
		is := status == tier.StatusHit && place != tier.PlacePeer
		if is != f.held[n] {
			x.Fatalf("%v: a match finds it %v (place %d), it was told of %v", n, is, place, f.held[n])
		}
		if is {
			found++
		}
	}
	for _, p := range ps {
		got := x.status(p)
		here(tier.Name{Key: p.key}, got.Status, got.Place)
	}
	for _, prompt := range []int{1, 9} {
		for _, end := range ends {
			got := x.matchPrefix(prompt, tier.Exact, uint32(end))
			status := tier.StatusMiss
			if got.PrefixTokens > 0 {
				status = tier.StatusHit
			}
			here(tier.Name{Kind: tier.Exact, Key: [32]byte(profile.PrefixHash(hashOf(prompt, end)))}, status, got.PrefixPlace)
		}
	}
	if found != len(f.held) {
		x.Fatalf("%d are found, %d were told of", found, len(f.held))
	}
}
