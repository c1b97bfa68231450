package kernel

import (
	"fmt"
	"testing"
)

// eachISA runs f once per instruction set that this processor has.
func eachISA[T runner[T]](t T, f func(T)) {
	widest := active
	t.Cleanup(func() { active = widest })
	for v := plainGo; v <= widest; v++ {
		t.Run("isa="+v.String(), func(t T) {
			active = v
			f(t)
		})
	}
}

func (v isa) String() string { return [...]string{"generic", "avx2", "avx512"}[v] }

// Widths differ, the order of each number's sum does not.
func TestDenseIsTheSameBitsAtEveryWidth(t *testing.T) {
	widest := active
	if widest < avx512 {
		t.Skip("one instruction set only")
	}
	t.Cleanup(func() { active = widest })
	r := rng(t)
	for _, d := range [][2]int{{128, 128}, {33, 47}, {5, 130}, {70, 16}} {
		p := newPlan(t, r, Dense, d[0], d[1], 3, F16, F32)
		a, b := make([]float32, d[0]*700), make([]float32, 700*d[1])
		normal(r, a, 1)
		normal(r, b, 1)
		var states, products [2][]float32
		for i, v := range []isa{avx2, avx512} {
			active = v
			states[i], _ = p.run(t, Compose)
			products[i] = make([]float32, d[0]*d[1])
			Gemm(products[i], d[1], a, 700, b, d[1], d[0], d[1], 700)
		}
		wantSame(t, fmt.Sprint("state ", d), states[1], states[0])
		wantSame(t, fmt.Sprint("product ", d), products[1], products[0])
	}
}
