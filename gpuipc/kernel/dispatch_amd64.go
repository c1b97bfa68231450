package kernel

func compose(tr Transition, dk, dv int, state []float32, steps []Step, sc *Scratch) {
	if active != plainGo && tr == Dense {
		composeDense(active, dk, dv, state, steps, sc)
		return
	}
	composeGeneric(tr, dk, dv, state, steps, sc)
}

func rotateRows(dst, src []byte, g grid, turn Turn)   { rotateRowsGeneric(dst, src, g, turn) }
func rotateRowsAt(dst, src []byte, g grid, turn Turn) { rotateRowsAtGeneric(dst, src, g, turn) }

func dot(a, b []float32) float32               { return dotGeneric(a, b) }
func axpy(y []float32, a float32, x []float32) { axpyGeneric(y, a, x) }

func toF32(dst []float32, src []byte, dt DType)   { toF32Generic(dst, src, dt) }
func fromF32(dst []byte, src []float32, dt DType) { fromF32Generic(dst, src, dt) }

func peakFMA(rounds int) (flops float64) {
	switch active {
	case avx512:
		peakFMAAVX512(rounds)
		return float64(rounds) * 24 * 16 * 2
	case avx2:
		peakFMAAVX2(rounds)
		return float64(rounds) * 12 * 8 * 2
	}
	return peakFMAGeneric(rounds)
}
