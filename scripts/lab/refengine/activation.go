package refengine

import (
	"math"

	"github.com/spliced-kv/spliced/scripts/lab/refengine/enginekernel"
)

// These functions work on whole slices, so that they choose between float32 and float64 code
// once per call, and the float32 loops contain no calls.

// exponential replaces every x by e^x.
func exponential[F Float](x []F) {
	switch x := any(x).(type) {
	case []float32:
		enginekernel.Exp(x)
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

// softplus returns ln(1+e^x). It computes in float64, because small differences in decay
// exponents near zero decide how slowly a state decays.
func softplus[F Float](x F) float64 {
	v := float64(x)
	if v > 30 {
		return v
	}
	return math.Log1p(math.Exp(v))
}
