//go:build lockholds

package tiering

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// BenchmarkLockHolds is how long the store's lock is held while one save evicts
// 10,000 checkpoints beside matches, loads and releases. A hold of more than a few
// dozen microseconds is named after who let go; where no core is free, the
// scheduler's share is in it.
func BenchmarkLockHolds(b *testing.B) {
	const held = 10_000
	for _, p := range scalePolicies {
		b.Run("policy="+p.name, func(b *testing.B) { lockHolds(b, held, p.eviction) })
	}
}

func lockHolds(b *testing.B, held int, eviction func() policy.Eviction) {
	bench, hashes := large(b, held, eviction)
	var times []time.Duration
	for b.Loop() {
		b.StopTimer()
		bench.cat.Mu.Take() // what filled memory
		b.StartTimer()
		bench.busyWhile(hashes, func(c *Session) {
			r, err := c.Save(&SaveQuery{Profile: bench.id, Tenant: tenantA, Kind: tier.Exact, Hash: [32]byte{1}, Tokens: bench.tokensOf(held - 64)})
			bench.must(err)
			bench.must(c.Abort(r.ID))
		})
		b.StopTimer()
		got, worst := bench.cat.Mu.Take()
		times = append(times, got...)
		for _, w := range worst {
			b.Log(w)
		}
		bench.empty()
		bench.populate(held)
		b.StartTimer()
	}
	report(b, times)
}

// busyWhile makes requests for what is held while f runs.
func (b *bench) busyWhile(hashes [][32]byte, f func(*Session)) {
	stop := make(chan struct{})
	var others sync.WaitGroup
	until := func(request func(*Session, int)) {
		others.Go(func() {
			c := b.NewSession("other")
			defer c.Close()
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
					request(c, i)
				}
			}
		})
	}
	until(func(_ *Session, i int) {
		q := &MatchQuery{Profile: b.id, Tenant: tenantA, Accept: tier.Exact}
		for k := range 32 {
			q.Positions, q.Prefixes = append(q.Positions, uint32(8+8*k)), append(q.Prefixes, hashes[(i*32+k)%len(hashes)])
		}
		var r MatchResult
		b.must(b.Match(q, &r))
	})
	until(func(c *Session, i int) {
		l, err := c.Load(&LoadQuery{Profile: b.id, Tenant: tenantA, Accept: tier.Exact, Hash: hashes[i%len(hashes)]})
		b.must(err)
		if l.Hit {
			b.must(c.Release(l.Lease))
		}
	})
	c := b.NewSession("large")
	f(c)
	close(stop)
	others.Wait()
	c.Close()
}

// tokensOf is how many tokens a checkpoint of so many pages has.
func (b *bench) tokensOf(pages int) int {
	per := b.profile.CheckpointLayout(1<<10).Bytes - b.profile.CheckpointLayout(1<<9).Bytes
	return int(int64(pages) * 4096 / (per >> 9))
}

// report adds quantiles of times in any order.
func report(b *testing.B, times []time.Duration) {
	if len(times) == 0 {
		b.Fatal("the lock was never held")
	}
	slices.Sort(times)
	for _, q := range []struct {
		name string
		part float64
	}{{"p50-µs", 0.5}, {"p99-µs", 0.99}, {"p99.9-µs", 0.999}, {"max-µs", 1}} {
		b.ReportMetric(float64(times[int(q.part*float64(len(times)-1))].Nanoseconds())/1e3, q.name)
	}
}
