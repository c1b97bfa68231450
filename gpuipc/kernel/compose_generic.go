package kernel

// panelWidth is the number of columns that the widest dense kernel computes at once.
const panelWidth = 32

func composeGeneric(tr Transition, dk, dv int, state []float32, steps []Step, sc *Scratch) {
	for i := range steps {
		st := &steps[i]
		if st.Before != nil {
			copy(st.Before, state)
		}
		if st.empty() {
			continue
		}
		t, s := sc.t[:tr.count(dk)], sc.s[:dk*dv]
		unpackGeneric(s, st.SForm, st.S, st.SType, dk, dv, &sc.wide)
		if st.TForm == FormZero {
			copy(state, s)
			continue
		}
		unpackGeneric(t, st.TForm, st.T, st.TType, dk, dk, &sc.wide)
		switch tr {
		case Scalar:
			turnStateGeneric(s, dv, st)
			scaleAddGeneric(state, t[0], s)
		case Diagonal:
			for r := range dk {
				scaleAddGeneric(state[r*dv:][:dv], t[r], s[r*dv:])
			}
		case Dense:
			gemmGeneric(s, dv, t, dk, state, dv, dk, dv, dk)
			copy(state, s)
		}
	}
}

// scaleAddGeneric computes y = a*y + s. The conversion rounds the product and forbids a
// fused multiply-add, so that every processor computes the same bits.
func scaleAddGeneric(y []float32, a float32, s []float32) {
	s = s[:len(y)]
	for i, v := range y {
		y[i] = float32(a*v) + s[i]
	}
}

// turnStateGeneric rotates the leading rows of s [dk, dv], one pair of rows at a time.
func turnStateGeneric(s []float32, dv int, st *Step) {
	for i := range st.Dims / 2 {
		p, q := pair(i, st.Dims, st.Interleaved)
		x, y := s[p*dv:][:dv], s[q*dv:][:dv]
		c, n := st.Cos[i], st.Sin[i]
		for j := range x {
			x[j], y[j] = turnPair(x[j], y[j], c, n)
		}
	}
}
