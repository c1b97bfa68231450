package enginekernel

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

var (
	typeNames  = [...]string{"none", "f32", "f16", "bf16"}
	decayNames = [...]string{"none", "scalar", "diagonal"}
)

// rng is seeded by the name of the test, so that a failure replays.
func rng(t testing.TB) *rand.Rand {
	h := uint64(14695981039346656037)
	for _, c := range []byte(t.Name()) {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return rand.New(rand.NewPCG(h, 1))
}

func normal(r *rand.Rand, v []float32, scale float64) {
	for i := range v {
		v[i] = float32(r.NormFloat64() * scale)
	}
}

func randomTurn(r *rand.Rand, dims int, interleaved bool) kernel.Turn {
	turn := kernel.Turn{Dims: dims, Interleaved: interleaved}
	for range dims / 2 {
		sin, cos := math.Sincos(r.Float64() * 1000)
		turn.Cos, turn.Sin = append(turn.Cos, float32(cos)), append(turn.Sin, float32(sin))
	}
	return turn
}

// guardedF32 is n numbers between guards, at an address that no vector is aligned to, and a
// check that fails the test when a guard has changed.
func guardedF32(t testing.TB, n int) ([]float32, func()) {
	const pad, mark = 17, 12345.5
	all := make([]float32, n+2*pad)
	for i := range all {
		all[i] = mark
	}
	return all[pad:][:n:n], func() {
		t.Helper()
		for i, v := range all {
			if (i < pad || i >= pad+n) && v != mark {
				t.Fatalf("number %d beside %d numbers was written", i-pad, n)
			}
		}
	}
}

func wantPanic(t *testing.T, what string, f func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Errorf("%s: no panic", what)
		}
	}()
	f()
}
