//go:build !amd64

package kernel

func compose(tr Transition, dk, dv int, state []float32, steps []Step, sc *Scratch) {
	composeGeneric(tr, dk, dv, state, steps, sc)
}

func rotateRows(dst, src []byte, g grid, turn Turn)   { rotateRowsGeneric(dst, src, g, turn) }
func rotateRowsAt(dst, src []byte, g grid, turn Turn) { rotateRowsAtGeneric(dst, src, g, turn) }

func gemm(c []float32, ldc int, a []float32, lda int, b []float32, ldb int, m, n, k int) {
	gemmGeneric(c, ldc, a, lda, b, ldb, m, n, k)
}

func gemmNT(c []float32, ldc int, a []float32, lda int, b []float32, ldb int, m, n, k int) {
	gemmNTGeneric(c, ldc, a, lda, b, ldb, m, n, k)
}

func axpy(y []float32, a float32, x []float32) { axpyGeneric(y, a, x) }

func toF32(dst []float32, src []byte, dt DType)   { toF32Generic(dst, src, dt) }
func fromF32(dst []byte, src []float32, dt DType) { fromF32Generic(dst, src, dt) }

func peakFMA(rounds int) float64 { return peakFMAGeneric(rounds) }

// Features returns the instruction sets of the kernels, widest last. Plain Go
// has none.
func Features() []string { return nil }

func replay(s []float32, ld, rows, cols int, r *Rows) { replayGeneric(s, ld, rows, cols, r) }

func unpackRows(dst []float32, f Form, scales, q []byte, cols int) {
	unpackRowsGeneric(dst, f, scales, q, cols)
}

func peakBits(x []float32) uint32 { return peakBitsGeneric(x) }

func quantize(q []int16, rest, x []float32, scale, largest float32) {
	quantizeGeneric(q, rest, x, scale, largest)
}

func squares(x []float32) float64             { return squaresGeneric(x) }
func inner(x, y []float32) float64            { return innerGeneric(x, y) }
func weighted(g []int32, u []float32) float64 { return weightedGeneric(g, u) }

func turned(dst []float32, ld int, src []float32, rows, cols int) {
	turnedGeneric(dst, ld, src, rows, cols)
}

func gram(g []int32, q []int16, _ []uint32, side, ld int) { gramGeneric(g, q, side, ld) }
