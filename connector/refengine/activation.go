package refengine

import "math"

// The functions below work on whole slices so that the arithmetic is chosen once
// per call and the float32 loops stay free of calls.

// exponential replaces every x by e^x.
func exponential[F Float](x []F) {
	switch x := any(x).(type) {
	case []float32:
		exp32(x)
	case []float64:
		for i, v := range x {
			x[i] = math.Exp(v)
		}
	}
}

// sigmoid replaces every x by 1/(1+e^-x).
func sigmoid[F Float](x []F) {
	for i, v := range x {
		x[i] = -v
	}
	exponential(x)
	for i, v := range x {
		x[i] = 1 / (1 + v)
	}
}

// silu writes x*sigmoid(x) to dst; dst must not overlap x.
func silu[F Float](dst, x []F) {
	copy(dst, x)
	sigmoid(dst)
	for i, v := range x {
		dst[i] *= v
	}
}

// softplus is ln(1+e^x), in float64 because decay exponents near zero decide
// how long a state lives.
func softplus[F Float](x F) float64 {
	v := float64(x)
	if v > 30 {
		return v
	}
	return math.Log1p(math.Exp(v))
}

const (
	log2e = 1.44269504088896341
	ln2Hi = 0.693359375 // exact in 9 bits, so n*ln2Hi is exact
	ln2Lo = -2.12194440e-4
	// Beyond these e^x leaves the normal float32 range.
	maxExp = 88.37
	minExp = -87.33
)

// exp32 replaces every x by e^x with a relative error below 2e-7: range
// reduction to |r| <= ln2/2, a degree 7 polynomial, and a scale by 2^n set in
// the exponent bits. Results below the normal range are 0.
func exp32(x []float32) {
	for i, v := range x {
		switch {
		case v < minExp:
			x[i] = 0
			continue
		case v > maxExp:
			x[i] = float32(math.Exp(float64(v)))
			continue
		case v != v:
			continue
		}
		// Adding 1.5*2^23 rounds to the nearest integer in the low bits.
		t := v*log2e + 12582912
		n := t - 12582912
		r := v - n*ln2Hi - n*ln2Lo
		p := float32(1.9841270e-4)
		p = p*r + 1.3888889e-3
		p = p*r + 8.3333333e-3
		p = p*r + 4.1666667e-2
		p = p*r + 1.6666667e-1
		p = p*r + 0.5
		p = p*r*r + r + 1
		x[i] = p * math.Float32frombits(uint32(int32(n)+127)<<23)
	}
}
