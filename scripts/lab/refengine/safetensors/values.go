package safetensors

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Float32 decodes a tensor's values; every supported type is exact in float32.
func (t Tensor) Float32() []float32 {
	out := make([]float32, len(t.Data)/max(1, t.DType.size()))
	for i := range out {
		switch t.DType {
		case F32:
			out[i] = math.Float32frombits(binary.LittleEndian.Uint32(t.Data[4*i:]))
		case BF16:
			out[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(t.Data[2*i:])) << 16)
		case F16:
			out[i] = fromHalf(binary.LittleEndian.Uint16(t.Data[2*i:]))
		}
	}
	return out
}

// New returns a tensor of values in an element type, rounded to nearest even.
func New(name string, d DType, shape []int, values []float32) (Tensor, error) {
	n := 1
	for _, s := range shape {
		n *= s
	}
	if d.size() == 0 || n != len(values) {
		return Tensor{}, fmt.Errorf("tensor %q: %d values of type %q for shape %v: %w", name, len(values), d, shape, ErrInvalid)
	}
	data := make([]byte, 0, n*d.size())
	for _, v := range values {
		switch d {
		case F32:
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
		case BF16:
			data = binary.LittleEndian.AppendUint16(data, toBrain(v))
		case F16:
			data = binary.LittleEndian.AppendUint16(data, toHalf(v))
		}
	}
	return Tensor{Name: name, DType: d, Shape: shape, Data: data}, nil
}

func toBrain(v float32) uint16 {
	b := math.Float32bits(v)
	if v != v {
		return uint16(b>>16) | 0x40 // keep it a NaN after the low bits are dropped
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

func fromHalf(h uint16) float32 {
	sign := uint32(h>>15) << 31
	exp, frac := uint32(h>>10&31), uint32(h&1023)
	switch exp {
	case 0:
		return math.Float32frombits(sign | math.Float32bits(float32(frac)/(1<<24)))
	case 31:
		return math.Float32frombits(sign | 0xff<<23 | frac<<13)
	}
	return math.Float32frombits(sign | (exp+112)<<23 | frac<<13)
}

func toHalf(v float32) uint16 {
	b := math.Float32bits(v)
	sign := uint16(b >> 16 & 0x8000)
	mag := math.Float32frombits(b &^ (1 << 31))
	switch {
	case v != v:
		return sign | 0x7e00
	case mag >= 65520: // halfway between the largest half and the next step
		return sign | 0x7c00
	case mag < 1.0/(1<<14):
		// In [0.5, 1) the last bit of a float32 is 2^-24, the distance of F16 subnormals.
		return sign | uint16(math.Float32bits(mag+0.5)&0xffff)
	}
	b &^= 1 << 31
	b += 0xfff + b>>13&1
	return sign | uint16((b>>13)-112<<10)
}
