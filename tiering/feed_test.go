package tiering

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/held"
	"github.com/spliced-kv/spliced/tiering/internal/move"
	"github.com/spliced-kv/spliced/tiering/stats"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/transfer"
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
	var seen stats.Counters
	seeds := uint64(30)
	if testing.Short() {
		seeds = 10
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			n := walkFeed(t, rand.New(rand.NewPCG(seed, 5)))
			for i, ended := range n.Beyond.Fetches {
				seen.Beyond.Fetches[i] += ended
			}
			seen.Beyond.FindMisses += n.Beyond.FindMisses
			seen.Demoted += n.Demoted
			seen.TrimmedBytes += n.TrimmedBytes
		})
	}
	for what, n := range map[string]uint64{
		"fetched": seen.Beyond.Fetches[transfer.Done], "corrupt": seen.Beyond.Fetches[transfer.Corrupt], "gone": seen.Beyond.Fetches[transfer.Gone],
		"not found": seen.Beyond.FindMisses, "demoted": seen.Demoted, "trimmed": seen.TrimmedBytes,
	} {
		if n == 0 {
			t.Errorf("in no walk something was %s", what)
		}
	}
}

func walkFeed(t *testing.T, rng *rand.Rand) stats.Counters {
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
		x.trouble(rng, ps)
		x.stepFeed(rng, ps, ends)
		x.wantFeed(f, ps, ends)
	}
	return x.Counters()
}

// trouble sets what goes wrong beyond the node in the next step: nothing, as a rule.
func (x *apart) trouble(rng *rand.Rand, ps []piece) {
	n := x.far
	n.spoil, n.gone, n.unread, n.unfound, n.renumber = nil, false, nil, nil, false
	switch rng.IntN(16) {
	case 0:
		n.spoil = func(data []byte) { data[rng.IntN(len(data))]++ }
	case 1:
		n.gone = true
	case 2:
		n.unread = tier.ErrUnavailable
	case 3:
		n.unfound = tier.ErrUnavailable
	case 4: // they forget something, and are still believed
		_ = n.home.Evict(ps[3*rng.IntN(4)].key)
	case 5: // and are not believed any more, or are again
		name := tier.Name{Key: ps[3*rng.IntN(4)].key}
		n.believe(name, !n.believed[name])
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
		x.clock.advance(move.AnswerTTL)
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
