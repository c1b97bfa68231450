package prefixcache_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/policy/tracetest"
	"github.com/spliced-kv/spliced/scripts/lab/replay/prefixcache"
)

// One iteration is one request. A trace begins anew with an empty cache when it
// ends. Steps are edges followed, in the lookup and in the insert; on agent
// sessions an edge is 600 tokens long and comparing these is what takes the time.
func BenchmarkServe(b *testing.B) {
	for _, name := range []string{"lru", "gdsf", "default"} {
		b.Run("trace=swe/policy="+name, func(b *testing.B) {
			trace := tracetest.SWE(b, tracetest.Orders(b), tracetest.Sessions(b, 100), "c5_sps1_art7.5")
			serve(b, trace, hybrid(40), name)
		})
		b.Run("trace=mooncake/policy="+name, func(b *testing.B) {
			serve(b, tracetest.Mooncake(b), conversations(300), name)
		})
	}
}

func serve(b *testing.B, trace tracetest.Trace, c prefixcache.Config, name string) {
	eviction, _ := policy.Named(name)
	var requests []prefixcache.Request
	trace(func(input, output []uint32) {
		requests = append(requests, prefixcache.Request{Input: slices.Clone(input), Output: output})
	})
	var cache prefixcache.Cache
	steps, symbols, i := int64(0), int64(0), 0
	b.ReportAllocs()
	for b.Loop() {
		if i%len(requests) == 0 {
			if cache != nil {
				steps += cache.Stats().Steps
			}
			cache = prefixcache.New(prefixcache.Options{Config: c}, eviction())
		}
		r := requests[i%len(requests)]
		cache.Serve(r)
		symbols += int64(len(r.Input))
		i++
	}
	steps += cache.Stats().Steps
	b.ReportMetric(float64(steps)/b.Elapsed().Seconds()/1e6, "Msteps/s")
	b.ReportMetric(float64(symbols)/b.Elapsed().Seconds()/1e6, "Msymbols/s")
}

// A full cache of 10^6 nodes with short edges: requests go on from one of the last
// 4,096 ones, or from half of it.
func BenchmarkServeMillionNodes(b *testing.B) {
	for _, name := range []string{"lru", "gdsf", "default"} {
		b.Run("policy="+name, func(b *testing.B) {
			eviction, _ := policy.Named(name)
			const nodes = 1_000_000
			c := hybrid(0)
			c.CapacityBytes = nodes * c.Shape.PrefixBytes(8, 1)
			cache := prefixcache.New(prefixcache.Options{Config: c}, eviction())
			rng := rand.New(rand.NewPCG(1, 2))
			past := make([][]uint32, 4096)
			request := func() {
				i := rng.IntN(len(past))
				whole := past[i]
				if rng.IntN(4) == 0 {
					whole = whole[:len(whole)/2]
				}
				if len(whole) > 300 {
					whole = whole[:20]
				}
				for range 1 + rng.IntN(15) {
					whole = append(whole, rng.Uint32())
				}
				past[i] = slices.Clone(whole)
				cache.Serve(prefixcache.Request{Input: whole})
			}
			for cache.Stats().Evictions == 0 {
				request()
			}
			before := cache.Stats()
			b.ReportAllocs()
			for b.Loop() {
				request()
			}
			b.ReportMetric(float64(cache.Stats().Steps-before.Steps)/b.Elapsed().Seconds()/1e6, "Msteps/s")
			b.ReportMetric(float64(before.States), "nodes")
		})
	}
}
