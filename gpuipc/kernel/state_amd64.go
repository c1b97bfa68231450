package kernel

func compose(tr Transition, dk, dv int, state []float32, steps []Step, sc *Scratch) {
	switch {
	case active == plainGo:
		composeGeneric(tr, dk, dv, state, steps, sc)
	case tr == Dense:
		composeDense(active, dk, dv, state, steps, sc)
	default:
		composeRows(tr, dk, dv, state, steps, sc)
	}
}

// composeRows composes scalar and diagonal transitions, the state staying in L2.
func composeRows(tr Transition, dk, dv int, state []float32, steps []Step, sc *Scratch) {
	for i := range steps {
		s := &steps[i]
		if s.Before != nil {
			copy(s.Before, state)
		}
		if s.empty() {
			continue
		}
		t := sc.t[:tr.count(dk)]
		toF32(t, s.T, s.TType)
		switch {
		case tr == Scalar && s.Dims > 0:
			scaleTurned(dv, state, t[0], s)
		case tr == Scalar:
			scaleRows(state, t, s.S, s.SType, 1, dk*dv)
		case dv == 1:
			scaleEach(state, t, s.S, s.SType)
		default:
			scaleRows(state, t, s.S, s.SType, dk, dv)
		}
	}
}

// scaleTurned turns S on its key axis on the way: pairs of rows, then the rest.
func scaleTurned(dv int, state []float32, t float32, s *Step) {
	size := s.SType.Size()
	for i := range s.Dims / 2 {
		p, q := pair(i, s.Dims, s.Interleaved)
		y0, y1 := &state[p*dv], &state[q*dv]
		s0, s1 := &s.S[p*dv*size], &s.S[q*dv*size]
		switch s.SType {
		case F32:
			scaleTurnedF32AVX2(y0, y1, s0, s1, t, s.Cos[i], s.Sin[i], dv)
		case F16:
			scaleTurnedF16AVX2(y0, y1, s0, s1, t, s.Cos[i], s.Sin[i], dv)
		case BF16:
			scaleTurnedBF16AVX2(y0, y1, s0, s1, t, s.Cos[i], s.Sin[i], dv)
		}
	}
	if done := s.Dims * dv; done < len(state) {
		scaleRows(state[done:], []float32{t}, s.S[done*size:], s.SType, 1, len(state)-done)
	}
}

func scaleRows(y, t []float32, s []byte, dt DType, rows, cols int) {
	switch dt {
	case F32:
		scaleRowsF32AVX2(&y[0], &t[0], &s[0], rows, cols)
	case F16:
		scaleRowsF16AVX2(&y[0], &t[0], &s[0], rows, cols)
	case BF16:
		scaleRowsBF16AVX2(&y[0], &t[0], &s[0], rows, cols)
	}
}

func scaleEach(y, t []float32, s []byte, dt DType) {
	switch dt {
	case F32:
		scaleEachF32AVX2(&y[0], &t[0], &s[0], len(y))
	case F16:
		scaleEachF16AVX2(&y[0], &t[0], &s[0], len(y))
	case BF16:
		scaleEachBF16AVX2(&y[0], &t[0], &s[0], len(y))
	}
}
