package prefixcache_test

import (
	"fmt"
	"testing"

	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/policy/prefixcache"
	"github.com/spliced-kv/spliced/policy/prefixcache/tracetest"
)

// One iteration is one request of the trace, which begins anew with an empty
// cache when it ends.
func BenchmarkServe(b *testing.B) {
	swe := tracetest.SWE(b, tracetest.Orders(b), tracetest.Sessions(b, 100), "c5_sps1_art7.5")
	talk := conversations(300)
	for _, on := range []struct {
		name   string
		trace  tracetest.Trace
		config prefixcache.Config
	}{{"swe", swe, hybrid(40)}, {"mooncake", tracetest.Mooncake(b), talk}} {
		for _, name := range []string{"lru", "gdsf", "default"} {
			b.Run(fmt.Sprintf("trace=%s/policy=%s", on.name, name), func(b *testing.B) {
				eviction, _ := policy.Named(name)
				var requests []prefixcache.Request
				on.trace(func(input, output []uint32) {
					requests = append(requests, prefixcache.Request{Input: append([]uint32(nil), input...), Output: output})
				})
				steps, i := int64(0), 0
				var cache prefixcache.Cache
				b.ReportAllocs()
				for b.Loop() {
					if i%len(requests) == 0 {
						if cache != nil {
							steps += cache.Stats().Steps
						}
						cache = prefixcache.New(prefixcache.Options{Config: on.config}, eviction())
					}
					cache.Serve(requests[i%len(requests)])
					i++
				}
				steps += cache.Stats().Steps
				b.ReportMetric(float64(steps)/b.Elapsed().Seconds()/1e6, "Msteps/s")
			})
		}
	}
}
