package kernel

import (
	"math"
	"unsafe"
)

// factors has two vectors of numbers with full mantissas. The first is aligned to 64 bytes.
var factors = func() []float32 {
	v := make([]float32, 16+32)
	for uintptr(unsafe.Pointer(&v[0]))%64 != 0 {
		v = v[1:]
	}
	for i := range 16 {
		v[i], v[16+i] = float32(math.Sqrt(float64(i+2))), float32(math.Sin(float64(i*i)))
	}
	return v[:32]
}()

func peakFMA(rounds int) (flops float64) {
	switch active {
	case avx512:
		peakFMAAVX512(&factors[0], &factors[16], rounds)
		return float64(rounds) * 24 * 16 * 2
	case avx2:
		peakFMAAVX2(&factors[0], &factors[16], rounds)
		return float64(rounds) * 12 * 8 * 2
	}
	return peakFMAGeneric(rounds)
}
