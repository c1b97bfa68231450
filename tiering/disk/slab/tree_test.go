package slab

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestTreeAgreesWithSortedSlice has searches between, on, below and above the
// elements.
func TestTreeAgreesWithSortedSlice(t *testing.T) {
	for name, less := range map[string]func(a, b span) bool{"byPlace": byPlace, "byLength": byLength} {
		t.Run(name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, 1))
			compare := func(a, b span) int {
				switch {
				case less(a, b):
					return -1
				case less(b, a):
					return 1
				}
				return 0
			}
			tr := newTree(less)
			var sorted []span
			draw := func() span {
				return span{slab: rng.Uint32N(3), off: rng.Int64N(50), len: rng.Int64N(8)}
			}
			for range 20_000 {
				s := draw()
				i, there := slices.BinarySearchFunc(sorted, s, compare)
				if got := tr.remove(s); got != there {
					t.Fatalf("remove %v: %v, there: %v", s, got, there)
				}
				if there {
					sorted = slices.Delete(sorted, i, i+1)
				} else if len(sorted) < 200 {
					tr.insert(s)
					sorted = slices.Insert(sorted, i, s)
				}
				checkSearches(t, tr, sorted, draw(), compare)
			}
			if grown := len(tr.nodes); grown > 202 {
				t.Errorf("%d nodes for at most 200 spans: nodes are not used again", grown)
			}
		})
	}
}

func checkSearches(t *testing.T, tr *tree, sorted []span, at span, compare func(a, b span) int) {
	t.Helper()
	if tr.count != len(sorted) {
		t.Fatalf("%d elements, want %d", tr.count, len(sorted))
	}
	i, _ := slices.BinarySearchFunc(sorted, at, compare)
	check := func(what string, got span, ok bool, i int) {
		t.Helper()
		want := i >= 0 && i < len(sorted)
		if ok != want || ok && compare(got, sorted[i]) != 0 {
			t.Fatalf("%s %v: %v %v in %v", what, at, got, ok, sorted)
		}
	}
	got, ok := tr.ceiling(at)
	check("ceiling", got, ok, i)
	got, ok = tr.below(at)
	check("below", got, ok, i-1)
	got, ok = tr.last()
	check("last", got, ok, len(sorted)-1)
}

// TestTreeStaysShallow inserts in order, which is how a disk is opened.
func TestTreeStaysShallow(t *testing.T) {
	tr := newTree(byPlace)
	const n = 100_000
	for i := range int64(n) {
		tr.insert(span{off: i * 2, len: 1})
	}
	var depth func(n uint32) int
	depth = func(n uint32) int {
		if n == 0 {
			return 0
		}
		return 1 + max(depth(tr.nodes[n].left), depth(tr.nodes[n].right))
	}
	// The expected depth of a treap of 10^5 is about 2 ln n = 23 for a search,
	// and twice that for the deepest; this one is always the same.
	if d := depth(tr.root); d > 60 {
		t.Errorf("%d elements are %d deep", n, d)
	}
}
