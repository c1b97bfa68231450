package enginekernel

// sumRowsGeneric adds to a the sum of x[i] times row i of s. Unless b is nil, it adds to b
// the sum of y[i] times row i of s. Rows of s are ld numbers apart.
func sumRowsGeneric(a, b, x, y, s []float32, ld int) {
	for i, f := range x {
		row := s[i*ld:][:len(a)]
		axpyGeneric(a, f, row)
		if b != nil {
			axpyGeneric(b, y[i], row)
		}
	}
}

// dotRowsGeneric sets x[i] to q times row i of s, and y[i] to k times row i of s.
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

// addRankOnesGeneric multiplies row i of s by d[i] and adds the sum of k[r][i] times row r
// of u, for r below n. s is [len(d), cols], with ld numbers from row to row.
func addRankOnesGeneric(s []float32, ld, cols int, d, k []float32, ldk int, u []float32, ldu, n int) {
	for i, f := range d {
		row := s[i*ld:][:cols]
		scaledGeneric(row, f, row)
		for r := range n {
			axpyGeneric(row, k[r*ldk+i], u[r*ldu:][:cols])
		}
	}
}

func dotGeneric(a, b []float32) float32 {
	var sum float32
	b = b[:len(a)]
	for i, v := range a {
		sum += v * b[i]
	}
	return sum
}

func axpyGeneric(y []float32, a float32, x []float32) {
	x = x[:len(y)]
	for i, v := range x {
		y[i] += a * v
	}
}
