package kernel

import "math"

const (
	// measureLargest is the largest of the 12-bit integers that approximate a matrix when
	// its norm is measured. A sum of gramCols squares of such integers fits 32 bits.
	measureLargest = 2047
	gramCols       = 512
	// gramSide is the multiple to which the number of rows of these integers is padded.
	gramSide = 32

	// 1.5*2^23: adding it rounds a float32 to an integer in its low bits.
	toInteger = 12582912

	half32 = 0x1p-24 // largest relative error of one F32 operation
	half64 = 0x1p-53 // the same for float64
)

// The bounds below decide which form a head gets, so they must have the same bits on every
// processor. Therefore no product is fused with a sum.

// raised returns an upper bound of the exact sum of n non-negative numbers, whose rounded
// sum is given.
func raised(sum float64, n int) float64 { return float64(sum * (1 + float64(float64(n+16)*2*half64))) }

// root returns an upper bound of the square root of a sum of n squares, whose rounded sum
// is given.
func root(sum float64, n int) float64 { return float64(math.Sqrt(raised(sum, n)) * (1 + 4*half64)) }

// meter computes bounds of spectral norms. Its memory grows with the matrices that it gets.
type meter struct {
	// q has the integers, units the unit of each row, rest the remainder of one row.
	q     []int16 // [side, ld]
	units []float32
	rest  []float32
	pairs []uint32 // q with pairs of columns as one number, transposed, for assembly
	gram  []int32
	ld    int
}

// norms returns upper bounds of the spectral and the Frobenius norm of a finite matrix A.
// The spectral bound is the Frobenius norm or ‖A*Aᵀ‖^½, whichever is smaller. The latter is
// exact for a single singular value, and too large by a factor n^¼ for n equal singular
// values. To compute it, A is split into U*Q + R: Q are 12-bit integers, U has a unit for
// each row, and R is the remainder, whose Frobenius norm is added. Sums of products of
// integers are exact in any order.
func (m *meter) norms(a []float32, rows, cols int) (spectral, frobenius float64) {
	if cols > gramCols {
		frobenius = root(squares(a), len(a))
		return frobenius, frobenius
	}
	m.reserve(rows, cols)
	var all, rest float64
	for i := range rows {
		row := a[i*cols:][:cols]
		m.units[i] = math.Float32frombits(peakBits(row)) / measureLargest
		quantize(m.q[i*m.ld:][:cols], m.rest, row, m.units[i], measureLargest)
		all += squares(row)
		rest += squares(m.rest)
	}
	frobenius = root(all, len(a))
	// Products of units and integers are rounded, and so are their differences from A.
	slack := float64(root(rest, len(a))*(1+4*half32)) + float64(2*half32*frobenius)
	spectral = float64(math.Sqrt(root(m.fourth(rows), 2*rows))*(1+4*half64)) + slack
	return min(spectral, frobenius), frobenius
}

// fourth returns ‖U*Q*Qᵀ*U‖², the sum of the fourth powers of the singular values of U*Q.
func (m *meter) fourth(rows int) float64 {
	side := roundUp(rows, gramSide)
	gram(m.gram, m.q, m.pairs, side, m.ld)
	var sum float64
	for i, u := range m.units[:rows] {
		row := weighted(m.gram[i*side:][i+1:rows], m.units[i+1:rows])
		d := float64(m.gram[i*side+i])
		w := float64(u) * float64(u)
		sum += float64(w * (float64(2*row) + float64(w*float64(d*d))))
	}
	return sum
}

// reserve allocates memory. Integers outside the matrix are zero.
func (m *meter) reserve(rows, cols int) {
	side, ld := roundUp(rows, gramSide), roundUp(cols, 16)
	if len(m.q) == side*ld && len(m.units) == rows && len(m.rest) == cols {
		return
	}
	*m = meter{
		q: make([]int16, side*ld), units: make([]float32, rows), rest: make([]float32, cols),
		pairs: make([]uint32, side*ld/2), gram: make([]int32, side*side), ld: ld,
	}
}

func roundUp(n, to int) int { return (n + to - 1) / to * to }
