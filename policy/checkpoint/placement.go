package checkpoint

import "math"

// Balanced spreads m checkpoints evenly over a prefix of n tokens. The i-th checkpoint,
// counted from 1, is at floor(i(n+1)/(m+1)). This is optimal for uniform depths and in the
// worst case (Theorem 1).
func Balanced(n, m int) []int {
	positions := make([]int, 0, max(m, 0))
	for i := 1; i <= m; i++ {
		positions = append(positions, i*(n+1)/(m+1))
	}
	return ascending(positions, n)
}

// Every puts a checkpoint at each multiple of step tokens.
func Every(n, step int) []int {
	if step <= 0 {
		return nil
	}
	positions := make([]int, 0, max(n, 0)/step)
	for at := step; at <= n; at += step {
		positions = append(positions, at)
	}
	return positions
}

// Sqrt puts a checkpoint every floor(√n) tokens. Then a hit recomputes at most as many
// tokens as there are checkpoints.
func Sqrt(n int) []int { return Every(n, int(math.Sqrt(float64(max(n, 0))))) }

// Logarithmic puts m checkpoints at gaps that double from the beginning: n/2^m,
// n/2^(m-1), … n/2.
func Logarithmic(n, m int) []int {
	positions := make([]int, 0, max(m, 0))
	for i := m; i >= 1; i-- {
		if i < 63 {
			positions = append(positions, n>>i)
		}
	}
	return ascending(positions, n)
}

// Align rounds positions down to multiples of block and drops duplicates and
// zero. It works in place.
func Align(positions []int, block int) []int {
	for i := range positions {
		positions[i] -= positions[i] % max(block, 1)
	}
	return ascending(positions, math.MaxInt)
}

// ascending drops positions that do not ascend or are outside [1, n], in place.
func ascending(positions []int, n int) []int {
	kept, last := positions[:0], 0
	for _, at := range positions {
		if at > last && at <= n {
			kept = append(kept, at)
			last = at
		}
	}
	return kept
}
