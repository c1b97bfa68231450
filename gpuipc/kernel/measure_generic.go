package kernel

import "math"

// The functions below decide which form a head gets. So assembly must compute the same
// bits: the order of sums is fixed and no product is fused with a sum.

// peakBitsGeneric returns the bits of the largest magnitude in x. If x has NaN or infinite
// numbers, the result is 0x7f800000 or more.
func peakBitsGeneric(x []float32) uint32 {
	var m uint32
	for _, v := range x {
		m = max(m, math.Float32bits(v)&0x7fffffff)
	}
	return m
}

// quantizeGeneric divides x by scale, rounds to nearest even, clamps to ±largest, and
// writes the integers to q. It writes to rest the difference between x and these integers
// times scale. If scale is zero, q is zero and rest is x. x must be finite.
func quantizeGeneric(q []int16, rest, x []float32, scale, largest float32) {
	q, rest = q[:len(x)], rest[:len(x)]
	if scale == 0 {
		clear(q)
		copy(rest, x)
		return
	}
	for i, v := range x {
		n := v/scale + toInteger - toInteger
		if n > largest {
			n = largest
		} else if n < -largest {
			n = -largest
		}
		q[i] = int16(n)
		rest[i] = v - float32(scale*n)
	}
}

// squaresGeneric returns the sum of squares. Number i is added to partial sum i%8. The
// numbers after the last complete eight are added to the total.
func squaresGeneric(x []float32) float64 { return innerGeneric(x, x) }

// innerGeneric returns the sum of x[i]*y[i], added in the same order as squaresGeneric.
func innerGeneric(x, y []float32) float64 {
	var s [8]float64
	whole := len(x) &^ 7
	for i := 0; i < whole; i += 8 {
		w := y[i:][:8]
		for j, v := range x[i:][:8] {
			s[j] += float64(float64(v) * float64(w[j]))
		}
	}
	return moreInner(folded8(&s), x[whole:], y[whole:])
}

func moreInner(sum float64, x, y []float32) float64 {
	for i, v := range x {
		sum += float64(float64(v) * float64(y[i]))
	}
	return sum
}

// weightedGeneric returns the sum of (u*g)², added in the same order as squaresGeneric.
func weightedGeneric(g []int32, u []float32) float64 {
	var s [8]float64
	whole := len(g) &^ 7
	for i := 0; i < whole; i += 8 {
		w := u[i:][:8]
		for j, x := range g[i:][:8] {
			v := float64(w[j]) * float64(x)
			s[j] += float64(v * v)
		}
	}
	return moreWeighted(folded8(&s), g[whole:], u[whole:])
}

func moreWeighted(sum float64, g []int32, u []float32) float64 {
	for i, x := range g {
		v := float64(u[i]) * float64(x)
		sum += float64(v * v)
	}
	return sum
}

// folded8 adds eight partial sums in the order in which assembly folds a vector register.
func folded8(s *[8]float64) float64 {
	return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]))
}

// gramGeneric computes Q*Qᵀ for integers Q [side, ld], on and above the diagonal. side must
// be even. Sums fit 32 bits: see gramCols.
func gramGeneric(g []int32, q []int16, side, ld int) {
	for i := 0; i < side; i += 2 {
		a, b := q[i*ld:][:ld], q[(i+1)*ld:][:ld]
		for j := i; j < side; j += 2 {
			c, d := q[j*ld:][:ld], q[(j+1)*ld:][:ld]
			var ac, ad, bc, bd int32
			for k, v := range a {
				v, w, x, y := int32(v), int32(b[k]), int32(c[k]), int32(d[k])
				ac, ad, bc, bd = ac+v*x, ad+v*y, bc+w*x, bd+w*y
			}
			g[i*side+j], g[i*side+j+1] = ac, ad
			g[(i+1)*side+j], g[(i+1)*side+j+1] = bc, bd
		}
	}
}
