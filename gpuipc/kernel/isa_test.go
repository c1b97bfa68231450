package kernel

import (
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"
)

// rng is seeded by the name of the test, so that a failure replays.
func rng(t testing.TB) *rand.Rand {
	h := uint64(14695981039346656037)
	for _, c := range []byte(t.Name()) {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return rand.New(rand.NewPCG(h, 1))
}

// runner is *testing.T or *testing.B.
type runner[T any] interface {
	testing.TB
	Run(name string, f func(T)) bool
}

const guard = 64

// guarded is n bytes at an odd address between guard bytes, and a check that
// fails the test when a guard byte has changed.
func guarded(t testing.TB, n int) ([]byte, func()) {
	all := make([]byte, n+2*guard+1)
	for i := range all {
		all[i] = 0xa5
	}
	lo := guard
	if uintptr(unsafe.Pointer(&all[lo]))%2 == 0 {
		lo++
	}
	b := all[lo:][:n:n]
	return b, func() {
		t.Helper()
		for i, v := range all {
			if (i < lo || i >= lo+n) && v != 0xa5 {
				t.Fatalf("byte %d beside %d bytes was written", i-lo, n)
			}
		}
	}
}

// guardedF32 is the same for numbers, at an address that no vector is aligned to.
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

func normal(r *rand.Rand, v []float32, scale float64) {
	for i := range v {
		v[i] = float32(r.NormFloat64() * scale)
	}
}

// encode returns v as dt at an odd address, and what v reads as after that.
func encode(t testing.TB, v []float32, dt DType) ([]byte, []float64) {
	b, _ := guarded(t, len(v)*dt.Size())
	fromF32Generic(b, v, dt)
	out := make([]float64, len(v))
	for i := range out {
		out[i] = float64(loadGeneric(b, dt, i))
	}
	return b, out
}

// sameBits holds for equal bits and for two NaNs.
func sameBits(a, b float32) bool {
	return math.Float32bits(a) == math.Float32bits(b) || (a != a && b != b)
}

func wantSame(t testing.TB, what string, got, want []float32) {
	t.Helper()
	for i := range want {
		if !sameBits(got[i], want[i]) {
			t.Fatalf("%s: number %d is %v (%#08x), want %v (%#08x)", what, i,
				got[i], math.Float32bits(got[i]), want[i], math.Float32bits(want[i]))
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

var dtypes = []DType{F32, F16, BF16}

func (d DType) name() string { return [...]string{"none", "f32", "f16", "bf16"}[d] }
