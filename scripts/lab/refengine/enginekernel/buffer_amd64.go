package enginekernel

import "github.com/spliced-kv/spliced/gpuipc/kernel"

// isa is an instruction set with assembly.
type isa int

const (
	plainGo isa = iota // no assembly
	avx2
	avx512
)

// active is the instruction set that gpuipc/kernel uses. Only tests change it.
var active = map[int]isa{0: plainGo, 3: avx2, 4: avx512}[len(kernel.Features())]

func sumRows(a, b, x, y, s []float32, ld int) {
	switch rows, cols := len(x), len(a); {
	case rows == 0 || cols == 0:
	case active == plainGo:
		sumRowsGeneric(a, b, x, y, s, ld)
	case active == avx512 && b == nil:
		sumRows1AVX512(&a[0], &x[0], &s[0], 4*ld, rows, cols)
	case active == avx512:
		sumRows2AVX512(&a[0], &b[0], &x[0], &y[0], &s[0], 4*ld, rows, cols)
	case b == nil:
		sumRows1AVX2(&a[0], &x[0], &s[0], 4*ld, rows, cols)
	default:
		sumRows2AVX2(&a[0], &b[0], &x[0], &y[0], &s[0], 4*ld, rows, cols)
	}
}

// fetch prefetches memory.
func fetch(b []byte) {
	switch n := len(b); {
	case n == 0 || active == plainGo:
	case active == avx512:
		fetchAVX512(&b[0], n)
	default:
		fetchAVX2(&b[0], n)
	}
}

func dotRows(x, y, q, k, s []float32, ld int) {
	switch rows, cols := len(x), len(q); {
	case rows == 0 || cols == 0:
		clear(x)
		clear(y)
	case active == plainGo:
		dotRowsGeneric(x, y, q, k, s, ld)
	case active == avx512:
		dotRowsAVX512(&x[0], &y[0], &q[0], &k[0], &s[0], 4*ld, rows, cols)
	default:
		dotRowsAVX2(&x[0], &y[0], &q[0], &k[0], &s[0], 4*ld, rows, cols)
	}
}

func scaled(y []float32, a float32, s []float32) {
	switch n := len(y); {
	case n == 0:
	case active == plainGo:
		scaledGeneric(y, a, s)
	case active == avx512:
		scaledAVX512(&y[0], a, &s[0], n)
	default:
		scaledAVX2(&y[0], a, &s[0], n)
	}
}

func carried(y, w, d, s []float32) {
	switch n := len(y); {
	case n == 0:
	case active == plainGo:
		carriedGeneric(y, w, d, s)
	case active == avx512:
		carriedAVX512(&y[0], &w[0], &d[0], &s[0], n)
	default:
		carriedAVX2(&y[0], &w[0], &d[0], &s[0], n)
	}
}

func dot(a, b []float32) float32 {
	switch n := len(a); {
	case n == 0:
		return 0
	case active == plainGo:
		return dotGeneric(a, b)
	case active == avx512:
		return dotAVX512(&a[0], &b[0], n)
	default:
		return dotAVX2(&a[0], &b[0], n)
	}
}

// blockRows is the number of rows of the block of a state that assembly keeps in registers.
// Rows and columns that fill no block are computed in plain Go.
const blockRows = 4

func (v isa) blockCols() int {
	switch v {
	case avx512:
		return 32
	case avx2:
		return 16
	}
	return 0
}

// blocks returns how many rows and columns of a state assembly computes.
func (v isa) blocks(rows, cols int) (int, int) {
	width := v.blockCols()
	if width == 0 || rows < blockRows || cols < width {
		return 0, 0
	}
	return rows / blockRows * blockRows, cols / width * width
}

func addRankOnes(s []float32, ld, cols int, d, k []float32, ldk int, u []float32, ldu, n int) {
	rows := len(d)
	m, w := active.blocks(rows, cols)
	switch {
	case n == 0:
		m, w = 0, 0
	case m > 0 && active == avx512:
		addRankOnesAVX512(&s[0], 4*ld, &d[0], &k[0], 4*ldk, &u[0], 4*ldu, n, m, w)
	case m > 0:
		addRankOnesAVX2(&s[0], 4*ld, &d[0], &k[0], 4*ldk, &u[0], 4*ldu, n, m, w)
	}
	if w < cols && m > 0 {
		addRankOnesGeneric(s[w:], ld, cols-w, d[:m], k, ldk, u[w:], ldu, n)
	}
	if m < rows {
		addRankOnesGeneric(s[m*ld:], ld, cols, d[m:], k[min(m, len(k)):], ldk, u, ldu, n)
	}
}
