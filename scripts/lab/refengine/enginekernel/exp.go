package enginekernel

import "math"

const (
	// e^x = 2^(n/16) e^r, with n the nearest integer to 16 x log2(e).
	stepsPerDoubling = 16
	stepsPerUnit     = 1.44269504088896341 * stepsPerDoubling
	stepHi           = 2839.0 / 65536 // ln2/16 in 12 bits, so that n*stepHi is exact
	stepLo           = 1.996636559080389e-06
	// 1.5*2^23: adding it rounds a float32 to an integer in its low bits.
	toInteger = 12582912
	// Above maxExp and below minExp, e^x leaves the normal float32 range.
	maxExp = 88.37
	minExp = -87.33
)

// powers has 2^(i/16) for each i.
var powers = [stepsPerDoubling]float32{
	1, 1.0442737824274138, 1.0905077326652577, 1.1387886347566916,
	1.189207115002721, 1.241857812073484, 1.2968395546510096, 1.3542555469368927,
	1.4142135623730951, 1.4768261459394993, 1.5422108254079407, 1.6104903319492543,
	1.681792830507429, 1.7562521603732995, 1.8340080864093424, 1.9152065613971474,
}

// Exp replaces every x by e^x with a relative error below 2e-7. Results below
// the normal range are 0.
func Exp(x []float32) {
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
		x[i] = exp(v)
	}
}

// expSum replaces every x by e^(x-peak). It returns the parameter sum plus all these
// values, added in order. No x may be above peak. expSum combines Exp and the sum in one
// pass, because attention spends most of its time here.
func expSum(x []float32, peak, sum float32) float32 {
	for i, v := range x {
		v -= peak
		if v < minExp {
			x[i] = 0
			continue
		}
		w := exp(v)
		x[i] = w
		sum += w
	}
	return sum
}

// exp returns e^v for v from minExp to maxExp.
func exp(v float32) float32 {
	t := float32(v*stepsPerUnit) + toInteger
	n := t - toInteger
	r := v - n*stepHi - n*stepLo
	k := int32(n)
	p := r*(r*(r*(1.0/6)+0.5)+1) + 1
	return p * powers[k&(stepsPerDoubling-1)] * math.Float32frombits(uint32(k>>4+127)<<23)
}
