package kernel

import "fmt"

// Gemm computes C += A*B, row-major F32: A is [m, k], B is [k, n], C is [m, n],
// with ld numbers from row to row. C must not overlap A or B.
//
// For each number of C, the products are added in the order of k, starting from the old
// value. So the number depends only on its row of A and its column of B: splitting m, n or
// k gives the same bits.
func Gemm(c []float32, ldc int, a []float32, lda int, b []float32, ldb int, m, n, k int) {
	checkMatrix("C", c, ldc, m, n)
	checkMatrix("A", a, lda, m, k)
	checkMatrix("B", b, ldb, k, n)
	if m > 0 && n > 0 && k > 0 {
		gemm(c, ldc, a, lda, b, ldb, m, n, k)
	}
}

// GemmNT computes C += A*Bᵀ, where B is [n, k]. Everything else is as in Gemm.
func GemmNT(c []float32, ldc int, a []float32, lda int, b []float32, ldb int, m, n, k int) {
	checkMatrix("C", c, ldc, m, n)
	checkMatrix("A", a, lda, m, k)
	checkMatrix("B", b, ldb, n, k)
	if m > 0 && n > 0 && k > 0 {
		gemmNT(c, ldc, a, lda, b, ldb, m, n, k)
	}
}

// Axpy computes y += a*x. x and y must have the same length.
func Axpy(y []float32, a float32, x []float32) {
	if len(y) != len(x) {
		panic(fmt.Sprintf("kernel: axpy of %d and %d numbers", len(y), len(x)))
	}
	axpy(y, a, x)
}

func checkMatrix(name string, v []float32, ld, rows, cols int) {
	if rows < 0 || cols < 0 || ld < cols || (rows > 0 && cols > 0 && len(v) < (rows-1)*ld+cols) {
		panic(fmt.Sprintf("kernel: %s [%d, %d] with rows %d apart in %d numbers", name, rows, cols, ld, len(v)))
	}
}
