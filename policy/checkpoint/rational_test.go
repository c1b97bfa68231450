package checkpoint

import (
	"math/big"
	"testing"
)

// The reference laws as fractions. The hull works in floating point; what it
// places has to cost exactly what the plain recurrence of Theorem 2 finds in
// rational arithmetic.
func TestOptimalIsExactInFractions(t *testing.T) {
	if testing.Short() {
		t.Skip("a second of fractions")
	}
	const n = 64
	power := func(base, exponent int64) *big.Int {
		return new(big.Int).Exp(big.NewInt(base), big.NewInt(exponent), nil)
	}
	for name, weight := range map[string]func(t int) *big.Rat{
		"geometric": func(t int) *big.Rat { return new(big.Rat).SetFrac(power(19, int64(t-1)), power(20, int64(t-1))) },
		"spike": func(t int) *big.Rat {
			if t == 48 {
				return big.NewRat(9*64+1, 640)
			}
			return big.NewRat(1, 640)
		},
		"two triangles": func(t int) *big.Rat {
			w := max(0, 4-max(t-10, 10-t)) + 2*max(0, 4-max(t-50, 50-t))
			return big.NewRat(int64(w), 1)
		},
		"1/t":     func(t int) *big.Rat { return big.NewRat(1, int64(t)) },
		"uniform": func(int) *big.Rat { return big.NewRat(1, 64) },
	} {
		weights := make([]*big.Rat, n+1)
		law := uniform(n)
		for depth := 1; depth <= n; depth++ {
			weights[depth] = weight(depth)
			law.Weight[depth-1], _ = weights[depth].Float64()
		}
		best := plainRecurrence(weights, 8)
		schedule := law.Solve(8)
		for m := 1; m <= 8; m++ {
			positions := schedule.Place(n, m)
			if cost := fractionalCost(weights, positions); cost.Cmp(best[m]) != 0 {
				t.Errorf("%s, %d: %v costs %s, the best %s", name, m, positions, cost.FloatString(12), best[m].FloatString(12))
			}
		}
	}
}

func fractionalCost(weights []*big.Rat, positions []int) *big.Rat {
	cost := new(big.Rat)
	for depth := 1; depth < len(weights); depth++ {
		again := big.NewRat(int64(depth-deepest(positions, depth)), 1)
		cost.Add(cost, again.Mul(again, weights[depth]))
	}
	return cost
}

// plainRecurrence is dp[m][n] for m up to most, in O(n²·m).
func plainRecurrence(weights []*big.Rat, most int) []*big.Rat {
	n := len(weights) - 1
	old := make([]*big.Rat, n+1)
	old[0] = new(big.Rat)
	for j := 1; j <= n; j++ {
		old[j] = big.NewRat(int64(j), 1)
		old[j].Mul(old[j], weights[j]).Add(old[j], old[j-1])
	}
	best := []*big.Rat{old[n]}
	for range most {
		row := make([]*big.Rat, n+1)
		row[0] = new(big.Rat)
		for j := 1; j <= n; j++ {
			row[j] = old[j]
			gap := new(big.Rat) // w(s, j), for s from j down
			mass := new(big.Rat)
			for s := j; s >= 1; s-- {
				gap.Add(gap, mass)
				mass.Add(mass, weights[s])
				if with := new(big.Rat).Add(old[s-1], gap); with.Cmp(row[j]) < 0 {
					row[j] = with
				}
			}
		}
		old = row
		best = append(best, old[n])
	}
	return best
}
