package kernel

// sumRowsGeneric adds to a the sum of x[i] times row i of s, and to b the same
// with y unless it is nil. ld numbers from row to row.
func sumRowsGeneric(a, b, x, y, s []float32, ld int) {
	for i, f := range x {
		row := s[i*ld:][:len(a)]
		axpyGeneric(a, f, row)
		if b != nil {
			axpyGeneric(b, y[i], row)
		}
	}
}

// dotRowsGeneric sets x[i] = q times row i of s, y[i] = k times row i of s.
func dotRowsGeneric(x, y, q, k, s []float32, ld int) {
	for i := range x {
		row := s[i*ld:][:len(q)]
		x[i], y[i] = dotGeneric(q, row), dotGeneric(k, row)
	}
}

// scaledGeneric computes y = a*s.
func scaledGeneric(y []float32, a float32, s []float32) {
	s = s[:len(y)]
	for i, v := range s {
		y[i] = a * v
	}
}

// carriedGeneric computes y = w*s and then w = w*d.
func carriedGeneric(y, w, d, s []float32) {
	w, d, s = w[:len(y)], d[:len(y)], s[:len(y)]
	for i, c := range w {
		y[i] = c * s[i]
		w[i] = c * d[i]
	}
}

// addRankOnesGeneric multiplies row i of s by d[i] and adds the sum over n of
// k[n][i] times row n of u. s is [rows, cols], ld numbers from row to row.
func addRankOnesGeneric(s []float32, ld, cols int, d, k []float32, ldk int, u []float32, ldu, n int) {
	for i, f := range d {
		row := s[i*ld:][:cols]
		scaledGeneric(row, f, row)
		for r := range n {
			axpyGeneric(row, k[r*ldk+i], u[r*ldu:][:cols])
		}
	}
}
