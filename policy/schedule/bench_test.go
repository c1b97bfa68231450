package schedule

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/spliced-kv/spliced/policy/cost"
)

// A request has some ten segments; the larger cases show what bounds the rest.
func BenchmarkWhole(b *testing.B) {
	for _, c := range []struct{ jobs, workers int }{{11, 8}, {40, 8}, {200, 16}, {1000, 64}} {
		b.Run(fmt.Sprintf("jobs=%d/workers=%d", c.jobs, c.workers), func(b *testing.B) {
			rng := rand.New(rand.NewPCG(1, 1))
			size := make([]int64, c.jobs)
			for i := range size {
				size[i] = 100_000 + rng.Int64N(400_000)
			}
			b.ReportAllocs()
			for b.Loop() {
				Whole(size, c.workers)
			}
			a, _ := Whole(size, c.workers)
			b.ReportMetric(float64(a.Makespan())/float64(LowerBound(size, c.workers)), "makespan/bound")
			b.ReportMetric(float64(LPT(size, c.workers).Makespan())/float64(LowerBound(size, c.workers)), "LPT/bound")
		})
	}
}

// What a daemon plans with: unlike workers, up to 256 segments.
func BenchmarkTeam(b *testing.B) {
	for _, n := range []int{11, 64, 256} {
		b.Run(fmt.Sprintf("segments=%d", n), func(b *testing.B) {
			rng := rand.New(rand.NewPCG(1, 1))
			team, tokens := Team{Cutting: Cutting{MinTokens: 256, GrainTokens: 64}}, make([]int, n)
			for w := range 17 {
				team.Workers = append(team.Workers, Worker{
					Prefill: cost.Prefill{Fixed: 5, PerToken: 0.07 + 0.001*float64(w), PerTokenSquared: 6.7e-7}, Queue: float64(rng.IntN(50)),
					Fetch: 5 * float64(min(w, 1)), FetchPerToken: 0.004 * float64(min(w, 1)), Pieces: true,
				})
			}
			for i := range tokens {
				tokens[i] = 500 + rng.IntN(4000)
			}
			b.ReportAllocs()
			for b.Loop() {
				team.Best(tokens)
			}
		})
	}
}
