package enginekernel

import (
	"math"
	"testing"
)

func TestExponentialIsAccurate(t *testing.T) {
	worst := 0.0
	for v := -87.0; v < 88; v += 0.00137 {
		x := []float32{float32(v)}
		Exp(x)
		want := math.Exp(float64(float32(v)))
		worst = max(worst, math.Abs(float64(x[0])/want-1))
	}
	if worst > 2e-7 {
		t.Errorf("relative error %.3g", worst)
	}
	x := []float32{float32(math.Inf(-1)), -200, 0, 200, float32(math.Inf(1)), float32(math.NaN())}
	Exp(x)
	if x[0] != 0 || x[1] != 0 || x[2] != 1 || !math.IsInf(float64(x[3]), 1) || !math.IsInf(float64(x[4]), 1) || x[5] == x[5] {
		t.Errorf("at the ends: %v", x)
	}
}
