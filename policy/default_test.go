package policy_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/policy"
)

// stream is a sequence of uses of objects of one size, ten a second.
type stream func(i int, rng *rand.Rand) (key uint64)

// rate is the share of uses that a pool of so many objects serves.
func rate(uses, capacity int, s stream, p policy.Eviction, tick time.Duration) float64 {
	rng := rand.New(rand.NewPCG(1, 2))
	at, what := map[uint64]policy.ID{}, map[policy.ID]uint64{}
	next, hit := policy.ID(0), 0
	for i := range uses {
		now := epoch.Add(time.Duration(i) * tick)
		key := s(i, rng)
		if id, ok := at[key]; ok {
			hit++
			p.Touch(id, now)
			continue
		}
		if len(at) == capacity {
			id, _ := p.Victim(anyID)
			p.Remove(id)
			delete(at, what[id])
			delete(what, id)
		}
		next++
		at[key], what[next] = next, key
		p.Insert(next, policy.Item{Bytes: 1 << 20, Tokens: 512, Key: key}, now)
	}
	return float64(hit) / float64(uses)
}

// loop comes round to everything, but to more than there is room for.
func loop(i int, _ *rand.Rand) uint64 { return uint64(i%1500) + 1 }

// skewed has few keys that come often.
func skewed(_ int, rng *rand.Rand) uint64 {
	return uint64(math.Pow(20_000, rng.Float64()))
}

// scans interleaves keys that never return with a hot set that changes.
func scans(i int, rng *rand.Rand) uint64 {
	if i%2 == 1 {
		return uint64(1_000_000 + i)
	}
	return uint64(i/20_000)*10_000 + rng.Uint64N(800) + 1
}

// recent returns to what was used lately, the sooner the likelier: the best
// order is that of recency.
func recent() stream {
	var past []uint64
	return func(i int, rng *rand.Rand) uint64 {
		key := uint64(i + 1)
		if back := int(rng.ExpFloat64() * 400); back < len(past) && rng.IntN(5) > 0 {
			key = past[len(past)-1-back]
		}
		past = append(past, key)
		return key
	}
}

func TestDefaultFindsOutHowObjectsReturn(t *testing.T) {
	const uses, capacity = 60_000, 1000
	for _, c := range []struct {
		name    string
		stream  func() stream
		least   float64 // of all uses
		overLRU float64 // added to LRU's
	}{
		// Two thirds of a loop fit, and no order can serve more of it.
		{"loop", func() stream { return loop }, 0.60, 0.60},
		{"skewed", func() stream { return skewed }, 0, 0.01},
		{"scans", func() stream { return scans }, 0, 0.10},
		{"recent", recent, 0, -0.005},
	} {
		ticks := []time.Duration{100 * time.Millisecond, 0, -time.Second}
		if testing.Short() {
			ticks = ticks[:1]
		}
		for _, tick := range ticks {
			got := rate(uses, capacity, c.stream(), policy.NewDefault(), tick)
			lru := rate(uses, capacity, c.stream(), policy.NewLRU(), tick)
			t.Logf("%-6s with %6v between uses: %.4f, LRU %.4f", c.name, tick, got, lru)
			if got < max(c.least, lru+c.overLRU) {
				t.Errorf("%s with %v between uses: %.4f, want %.4f", c.name, tick, got, max(c.least, lru+c.overLRU))
			}
		}
	}
}

// Conversations that go on from their last state: states in the middle are never
// asked for again, and the policy is told no more than what extends what.
func TestDefaultDropsTheMiddleOfChainsFirst(t *testing.T) {
	p := policy.NewDefault()
	var next policy.ID
	chains := make([][]policy.ID, 20)
	now := epoch
	for turn := range 400 {
		now = now.Add(time.Second)
		chain := &chains[turn%len(chains)]
		item := policy.Item{Bytes: 100, Tokens: 100}
		if n := len(*chain); n > 0 {
			item.Extends = (*chain)[n-1]
			p.Touch(item.Extends, now)
			p.Update(item.Extends, policy.Item{Bytes: 90, Tokens: 100, Extends: before(*chain)})
		}
		next++
		p.Insert(next, item, now)
		*chain = append(*chain, next)
	}
	for left := p.Len(); left > len(chains); left-- {
		id := evict(t, p)
		for c, chain := range chains {
			at := slices.Index(chain, id)
			if at < 0 {
				continue
			}
			if at == len(chain)-1 {
				t.Fatalf("evicted the end of a chain with %d objects left for %d chains", left, len(chains))
			}
			chain = slices.Delete(chain, at, at+1)
			p.Update(chain[at], policy.Item{Bytes: 90, Tokens: 200, Extends: before(chain[:at+1])})
			chains[c] = chain
		}
	}
}

// before is what the last object of a chain extends.
func before(chain []policy.ID) policy.ID {
	if len(chain) < 2 {
		return 0
	}
	return chain[len(chain)-2]
}

func TestDefaultPrefersDensityAmongEquals(t *testing.T) {
	p := policy.NewDefault()
	p.Insert(1, policy.Item{Bytes: 100, Tokens: 1000}, epoch)
	p.Insert(2, policy.Item{Bytes: 100, Tokens: 10}, epoch)
	p.Insert(3, policy.Item{Bytes: 100, Tokens: 100}, epoch)
	for _, want := range []policy.ID{2, 3, 1} {
		if got := evict(t, p); got != want {
			t.Fatalf("evicted %d, want %d", got, want)
		}
	}
}

func TestDefaultGoesOnBesidesWhatIsRefused(t *testing.T) {
	p := policy.NewDefault()
	for id := policy.ID(1); id <= 500; id++ {
		p.Insert(id, policy.Item{Bytes: 100, Tokens: int(id)}, epoch.Add(time.Duration(id%7)*time.Second))
	}
	want := []policy.ID{}
	refused := map[policy.ID]bool{}
	for range 500 {
		id, ok := p.Victim(func(id policy.ID) bool { return !refused[id] })
		if !ok || refused[id] {
			t.Fatalf("victim %d, %v with %d refused", id, ok, len(refused))
		}
		refused[id] = true
		want = append(want, id)
	}
	// The order of those asked for around refusals is that of plain eviction.
	for i, id := range want {
		if got := evict(t, p); got != id {
			t.Fatalf("eviction %d is %d; around refusals it was %d", i, got, id)
		}
	}
}
