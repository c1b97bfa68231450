package checkpoint

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestHistogramWeighsByAge(t *testing.T) {
	h := NewHistogram(0.99)
	if !h.Empty() {
		t.Error("a new histogram is not empty")
	}
	rng := rand.New(rand.NewPCG(1, 1))
	var values []int
	for range 60_000 { // the unit passes 1e100 twice
		values = append(values, rng.IntN(40))
		h.Add(values[len(values)-1])
	}
	want := map[int]float64{}
	for i, v := range values {
		want[v] += math.Pow(0.99, float64(len(values)-1-i))
	}
	law := h.Law()
	if len(law.Depth) != 39 {
		t.Fatalf("%d depths, want 39: zero is none", len(law.Depth))
	}
	for i, v := range law.Depth {
		if math.Abs(law.Weight[i]-want[v]) > 1e-6 {
			t.Errorf("value %d: weight %v, want %v", v, law.Weight[i], want[v])
		}
	}
}

func TestHistogramIsBounded(t *testing.T) {
	for _, gamma := range []float64{0.99, 0.9999, 1} {
		h := NewHistogram(gamma)
		for i := range 50_000 {
			h.Add(i)
			if len(h.cells) > maxCells {
				t.Fatalf("gamma %v: %d cells after %d values, at most %d", gamma, len(h.cells), i, maxCells)
			}
		}
		if h.cells[49_999] == 0 {
			t.Errorf("gamma %v: the newest value was dropped", gamma)
		}
	}
}
