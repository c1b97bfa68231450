package kernel

import (
	"fmt"
	"math"
	"testing"
)

// unit is the rounding error of one F32 operation.
const unit = 0x1p-24

// transposed returns the [cols, rows] form of v [rows, cols].
func transposed(v []float32, rows, cols int) []float32 {
	out := make([]float32, len(v))
	for i := range rows {
		for j := range cols {
			out[j*rows+i] = v[i*cols+j]
		}
	}
	return out
}

// Tolerance: each of k+1 roundings loses at most one unit of the sum of
// magnitudes.
func TestProductsAgreeWithFloat64(t *testing.T) {
	r := rng(t)
	type shape struct{ m, n, k int }
	shapes := []shape{{1, 1, 1}, {1, 32, 64}, {6, 16, 8}, {7, 33, 129}, {12, 32, 128}, {13, 31, 300}, {25, 95, 17}, {64, 48, 600}}
	for range 60 {
		shapes = append(shapes, shape{1 + r.IntN(40), 1 + r.IntN(100), 1 + r.IntN(80)})
	}
	eachISA(t, func(t *testing.T) {
		for _, s := range shapes {
			m, n, k := s.m, s.n, s.k
			a, b := make([]float32, m*k), make([]float32, k*n)
			normal(r, a, 1)
			normal(r, b, 1)
			start := make([]float32, m*n)
			normal(r, start, 3)
			nn, nnOK := guardedF32(t, m*n)
			nt, ntOK := guardedF32(t, m*n)
			copy(nn, start)
			copy(nt, start)
			Gemm(nn, n, a, k, b, n, m, n, k)
			GemmNT(nt, n, a, k, transposed(b, k, n), k, m, n, k)
			nnOK()
			ntOK()
			wantSame(t, fmt.Sprintf("%+v: NT against NN", s), nt, nn)
			for i := range m {
				for j := range n {
					sum := float64(start[i*n+j])
					size := math.Abs(sum)
					for p := range k {
						x := float64(a[i*k+p]) * float64(b[p*n+j])
						sum, size = sum+x, size+math.Abs(x)
					}
					if d := math.Abs(float64(nn[i*n+j]) - sum); d > float64(k+1)*unit*size {
						t.Fatalf("%+v: C[%d,%d] is %v, want %v", s, i, j, nn[i*n+j], sum)
					}
				}
			}
		}
	})
}

func TestProductOfPartsIsTheSameBits(t *testing.T) {
	r := rng(t)
	eachISA(t, func(t *testing.T) {
		const m, n, k = 37, 101, 530
		const lda, ldb, ldc = k + 3, n + 5, n + 1
		a, b := make([]float32, m*lda), make([]float32, k*ldb)
		normal(r, a, 1)
		normal(r, b, 1)
		whole, parts := make([]float32, m*ldc), make([]float32, m*ldc)
		Gemm(whole, ldc, a, lda, b, ldb, m, n, k)
		for _, c := range [][2]int{{0, 1}, {1, 29}, {29, 64}, {64, n}} {
			for i := 0; i < m; i += 5 {
				rows, cols := min(5, m-i), c[1]-c[0]
				Gemm(parts[i*ldc+c[0]:], ldc, a[i*lda:], lda, b[c[0]:], ldb, rows, cols, 77)
				Gemm(parts[i*ldc+c[0]:], ldc, a[i*lda+77:], lda, b[77*ldb+c[0]:], ldb, rows, cols, k-77)
			}
		}
		wantSame(t, "parts", parts, whole)
	})
}

func TestProductLeavesOtherColumnsAlone(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		const m, n, k, ld = 9, 21, 5, 40
		a, b := make([]float32, m*k), make([]float32, k*n)
		for i := range a {
			a[i] = 1
		}
		for i := range b {
			b[i] = 1
		}
		c := make([]float32, m*ld)
		for i := range c {
			c[i] = 7
		}
		Gemm(c, ld, a, k, b, n, m, n, k)
		for i, v := range c {
			if want := float32(7 + k*min(1, max(0, n-i%ld))); v != want {
				t.Fatalf("C[%d,%d] is %v, want %v", i/ld, i%ld, v, want)
			}
		}
	})
}

func TestProductsCarryNaNAndInf(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		const m, n, k = 14, 40, 9
		a, b, c := make([]float32, m*k), make([]float32, k*n), make([]float32, m*n)
		for i := range b {
			b[i] = 1
		}
		a[3*k+8] = float32(math.NaN())
		a[5*k+1] = float32(math.Inf(-1))
		Gemm(c, n, a, k, b, n, m, n, k)
		for i, v := range c {
			switch row := i / n; {
			case row == 3 && v == v, row == 5 && !math.IsInf(float64(v), -1), row != 3 && row != 5 && v != 0:
				t.Fatalf("C[%d,%d] is %v", row, i%n, v)
			}
		}
	})
}

func TestAxpyAgreesWithFloat64(t *testing.T) {
	r := rng(t)
	eachISA(t, func(t *testing.T) {
		for n := range 300 {
			x, y := make([]float32, n), make([]float32, n)
			normal(r, x, 1)
			normal(r, y, 1)
			out, ok := guardedF32(t, n)
			copy(out, y)
			Axpy(out, 1.25, x)
			ok()
			for i := range out {
				p := 1.25 * float64(x[i])
				want := p + float64(y[i])
				if math.Abs(float64(out[i])-want) > 2*unit*(math.Abs(p)+math.Abs(float64(y[i]))) {
					t.Fatalf("n=%d: y[%d] is %v, want %v", n, i, out[i], want)
				}
			}
		}
	})
}
