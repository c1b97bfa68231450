package schedule

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

var decreasing = []int64{3100, 2900, 2700, 2500, 2400, 2300, 2100, 1900, 1700, 1500, 1300}

func equal11() []int64 { return slices.Repeat([]int64{1}, 11) }

func TestLPTOfKnownCases(t *testing.T) {
	for _, c := range []struct {
		size                 []int64
		workers              int
		lpt, fractional, opt int64
	}{
		{equal11(), 1, 11, 11, 11},
		{equal11(), 2, 6, 6, 6},
		{equal11(), 4, 3, 3, 3},
		{equal11(), 8, 2, 2, 2},
		{equal11(), 11, 1, 1, 1},
		// The next two meet the bound on LPT with equality: (4m-1)/3m times the optimum.
		{[]int64{5, 5, 4, 4, 3, 3, 3}, 3, 11, 9, 9},
		{[]int64{7, 7, 6, 6, 5, 5, 4, 4, 4}, 4, 15, 12, 12},
		{decreasing, 2, 12800, 12200, 12200},
		{decreasing, 4, 6600, 6100, 6200},
		{decreasing, 8, 3600, 3100, 3600},
		{nil, 3, 0, 0, 0},
		{[]int64{4}, 0, 4, 4, 4},
	} {
		t.Run(fmt.Sprint(c.size, c.workers), func(t *testing.T) {
			if got := LPT(c.size, c.workers).Makespan(); got != c.lpt {
				t.Errorf("LPT: %d, want %d", got, c.lpt)
			}
			if got := fractional(c.size, max(c.workers, 1)); got != c.fractional {
				t.Errorf("bound of cut jobs: %d, want %d", got, c.fractional)
			}
			a, proven := Whole(c.size, c.workers)
			if got := a.Makespan(); got != c.opt || !proven {
				t.Errorf("whole: %d, proven %v, want %d, proven", got, proven, c.opt)
			}
		})
	}
}

func TestLPTIsWithinItsBoundOfTheOptimum(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		size := make([]int64, 1+rng.IntN(8))
		for i := range size {
			size[i] = int64(rng.IntN(30))
		}
		m := 1 + rng.IntN(4)
		best := optimum(size, m)
		lpt := LPT(size, m).Makespan()
		if 3*int64(m)*lpt > (4*int64(m)-1)*best {
			t.Fatalf("seed %d: LPT of %v on %d is %d, the optimum %d", seed, size, m, lpt, best)
		}
		if bound := LowerBound(size, m); bound > best {
			t.Fatalf("seed %d: bound of %v on %d is %d, the optimum %d", seed, size, m, bound, best)
		}
		if a, proven := Whole(size, m); a.Makespan() != best || !proven {
			t.Fatalf("seed %d: %v on %d is %d, proven %v, the optimum %d", seed, size, m, a.Makespan(), proven, best)
		}
	}
}

// optimum tries every assignment.
func optimum(size []int64, m int) int64 {
	load := make([]int64, m)
	var try func(i int) int64
	try = func(i int) int64 {
		if i == len(size) {
			return slices.Max(load)
		}
		best := int64(1) << 62
		for w := range load {
			load[w] += size[i]
			best = min(best, try(i+1))
			load[w] -= size[i]
			if load[w] == 0 {
				break // the other empty workers are like this one
			}
		}
		return best
	}
	return try(0)
}

func TestWholeIsNeverWorseThanLPTAndAddsUp(t *testing.T) {
	better, seeds := 0, uint64(200)
	if testing.Short() {
		seeds = 30
	}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(seed, 2))
		size := make([]int64, rng.IntN(60))
		sum := int64(0)
		for i := range size {
			size[i] = 100 + int64(rng.IntN(4000))
			sum += size[i]
		}
		m := 1 + rng.IntN(12)
		lpt := LPT(size, m).Makespan()
		a, proven := Whole(size, m)
		if a.Makespan() > lpt || a.Makespan() < LowerBound(size, m) {
			t.Fatalf("seed %d: %d, LPT %d, bound %d", seed, a.Makespan(), lpt, LowerBound(size, m))
		}
		if proven && a.Makespan() < lpt {
			better++
		}
		load := make([]int64, m)
		for job, w := range a.Worker {
			load[w] += size[job]
		}
		if !slices.Equal(load, a.Load) {
			t.Fatalf("seed %d: loads %v, the jobs say %v", seed, a.Load, load)
		}
	}
	if better < int(seeds)/10 {
		t.Errorf("better than LPT, proven, in %d of %d cases only", better, seeds)
	}
}
