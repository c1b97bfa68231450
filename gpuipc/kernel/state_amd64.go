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

// composeRows composes scalar and diagonal transitions. The state stays in L2.
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
		if s.SForm != FormPlain {
			unpacked := *s
			unpacked.S, unpacked.SType = endF32(s, sc.s, dk, dv, &sc.wide), F32
			s = &unpacked
		}
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

// scaleTurned rotates S along its key axis while it adds S to the state: first the pairs of
// rows that rotate, then the remaining rows.
func scaleTurned(dv int, state []float32, t float32, s *Step) {
	size := s.SType.Size()
	for i := range s.Dims / 2 {
		p, q := pair(i, s.Dims, s.Interleaved)
		y0, y1 := &state[p*dv], &state[q*dv]
		s0, s1 := &s.S[p*dv*size], &s.S[q*dv*size]
		switch cos, sin := s.Cos[i], s.Sin[i]; {
		case active == avx512 && s.SType == F32:
			scaleTurnedF32AVX512(y0, y1, s0, s1, t, cos, sin, dv)
		case active == avx512 && s.SType == F16:
			scaleTurnedF16AVX512(y0, y1, s0, s1, t, cos, sin, dv)
		case active == avx512:
			scaleTurnedBF16AVX512(y0, y1, s0, s1, t, cos, sin, dv)
		case s.SType == F32:
			scaleTurnedF32AVX2(y0, y1, s0, s1, t, cos, sin, dv)
		case s.SType == F16:
			scaleTurnedF16AVX2(y0, y1, s0, s1, t, cos, sin, dv)
		default:
			scaleTurnedBF16AVX2(y0, y1, s0, s1, t, cos, sin, dv)
		}
	}
	if done := s.Dims * dv; done < len(state) {
		scaleRows(state[done:], []float32{t}, s.S[done*size:], s.SType, 1, len(state)-done)
	}
}

// scaleRows computes y = t*y + s with one t for each row.
func scaleRows(y, t []float32, s []byte, dt DType, rows, cols int) {
	switch {
	case active == avx512 && dt == F32:
		scaleRowsF32AVX512(&y[0], &t[0], &s[0], rows, cols)
	case active == avx512 && dt == F16:
		scaleRowsF16AVX512(&y[0], &t[0], &s[0], rows, cols)
	case active == avx512:
		scaleRowsBF16AVX512(&y[0], &t[0], &s[0], rows, cols)
	case dt == F32:
		scaleRowsF32AVX2(&y[0], &t[0], &s[0], rows, cols)
	case dt == F16:
		scaleRowsF16AVX2(&y[0], &t[0], &s[0], rows, cols)
	default:
		scaleRowsBF16AVX2(&y[0], &t[0], &s[0], rows, cols)
	}
}

// scaleEach computes y = t*y + s with one t for each number, for rows of one column.
func scaleEach(y, t []float32, s []byte, dt DType) {
	switch n := len(y); {
	case active == avx512 && dt == F32:
		scaleEachF32AVX512(&y[0], &t[0], &s[0], n)
	case active == avx512 && dt == F16:
		scaleEachF16AVX512(&y[0], &t[0], &s[0], n)
	case active == avx512:
		scaleEachBF16AVX512(&y[0], &t[0], &s[0], n)
	case dt == F32:
		scaleEachF32AVX2(&y[0], &t[0], &s[0], n)
	case dt == F16:
		scaleEachF16AVX2(&y[0], &t[0], &s[0], n)
	default:
		scaleEachBF16AVX2(&y[0], &t[0], &s[0], n)
	}
}
