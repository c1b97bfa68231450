package kernel

import (
	"encoding/binary"
	"math"
	"testing"
)

// nearest rounds v to a type with the given mantissa bits, least exponent and
// largest finite number, to even on ties, in float64.
func nearest(v float64, mantissa, minExp int, largest float64) float64 {
	if v != v || math.IsInf(v, 0) || v == 0 {
		return v
	}
	_, e := math.Frexp(v)
	unit := math.Ldexp(1, max(e-1, minExp)-mantissa)
	r := math.RoundToEven(v/unit) * unit
	if math.Abs(r) > largest {
		return math.Inf(int(math.Copysign(1, v)))
	}
	return math.Copysign(r, v)
}

func nearestOf(v float32, dt DType) float64 {
	switch dt {
	case F16:
		return nearest(float64(v), 10, -14, 65504)
	case BF16:
		return nearest(float64(v), 7, -126, 0xffp120)
	}
	return float64(v)
}

// awkward has every rounding case: ties, subnormals, overflow, NaN with payloads.
func awkward() []float32 {
	var v []float32
	for _, u := range []uint32{0, 1, 0x7fffff, 0x800000, 0x7f7fffff, 0x7f800000, 0x7f800001, 0x7fbfffff, 0x7fc00000,
		0x7fffffff, 0x477fe000, 0x477fefff, 0x477ff000, 0x477ff001, 0x38800000, 0x387fffff, 0x387fe000, 0x33000000,
		0x33000001, 0x32ffffff, 0x33800000, 0x33c00000, 0x7f7f7fff, 0x7f7f8000, 0x3f808000, 0x3f818000, 0x3f808001,
		0x3f801000, 0x3f803000, 0x3f801001, 0x3f800fff} {
		v = append(v, math.Float32frombits(u), math.Float32frombits(u|1<<31))
	}
	return v
}

func TestConversionsRoundToNearestEven(t *testing.T) {
	r := rng(t)
	v := awkward()
	for range 200_000 {
		v = append(v, math.Float32frombits(r.Uint32()), float32(r.NormFloat64()*1e-5), float32(r.NormFloat64()))
	}
	eachISA(t, func(t *testing.T) {
		for _, dt := range dtypes {
			b := make([]byte, len(v)*dt.Size())
			back := make([]float32, len(v))
			FromF32(b, v, dt)
			ToF32(back, b, dt)
			for i := range v {
				want := nearestOf(v[i], dt)
				if got := float64(back[i]); got != want && (got == got || want == want) || math.Signbit(got) != math.Signbit(want) {
					t.Fatalf("%s of %v (%#08x) is %v, want %v", dt.name(), v[i], math.Float32bits(v[i]), got, want)
				}
			}
		}
	})
}

func TestEveryHalfWidens(t *testing.T) {
	b := make([]byte, 2*65536)
	for i := range 65536 {
		binary.LittleEndian.PutUint16(b[2*i:], uint16(i))
	}
	eachISA(t, func(t *testing.T) {
		for _, dt := range []DType{F16, BF16} {
			wide, back := make([]float32, 65536), make([]byte, len(b))
			ToF32(wide, b, dt)
			FromF32(back, wide, dt)
			for i := range wide {
				if h := binary.LittleEndian.Uint16(back[2*i:]); wide[i] == wide[i] && h != uint16(i) {
					t.Fatalf("%s %#04x came back as %#04x", dt.name(), i, h)
				}
			}
			want := make([]float32, 65536)
			toF32Generic(want, b, dt)
			wantSame(t, dt.name(), wide, want)
		}
		for i, want := range map[uint16]float64{0x3c00: 1, 0xc000: -2, 0x0001: 0x1p-24, 0x7bff: 65504, 0x0400: 0x1p-14} {
			if got := float64(f16ToF32(i)); got != want {
				t.Errorf("f16 %#04x is %v, want %v", i, got, want)
			}
		}
	})
}

// Exact, NaN payloads included: a moved number must not depend on its place.
func TestConversionsAgreeWithGeneric(t *testing.T) {
	r := rng(t)
	eachISA(t, func(t *testing.T) {
		for n := range 150 {
			v := awkward()
			r.Shuffle(len(v), func(i, j int) { v[i], v[j] = v[j], v[i] })
			for len(v) < n {
				v = append(v, math.Float32frombits(r.Uint32()))
			}
			v = v[:n]
			for _, dt := range dtypes {
				got, ok := guarded(t, n*dt.Size())
				want := make([]byte, n*dt.Size())
				FromF32(got, v, dt)
				fromF32Generic(want, v, dt)
				if string(got) != string(want) {
					t.Fatalf("%s n=%d: %x from %x, want %x", dt.name(), n, got, v, want)
				}
				ok()
				wide, ok := guardedF32(t, n)
				plain := make([]float32, n)
				ToF32(wide, got, dt)
				toF32Generic(plain, got, dt)
				for i := range plain {
					if math.Float32bits(wide[i]) != math.Float32bits(plain[i]) {
						t.Fatalf("%s n=%d: number %d is %#08x, want %#08x", dt.name(), n, i, math.Float32bits(wide[i]), math.Float32bits(plain[i]))
					}
				}
				ok()
			}
		}
	})
}

func TestWrongSizesPanic(t *testing.T) {
	f := make([]float32, 4)
	wantPanic(t, "short source", func() { ToF32(f, make([]byte, 7), F16) })
	wantPanic(t, "short destination", func() { FromF32(make([]byte, 15), f, F32) })
	wantPanic(t, "unknown type", func() { ToF32(f, make([]byte, 64), 9) })
	wantPanic(t, "axpy", func() { Axpy(f, 1, f[1:]) })
	wantPanic(t, "gemm", func() { Gemm(f, 2, f, 2, f, 1, 2, 2, 2) })
	wantPanic(t, "gemm nt", func() { GemmNT(f, 2, f, 2, f[1:], 2, 2, 2, 2) })
}

func FuzzFromF32(f *testing.F) {
	for _, v := range awkward() {
		f.Add(math.Float32bits(v), uint8(5))
	}
	f.Fuzz(func(t *testing.T, u uint32, n uint8) {
		v := make([]float32, n)
		for i := range v {
			v[i] = math.Float32frombits(u + uint32(i)*0x1357)
		}
		for _, dt := range dtypes {
			got, want := make([]byte, len(v)*dt.Size()), make([]byte, len(v)*dt.Size())
			FromF32(got, v, dt)
			fromF32Generic(want, v, dt)
			if string(got) != string(want) {
				t.Fatalf("%s of %x: %x, want %x", dt.name(), v, got, want)
			}
		}
	})
}
