package kernel

import "unsafe"

// tile describes one or more products D = C + A*B, each with a few rows and v.cols()
// columns. The assembly depends on this layout. Strides and steps are in bytes. A step
// leads from one tile to the next.
type tile struct {
	a     *float32
	b     *float32
	c     *byte    // F32 at any address
	d     *float32 // may be c
	panel *float32 // where tiles that keep B as a panel write it
	after *byte    // C of the tile after these; only prefetched
	ahead *byte    // data needed later; only prefetched

	lda, ldb, ldc, ldd                      int
	stepA, stepB, stepC, stepD, stepOfPanel int

	// k is the number of columns of A, count the number of tiles.
	k     int
	count int
}

// cols returns the width of a tile.
func (v isa) cols() int {
	if v == avx512 {
		return 32
	}
	return 16
}

// tallest returns the number of rows of the tile that most of a product uses.
func (v isa) tallest() int {
	if v == avx512 {
		return 12
	}
	return 6
}

// rows chooses the number of rows of the next tile, if m rows are left.
func (v isa) rows(m int) int {
	switch {
	case v == avx512 && m >= 12:
		return 12
	case v == avx512 && m >= 8:
		return 8
	case v == avx2 && m >= 6 && m != 8: // 8 is 4+4: 2 rows are too few to hide latency
		return 6
	case m >= 4:
		return 4
	case m >= 2:
		return 2
	}
	return 1
}

// call computes tiles with the given number of rows.
func (t *tile) call(v isa, rows int) {
	if v == avx512 {
		t.callAVX512(rows)
		return
	}
	switch rows {
	case 6:
		tile6x16AVX2(t)
	case 4:
		tile4x16AVX2(t)
	case 2:
		tile2x16AVX2(t)
	default:
		tile1x16AVX2(t)
	}
}

func (t *tile) callAVX512(rows int) {
	switch rows {
	case 12:
		tile12x32AVX512(t)
	case 8:
		tile8x32AVX512(t)
	case 4:
		tile4x32AVX512(t)
	case 2:
		tile2x32AVX512(t)
	default:
		tile1x32AVX512(t)
	}
}

// callKeeping computes tiles of the tallest height and also stores B as panels.
func (t *tile) callKeeping(v isa) {
	if v == avx512 {
		tile12x32KeepAVX512(t)
		return
	}
	tile6x16KeepAVX2(t)
}

// The method column computes m rows, from top to bottom. It does not know which tile the
// caller computes next. So it sets t.after, which is only prefetched, to the first C of
// these tiles.
func (t tile) column(v isa, m int) {
	for m > 0 {
		rows := v.rows(m)
		t.count = m / rows
		if v == avx2 && rows == 6 && m%6 == 2 {
			t.count-- // leaves 4+4
		}
		t.stepA, t.stepC, t.stepD = rows*t.lda, rows*t.ldc, rows*t.ldd
		t.after, t.ahead = t.c, t.c
		done := rows * t.count
		t.call(v, rows)
		if m -= done; m > 0 { // a pointer must not leave its memory
			t.a, t.c, t.d = ahead(t.a, done*t.lda), ahead(t.c, done*t.ldc), ahead(t.d, done*t.ldd)
		}
	}
}

func ahead[T any](p *T, bytes int) *T { return (*T)(unsafe.Add(unsafe.Pointer(p), bytes)) }

// pack copies panels, each with the given rows of v.cols() numbers. Strides are in bytes.
func (v isa) pack(dst *float32, dstRow, dstPanel int, src *float32, srcRow, srcPanel, rows, panels int) {
	if v == avx512 {
		packAVX512(dst, dstRow, dstPanel, src, srcRow, srcPanel, rows, panels)
		return
	}
	packAVX2(dst, dstRow, dstPanel, src, srcRow, srcPanel, rows, panels)
}
