package kernel

import "unsafe"

func toF32(dst []float32, src []byte, dt DType) {
	switch n := len(dst); {
	case n == 0:
	case dt == F32:
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&dst[0])), 4*n), src)
	case active == plainGo:
		toF32Generic(dst, src, dt)
	case active == avx512 && dt == F16:
		widenF16AVX512(&dst[0], &src[0], n)
	case active == avx512:
		widenBF16AVX512(&dst[0], &src[0], n)
	case dt == F16:
		widenF16AVX2(&dst[0], &src[0], n)
	default:
		widenBF16AVX2(&dst[0], &src[0], n)
	}
}

func fromF32(dst []byte, src []float32, dt DType) {
	switch n := len(src); {
	case n == 0:
	case dt == F32:
		copy(dst, unsafe.Slice((*byte)(unsafe.Pointer(&src[0])), 4*n))
	case active == plainGo:
		fromF32Generic(dst, src, dt)
	case active == avx512 && dt == F16:
		narrowF16AVX512(&dst[0], &src[0], n)
	case active == avx512:
		narrowBF16AVX512(&dst[0], &src[0], n)
	case dt == F16:
		narrowF16AVX2(&dst[0], &src[0], n)
	default:
		narrowBF16AVX2(&dst[0], &src[0], n)
	}
}

func axpy(y []float32, a float32, x []float32) {
	switch n := len(y); {
	case n == 0:
	case active == plainGo:
		axpyGeneric(y, a, x)
	case active == avx512:
		axpyAVX512(&y[0], a, &x[0], n)
	default:
		axpyAVX2(&y[0], a, &x[0], n)
	}
}
