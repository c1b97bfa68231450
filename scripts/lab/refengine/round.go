package refengine

import (
	"math"

	"github.com/spliced-kv/spliced/policy/profile"
)

// roundRows rounds keys or values to the profile's element type, as an engine's cache does when
// it stores them. Attention therefore sees the same rows whether they were just computed, or
// come from a checkpoint or a segment. Only the float32 engine rounds.
func (m *Model[F]) roundRows(x []F) {
	if x, ok := any(x).([]float32); ok {
		switch m.cfg.Storage.KV {
		case profile.BF16:
			roundBF16(x)
		case profile.F16:
			roundF16(x)
		}
	}
}

// roundBF16 rounds to 8 significand bits, to nearest even.
func roundBF16(x []float32) {
	for i, v := range x {
		b := math.Float32bits(v)
		if v == v {
			b += 0x7fff + b>>16&1
		}
		x[i] = math.Float32frombits(b &^ 0xffff)
	}
}

// roundF16 rounds to 11 significand bits, to nearest even, with the subnormals of F16 and
// overflow to infinity.
func roundF16(x []float32) {
	for i, v := range x {
		b := math.Float32bits(v)
		switch mag := math.Float32frombits(b &^ (1 << 31)); {
		case mag < 1.0/(1<<14):
			// In [0.5, 1) the last bit of a float32 is 2^-24, the distance of F16 subnormals.
			// Adding and subtracting 0.5 therefore rounds to that distance.
			x[i] = float32(math.Copysign(float64(mag+0.5-0.5), float64(v)))
		case mag >= 65520:
			x[i] = float32(math.Inf(1 - 2*int(b>>31)))
		case v == v:
			x[i] = math.Float32frombits((b + 0xfff + b>>13&1) &^ 0x1fff)
		}
	}
}
