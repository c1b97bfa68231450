package kernel

import "math"

func rotateRowsGeneric(dst, src []byte, g grid, turn Turn) {
	size := g.headBytes()
	for r := range g.rows {
		for h := range g.heads {
			rotateHeadGeneric(dst[r*g.rowStride+h*g.headStride:][:size], src[(r*g.heads+h)*size:][:size], g.dt, turn)
		}
	}
}

func rotateRowsAtGeneric(dst, src []byte, g grid, turn Turn) {
	for r := range g.rows {
		one := g
		one.rows = 1
		rotateRowsGeneric(dst[r*g.rowStride:], src[r*g.rowBytes():], one, turn.row(r))
	}
}

// row returns the rotation of row r.
func (t Turn) row(r int) Turn {
	half := t.Dims / 2
	t.Cos, t.Sin = t.Cos[r*half:][:half], t.Sin[r*half:][:half]
	return t
}

func rotateHeadGeneric(dst, src []byte, dt DType, turn Turn) {
	done := turn.Dims * dt.Size()
	turnPairsGeneric(dst, src, dt, turn, 0)
	copy(dst[done:], src[done:])
}

// turnPairsGeneric rotates the pairs of one head, beginning with pair number first.
func turnPairsGeneric(dst, src []byte, dt DType, turn Turn, first int) {
	for i := first; i < turn.Dims/2; i++ {
		p, q := pair(i, turn.Dims, turn.Interleaved)
		x, y := turnPair(loadGeneric(src, dt, p), loadGeneric(src, dt, q), turn.Cos[i], turn.Sin[i])
		storeGeneric(dst, dt, p, x)
		storeGeneric(dst, dt, q, y)
	}
}

// pair returns the two dimensions of pair i.
func pair(i, dims int, interleaved bool) (int, int) {
	if interleaved {
		return 2 * i, 2*i + 1
	}
	return i, i + dims/2
}

// turnPair rounds the product with the sine, and then rounds the multiply-add once. All
// processors do the same, so that keys have the same bits everywhere.
func turnPair(x, y, c, s float32) (float32, float32) {
	return fma32(x, c, -float32(y*s)), fma32(y, c, float32(x*s))
}

// fma32 returns a*b + c, rounded once. The product of two F32 numbers is exact in float64.
// The sum is rounded to odd in float64, so that the lost bits still break a tie when the
// sum is rounded to F32.
func fma32(a, b, c float32) float32 {
	product, addend := float64(a)*float64(b), float64(c)
	sum := product + addend
	t := sum - product
	lost := (product - (sum - t)) + (addend - t)
	bits := math.Float64bits(sum)
	if lost == 0 || lost != lost || bits&1 != 0 {
		return float32(sum)
	}
	if (lost > 0) == (sum > 0) {
		return float32(math.Float64frombits(bits + 1))
	}
	return float32(math.Float64frombits(bits - 1))
}
