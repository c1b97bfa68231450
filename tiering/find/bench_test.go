package find

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/spliced-kv/spliced/policy/profile/profiletest"
)

// BenchmarkSearch: a prompt of 16,384 tokens beside so many held segments of 512. Half of
// it is segments that are held, or none is. The floor is one rolling hash over its tokens.
func BenchmarkSearch(b *testing.B) {
	const length, segment = 16 << 10, 512
	p := profiletest.New(profiletest.Hybrid(1))
	hash, at := p.RollingHash([]byte("salt")), Scope{1, p.Fingerprint()}
	mid, _ := p.MidSpec(segment, 16)
	rng := rand.New(rand.NewPCG(1, 2))
	misses := random(rng, length)
	half := append([]uint32{}, misses...)
	perK := func(b *testing.B) {
		b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/(length/1024), "µs/1Ktok")
	}
	b.Run("floor=hash", func(b *testing.B) {
		var sums []uint64
		for b.Loop() {
			sums = hash.Sums(sums, misses)
		}
		perK(b)
	})
	for _, n := range []int{1_000, 100_000} {
		var x Index
		for i := range n {
			tokens := random(rng, segment)
			if start := 2 * segment * i; start+segment <= length {
				copy(half[start+segment:], tokens)
			}
			x.Add(at, hash.Segment(mid, tokens), segment)
		}
		for name, prompt := range map[string][]uint32{"none": misses, "half": half} {
			b.Run(fmt.Sprintf("segments=%d/found=%s", n, name), func(b *testing.B) {
				var f Found
				q := &Query{Scope: at, Hash: hash, Tokens: prompt, Mid: mid}
				b.ReportAllocs()
				for b.Loop() {
					if err := x.Search(b.Context(), q, &f); err != nil {
						b.Fatal(err)
					}
				}
				perK(b)
				b.ReportMetric(float64(len(f.Spans)), "spans")
			})
		}
	}
}
