package checkpoint

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// uniform gives every depth from 1 to n the weight one, so that costs are whole
// numbers: N·E[r].
func uniform(n int) Law {
	var l Law
	for t := 1; t <= n; t++ {
		l.Depth = append(l.Depth, t)
		l.Weight = append(l.Weight, 1)
	}
	return l
}

// weighted normalises weights over 1..n.
func weighted(n int, weight func(t int) float64) Law {
	l, sum := uniform(n), 0.0
	for i, t := range l.Depth {
		l.Weight[i] = weight(t)
		sum += l.Weight[i]
	}
	for i := range l.Weight {
		l.Weight[i] /= sum
	}
	return l
}

// Theorem 1: E[r] as the fraction num/den, and the worst case.
func TestBalancedIsOptimalForUniformDepths(t *testing.T) {
	for _, c := range []struct{ n, m, num, den, worst int }{
		{10, 1, 5, 2, 5}, {10, 2, 3, 2, 3}, {10, 3, 1, 1, 2}, {100, 4, 97, 10, 20}, {1000, 9, 248, 5, 100},
		{1000, 31, 15159, 1000, 31}, {4096, 8, 930475, 4096, 455}, {8192, 16, 481, 2, 481},
		{8192, 64, 512253, 8192, 126}, {100000, 32, 151468185, 100000, 3030},
	} {
		law, balanced := uniform(c.n), Balanced(c.n, c.m)
		if cost := int(law.Cost(balanced)); cost*c.den != c.num*c.n {
			t.Errorf("balanced %d, %d: %d/%d, want %d/%d", c.n, c.m, cost, c.n, c.num, c.den)
		}
		if cost := int(law.Cost(law.Optimal(c.m))); cost*c.den != c.num*c.n {
			t.Errorf("optimal %d, %d: %d/%d, want %d/%d", c.n, c.m, cost, c.n, c.num, c.den)
		}
		worst := 0
		for depth := 1; depth <= c.n; depth++ {
			worst = max(worst, depth-deepest(balanced, depth))
		}
		if worst != c.worst {
			t.Errorf("balanced %d, %d: at worst %d, want %d", c.n, c.m, worst, c.worst)
		}
	}
	if got, want := Balanced(1000, 9), []int{100, 200, 300, 400, 500, 600, 700, 800, 900}; !slices.Equal(got, want) {
		t.Errorf("balanced positions %v, want %v", got, want)
	}
	if got, want := Balanced(8192, 64)[:5], []int{126, 252, 378, 504, 630}; !slices.Equal(got, want) {
		t.Errorf("balanced positions %v, want %v", got, want)
	}
}

// The reference laws over 64 depths. Costs to six places; positions where the
// optimum is the only one.
func TestOptimalOfReferenceLaws(t *testing.T) {
	triangle := func(t, at int) float64 { return max(0, 4-math.Abs(float64(t-at))) }
	for _, c := range []struct {
		name      string
		law       Law
		none      float64
		optimal   [4]float64 // at 1, 2, 4, 8
		positions map[int][]int
		balanced  [4]float64
		block     [3]float64 // at 2, 4, 8
	}{
		{
			"geometric", weighted(64, func(t int) float64 { return math.Pow(0.95, float64(t-1)) }), 17.504826,
			[4]float64{10.387004, 7.331812, 4.520571, 2.419039},
			map[int][]int{1: {18}, 2: {11, 28}, 4: {7, 15, 25, 39}},
			[4]float64{11.973003, 8.708475, 5.576313, 2.994946},
			[3]float64{11.907340, 6.760113, 3.401552},
		},
		{
			"spike", weighted(64, func(t int) float64 {
				if t == 48 {
					return 0.9 + 0.1/64
				}
				return 0.1 / 64
			}), 46.45,
			[4]float64{1.975, 1.075, 0.625, 0.320312},
			map[int][]int{1: {48}, 2: {24, 48}},
			[4]float64{16, 5.55, 8.709375, 4.817187},
			[3]float64{15.95, 0.75, 0.35},
		},
		{
			"two triangles", weighted(64, func(t int) float64 { return triangle(t, 10) + 2*triangle(t, 50) }), 36.666667,
			[4]float64{5.333333, 2.833333, 1.125, 0.333333},
			map[int][]int{1: {47}, 2: {8, 47}, 4: {7, 10, 47, 50}},
			[4]float64{15.333333, 8, 8.770833, 2.75},
			[3]float64{15.333333, 5.333333, 2.5},
		},
		{
			"1/t", weighted(64, func(t int) float64 { return 1 / float64(t) }), 13.491035,
			[4]float64{8.383332, 6.092003, 3.871106, 2.080603},
			map[int][]int{1: {24}, 2: {12, 34}, 4: {5, 14, 27, 44}},
			[4]float64{8.656889, 6.482773, 4.421300, 2.641229},
			[3]float64{8.551490, 5.181031, 2.925667},
		},
		{
			"uniform", weighted(64, func(int) float64 { return 1 }), 32.5,
			[4]float64{16, 10.5, 6.09375, 3.171875}, nil,
			[4]float64{16, 10.5, 6.09375, 3.171875},
			[3]float64{15.5, 7.5, 3.5},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			equal(t, "no checkpoint", c.law.Cost(nil), c.none)
			for i, m := range []int{1, 2, 4, 8} {
				positions := c.law.Optimal(m)
				equal(t, fmt.Sprintf("optimal, %d", m), c.law.Cost(positions), c.optimal[i])
				if want, ok := c.positions[m]; ok && !slices.Equal(positions, want) && math.Abs(c.law.Cost(positions)-c.law.Cost(want)) > 1e-12 {
					t.Errorf("optimal, %d: %v, want %v", m, positions, want)
				}
				equal(t, fmt.Sprintf("balanced, %d", m), c.law.Cost(Balanced(64, m)), c.balanced[i])
				if i > 0 {
					equal(t, fmt.Sprintf("block, %d", m), c.law.Cost(Block(64, m)), c.block[i-1])
				}
			}
		})
	}
}

func equal(t *testing.T, what string, got, want float64) {
	t.Helper()
	if math.IsNaN(got) || math.Abs(got-want) > 5.1e-7 {
		t.Errorf("%s: %.7f, want %.6f", what, got, want)
	}
}

// Weights are small whole numbers, so that costs are exact.
func TestOptimalEqualsTheBestOfAllPlacements(t *testing.T) {
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var law Law
		for depth := 0; len(law.Depth) < 1+rng.IntN(10); {
			depth += 1 + rng.IntN(4)
			law.Depth = append(law.Depth, depth)
			law.Weight = append(law.Weight, float64(rng.IntN(6)))
		}
		last := law.Depth[len(law.Depth)-1]
		schedule := law.Solve(4)
		for m := range 5 {
			for limit := 1; limit <= last; limit++ {
				short := law
				for len(short.Depth) > 0 && short.Depth[len(short.Depth)-1] > limit {
					short.Depth, short.Weight = short.Depth[:len(short.Depth)-1], short.Weight[:len(short.Weight)-1]
				}
				got, want := schedule.Place(limit, m), cheapest(short, m)
				if len(got) > m || !slices.IsSorted(got) || short.Cost(got) != want {
					t.Fatalf("seed %d, at most %d up to %d of %v: %v costs %v, the best %v", seed, m, limit, law, got, short.Cost(got), want)
				}
			}
			if got, want := law.Cost(law.Optimal(m)), cheapest(law, m); got != want {
				t.Fatalf("seed %d, at most %d of %v: %v, want %v", seed, m, law, got, want)
			}
		}
	}
}

// cheapest tries every set of at most m positions among all depths, also those
// that the law does not name.
func cheapest(l Law, m int) float64 {
	best := l.Cost(nil)
	if len(l.Depth) == 0 {
		return best
	}
	last := l.Depth[len(l.Depth)-1]
	var try func(from int, positions []int)
	try = func(from int, positions []int) {
		best = min(best, l.Cost(positions))
		if len(positions) == m {
			return
		}
		for at := from; at <= last; at++ {
			if slices.Contains(l.Depth, at) || at%5 == 0 {
				try(at+1, append(slices.Clone(positions), at))
			}
		}
	}
	try(1, nil)
	return best
}

func TestOptimalOfLittle(t *testing.T) {
	if got := (Law{}).Optimal(3); len(got) != 0 {
		t.Errorf("of no law: %v", got)
	}
	one := Law{Depth: []int{7}, Weight: []float64{2}}
	if got := one.Optimal(3); !slices.Equal(got, []int{7}) {
		t.Errorf("of one depth: %v, want it alone", got)
	}
	if got := one.Optimal(0); len(got) != 0 {
		t.Errorf("of no budget: %v", got)
	}
	if got := (Law{Depth: []int{3, 9}, Weight: []float64{0, 0}}).Optimal(2); len(got) != 0 {
		t.Errorf("of no weight: %v", got)
	}
}
