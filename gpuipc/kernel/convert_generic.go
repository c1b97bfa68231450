package kernel

import (
	"encoding/binary"
	"math"
)

func toF32Generic(dst []float32, src []byte, dt DType) {
	switch dt {
	case F32:
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
		}
	case F16:
		for i := range dst {
			dst[i] = f16ToF32(binary.LittleEndian.Uint16(src[2*i:]))
		}
	case BF16:
		for i := range dst {
			dst[i] = bf16ToF32(binary.LittleEndian.Uint16(src[2*i:]))
		}
	}
}

func fromF32Generic(dst []byte, src []float32, dt DType) {
	switch dt {
	case F32:
		for i, v := range src {
			binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(v))
		}
	case F16:
		for i, v := range src {
			binary.LittleEndian.PutUint16(dst[2*i:], f32ToF16(v))
		}
	case BF16:
		for i, v := range src {
			binary.LittleEndian.PutUint16(dst[2*i:], f32ToBF16(v))
		}
	}
}

// loadGeneric reads number i of b, and storeGeneric writes it.
func loadGeneric(b []byte, dt DType, i int) float32 {
	switch dt {
	case F16:
		return f16ToF32(binary.LittleEndian.Uint16(b[2*i:]))
	case BF16:
		return bf16ToF32(binary.LittleEndian.Uint16(b[2*i:]))
	}
	return math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
}

func storeGeneric(b []byte, dt DType, i int, v float32) {
	switch dt {
	case F16:
		binary.LittleEndian.PutUint16(b[2*i:], f32ToF16(v))
	case BF16:
		binary.LittleEndian.PutUint16(b[2*i:], f32ToBF16(v))
	default:
		binary.LittleEndian.PutUint32(b[4*i:], math.Float32bits(v))
	}
}

func bf16ToF32(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

// f32ToBF16 rounds to nearest even: it adds half a unit of the last kept place, less one
// bit if that place is even. A NaN could become infinite or change its sign that way, so it
// is truncated and made quiet.
func f32ToBF16(v float32) uint16 {
	u := math.Float32bits(v)
	if v != v {
		return uint16(u>>16) | 0x0040
	}
	return uint16((u + 0x7fff + u>>16&1) >> 16)
}

func f16ToF32(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	magnitude := uint32(h & 0x7fff)
	switch {
	case magnitude > 0x7c00: // NaN, made quiet as VCVTPH2PS does
		return math.Float32frombits(sign | 0x7fc00000 | magnitude<<13)
	case magnitude == 0x7c00:
		return math.Float32frombits(sign | 0x7f800000)
	case magnitude < 0x0400: // subnormal: magnitude units of 2^-24
		return math.Float32frombits(sign | math.Float32bits(float32(magnitude)*0x1p-24))
	}
	return math.Float32frombits(sign | (magnitude<<13 + (127-15)<<23))
}

func f32ToF16(v float32) uint16 {
	u := math.Float32bits(v)
	sign := uint16(u >> 16 & 0x8000)
	u &= 0x7fffffff
	switch {
	case u > 0x7f800000: // NaN, made quiet as VCVTPS2PH does
		return sign | 0x7e00 | uint16(u>>13&0x03ff)
	case u >= 0x477ff000: // 65520 and more rounds to infinity
		return sign | 0x7c00
	case u < 0x38800000: // below 2^-14: adding 0.5 leaves units of 2^-24 in the mantissa
		return sign | uint16(math.Float32bits(math.Float32frombits(u)+0.5)-0x3f000000)
	}
	u -= (127 - 15) << 23
	return sign | uint16((u+0x0fff+u>>13&1)>>13)
}
