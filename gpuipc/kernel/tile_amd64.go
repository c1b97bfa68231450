package kernel

import "unsafe"

// tile is D = C + A*B for some rows and one panel of columns: C and D point at
// the first of its rows, strides are in bytes.
type tile struct {
	a   *float32
	lda int
	b   *float32
	ldb int
	c   *byte
	ldc int
	d   *float32
	ldd int
}

// cols is the width of a panel.
func (v isa) cols() int {
	if v == avx512 {
		return 32
	}
	return 16
}

func (v isa) pack(dst *float32, dstRow, dstPanel int, src *float32, srcRow, srcPanel, rows, panels int) {
	if v == avx512 {
		packAVX512(dst, dstRow, dstPanel, src, srcRow, srcPanel, rows, panels)
		return
	}
	packAVX2(dst, dstRow, dstPanel, src, srcRow, srcPanel, rows, panels)
}

// run works through m rows along k, the tallest blocks first.
func (t tile) run(v isa, m, k int) {
	for m > 0 {
		rows, n := v.blocks(m)
		t.call(v, rows, n, k)
		if m -= rows * n; m > 0 { // never points past the memory
			t.down(rows * n)
		}
	}
}

// blocks chooses how tall a block to take of m rows, and how many of them.
func (v isa) blocks(m int) (rows, n int) {
	switch {
	case v == avx512 && m >= 12:
		return 12, m / 12
	case v == avx512 && m >= 8:
		return 8, 1
	case v == avx2 && m%6 == 2 && m > 8:
		return 6, m/6 - 1 // leaves 4+4, since a block of 2 rows is too short to hide latency
	case v == avx2 && m >= 6 && m != 8:
		return 6, m / 6
	case m >= 4:
		return 4, m / 4
	case m >= 2:
		return 2, 1
	}
	return 1, 1
}

func (t *tile) call(v isa, rows, n, k int) {
	if v == avx512 {
		t.callAVX512(rows, n, k)
		return
	}
	switch rows {
	case 6:
		tile6x16AVX2(t.a, t.lda, t.b, t.ldb, t.c, t.ldc, t.d, t.ldd, k, n)
	case 4:
		tile4x16AVX2(t.a, t.lda, t.b, t.ldb, t.c, t.ldc, t.d, t.ldd, k, n)
	case 2:
		tile2x16AVX2(t.a, t.lda, t.b, t.ldb, t.c, t.ldc, t.d, t.ldd, k, n)
	default:
		tile1x16AVX2(t.a, t.lda, t.b, t.ldb, t.c, t.ldc, t.d, t.ldd, k, n)
	}
}

func (t *tile) callAVX512(rows, n, k int) {
	switch rows {
	case 12:
		tile12x32AVX512(t.a, t.lda, t.b, t.ldb, t.c, t.ldc, t.d, t.ldd, k, n)
	case 8:
		tile8x32AVX512(t.a, t.lda, t.b, t.ldb, t.c, t.ldc, t.d, t.ldd, k, n)
	case 4:
		tile4x32AVX512(t.a, t.lda, t.b, t.ldb, t.c, t.ldc, t.d, t.ldd, k, n)
	case 2:
		tile2x32AVX512(t.a, t.lda, t.b, t.ldb, t.c, t.ldc, t.d, t.ldd, k, n)
	default:
		tile1x32AVX512(t.a, t.lda, t.b, t.ldb, t.c, t.ldc, t.d, t.ldd, k, n)
	}
}

func (t *tile) down(rows int) {
	t.a = (*float32)(unsafe.Add(unsafe.Pointer(t.a), rows*t.lda))
	t.c = (*byte)(unsafe.Add(unsafe.Pointer(t.c), rows*t.ldc))
	t.d = (*float32)(unsafe.Add(unsafe.Pointer(t.d), rows*t.ldd))
}
