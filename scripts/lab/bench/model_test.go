package bench

import "testing"

func TestModelsHaveTheSizesOfTheRows(t *testing.T) {
	small, err := benchProfile("small", 1, smallHeads)
	if err != nil {
		t.Fatal(err)
	}
	large, err := benchProfile("large", largeLayers, largeHeads)
	if err != nil {
		t.Fatal(err)
	}
	flat, err := benchProfile("flat", 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	a, b, c := small.SegmentLayout(smallTokens), large.SegmentLayout(largeTokens), flat.SegmentLayout(flatTokens)
	if err := checkSizes(a, b, c); err != nil {
		t.Error(err)
	}
	if checkSizes(b, a, c) == nil {
		t.Error("the check takes any size")
	}
	if x, y := tokensOf(1, 4), tokensOf(2, 4); x[0] == y[0] || x[0] == x[1] {
		t.Errorf("tokens repeat: %v %v", x, y)
	}
}
