package schedule

import (
	"fmt"
	"math/rand/v2"
	"testing"
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
