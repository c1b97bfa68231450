package refengine

import "github.com/spliced-kv/spliced/gpuipc/kernel"

// Float is the arithmetic of a model.
type Float interface{ float32 | float64 }

// product adds a*b to c, all row-major: c is [m, n], a [m, k], b [k, n]. A row of c does not
// depend on m, so rows may be computed in any grouping. In float32 it uses the daemon's kernel,
// in float64 a plain loop.
func product[F Float](c []F, ldc int, a []F, lda int, b []F, ldb int, m, n, k int) {
	if c, ok := any(c).([]float32); ok {
		kernel.Gemm(c, ldc, any(a).([]float32), lda, any(b).([]float32), ldb, m, n, k)
		return
	}
	for i := range m {
		ci := c[i*ldc : i*ldc+n]
		ai := a[i*lda : i*lda+k]
		for p, x := range ai {
			for j, y := range b[p*ldb : p*ldb+n] {
				ci[j] += x * y
			}
		}
	}
}

// productT adds a*b^T to c: c is [m, n], a [m, k], b [n, k].
func productT[F Float](c []F, ldc int, a []F, lda int, b []F, ldb int, m, n, k int) {
	if c, ok := any(c).([]float32); ok {
		kernel.GemmNT(c, ldc, any(a).([]float32), lda, any(b).([]float32), ldb, m, n, k)
		return
	}
	for i := range m {
		ci := c[i*ldc : i*ldc+n]
		ai := a[i*lda : i*lda+k]
		for j := range ci {
			var sum F
			for p, y := range b[j*ldb : j*ldb+k] {
				sum += ai[p] * y
			}
			ci[j] += sum
		}
	}
}
