package kernel

import "unsafe"

// lanes returns the number of F32 numbers in a vector register.
func (v isa) lanes() int { return v.cols() / 2 }

func unpackRows(dst []float32, f Form, scales, q []byte, cols int) {
	rows := len(scales) / 4
	switch {
	case rows == 0 || cols == 0:
	case active == plainGo:
		unpackRowsGeneric(dst, f, scales, q, cols)
	case f == FormInt12:
		unpackTwelve(dst, scales, q, rows, cols)
	case active == avx512 && f == FormInt8:
		unpackInt8AVX512(&dst[0], &scales[0], &q[0], rows, cols)
	case active == avx512 && f == FormInt16:
		unpackInt16AVX512(&dst[0], &scales[0], &q[0], rows, cols)
	case f == FormInt8:
		unpackInt8AVX2(&dst[0], &scales[0], &q[0], rows, cols)
	case f == FormInt16:
		unpackInt16AVX2(&dst[0], &scales[0], &q[0], rows, cols)
	default:
		unpackRowsGeneric(dst, f, scales, q, cols)
	}
}

// unpackTwelve unpacks rows of 12-bit integers. The last numbers of each row, which do not
// fill a vector, are computed in plain Go.
func unpackTwelve(dst []float32, scales, q []byte, rows, cols int) {
	whole, size := cols/active.lanes()*active.lanes(), FormInt12.rowBytes(cols)
	if whole == cols {
		unpackVectors(dst, scales, q, rows, cols)
		return
	}
	for i := range rows {
		dst, scales, q := dst[i*cols:][:cols], scales[4*i:][:4], q[i*size:][:size]
		if whole > 0 {
			unpackVectors(dst, scales, q, 1, whole)
		}
		unpackRowsGeneric(dst[whole:], FormInt12, scales, q[whole*12/8:], cols-whole)
	}
}

func unpackVectors(dst []float32, scales, q []byte, rows, cols int) {
	if active == avx512 {
		unpackInt12AVX512(&dst[0], &scales[0], &q[0], rows, cols)
		return
	}
	unpackInt12AVX2(&dst[0], &scales[0], &q[0], rows, cols)
}

func peakBits(x []float32) uint32 {
	switch {
	case len(x) == 0 || active == plainGo:
		return peakBitsGeneric(x)
	case active == avx512:
		return peakBitsAVX512(&x[0], len(x))
	}
	return peakBitsAVX2(&x[0], len(x))
}

func quantize(q []int16, rest, x []float32, scale, largest float32) {
	switch n := len(x); {
	case n == 0 || active == plainGo || scale == 0:
		quantizeGeneric(q, rest, x, scale, largest)
	case active == avx512:
		quantizeAVX512(&q[0], &rest[0], &x[0], scale, largest, n)
	default:
		quantizeAVX2(&q[0], &rest[0], &x[0], scale, largest, n)
	}
}

func squares(x []float32) float64 {
	n := len(x) &^ 7
	var sum float64
	switch {
	case n == 0 || active == plainGo:
		return squaresGeneric(x)
	case active == avx512:
		sum = squaresAVX512(&x[0], n)
	default:
		sum = squaresAVX2(&x[0], n)
	}
	return moreInner(sum, x[n:], x[n:])
}

func inner(x, y []float32) float64 {
	n := len(x) &^ 7
	var sum float64
	switch {
	case n == 0 || active == plainGo:
		return innerGeneric(x, y)
	case active == avx512:
		sum = innerAVX512(&x[0], &y[0], n)
	default:
		sum = innerAVX2(&x[0], &y[0], n)
	}
	return moreInner(sum, x[n:], y[n:])
}

// turned writes the transpose of src [rows, cols] to dst. Rows of dst are ld numbers apart;
// ld must be a multiple of 8 and at least rows. The columns of dst past rows get other
// numbers of src.
func turned(dst []float32, ld int, src []float32, rows, cols int) {
	if active == plainGo {
		turnedGeneric(dst, ld, src, rows, cols)
		return
	}
	packTransposed(dst, ld, matrix{src, cols}, 0, ld, 0, cols)
}

func weighted(g []int32, u []float32) float64 {
	n := len(g) &^ 7
	var sum float64
	switch {
	case n == 0 || active == plainGo:
		return weightedGeneric(g, u)
	case active == avx512:
		sum = weightedAVX512(&g[0], &u[0], n)
	default:
		sum = weightedAVX2(&g[0], &u[0], n)
	}
	return moreWeighted(sum, g[n:], u[n:])
}

func gram(g []int32, q []int16, pairs []uint32, side, ld int) {
	if side == 0 || ld == 0 || active == plainGo {
		gramGeneric(g, q, side, ld)
		return
	}
	for i := 0; i < side; i += 8 {
		src, dst := unsafe.Pointer(&q[i*ld]), unsafe.Pointer(&pairs[i])
		transpose8AVX2((*float32)(dst), 4*side, (*float32)(src), 2*ld, ld/16)
	}
	width := active.cols()
	for i := 0; i < side; i += blockRows {
		for j := i / width * width; j < side; j += width {
			if active == avx512 {
				gramRowsAVX512(&g[i*side+j], 4*side, &pairs[i], &pairs[j], 4*side, ld/2)
			} else {
				gramRowsAVX2(&g[i*side+j], 4*side, &pairs[i], &pairs[j], 4*side, ld/2)
			}
		}
	}
}
