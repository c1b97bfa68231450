package checkpoint

import (
	"slices"
	"testing"
)

func TestPlacementsOfTheTable(t *testing.T) {
	for _, c := range []struct {
		name      string
		got, want []int
	}{
		{"balanced, more than fit", Balanced(3, 10), []int{1, 2, 3}},
		{"balanced, none", Balanced(100, 0), nil},
		{"block", Block(100, 3), []int{34, 68}},
		{"block, divides", Block(100, 4), []int{25, 50, 75, 100}},
		{"block, one", Block(100, 1), []int{100}},
		{"every", Every(100, 40), []int{40, 80}},
		{"every, longer than the prefix", Every(100, 101), nil},
		{"square root", Sqrt(26), []int{5, 10, 15, 20, 25}},
		{"square root of nothing", Sqrt(0), nil},
		{"logarithmic", Logarithmic(1024, 4), []int{64, 128, 256, 512}},
		{"logarithmic, more than fit", Logarithmic(8, 70), []int{1, 2, 4}},
		{"aligned", Align([]int{10, 64, 100, 130, 200}, 64), []int{64, 128, 192}},
		{"aligned, whole blocks", aligned(1000, 3, 64), []int{384, 768}},
	} {
		if !slices.Equal(c.got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, c.got, c.want)
		}
	}
}

func TestSqrtComputesAtMostItsStepAgain(t *testing.T) {
	for _, n := range []int{1, 2, 99, 100, 4095, 70000} {
		positions := Sqrt(n)
		for depth := 1; depth <= n; depth++ {
			if again := depth - deepest(positions, depth); again*again > n {
				t.Fatalf("%d tokens, depth %d: %d computed again", n, depth, again)
			}
		}
	}
}

func TestFillHalvesTheWidestGaps(t *testing.T) {
	for _, c := range []struct {
		have []int
		n, m int
		want []int
	}{
		{nil, 640, 1, []int{320}},
		{[]int{512}, 640, 2, []int{256, 512}},
		{[]int{64, 128}, 640, 4, []int{64, 128, 256, 448}},
		{[]int{64, 128}, 640, 2, []int{64, 128}},
		{nil, 63, 4, nil},
	} {
		if got := fill(slices.Clone(c.have), c.n, c.m, 64); !slices.Equal(got, c.want) {
			t.Errorf("%v of %d to %d: %v, want %v", c.have, c.n, c.m, got, c.want)
		}
	}
}

// Block puts a checkpoint every ceil(n/m) tokens: what a cache of m blocks
// keeps.
func Block(n, m int) []int {
	if n <= 0 || m <= 0 {
		return nil
	}
	return Every(n, (n+m-1)/m)
}
