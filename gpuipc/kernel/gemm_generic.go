package kernel

func gemmGeneric(c []float32, ldc int, a []float32, lda int, b []float32, ldb int, m, n, k int) {
	for i := range m {
		row := c[i*ldc:][:n]
		for p := range k {
			axpyGeneric(row, a[i*lda+p], b[p*ldb:][:n])
		}
	}
}

func gemmNTGeneric(c []float32, ldc int, a []float32, lda int, b []float32, ldb int, m, n, k int) {
	for i := range m {
		for j := range n {
			x, y := a[i*lda:][:k], b[j*ldb:][:k]
			sum := c[i*ldc+j]
			for p, v := range x {
				sum += v * y[p]
			}
			c[i*ldc+j] = sum
		}
	}
}

func axpyGeneric(y []float32, a float32, x []float32) {
	x = x[:len(y)]
	for i, v := range x {
		y[i] += a * v
	}
}
