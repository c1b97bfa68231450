package kernel

import (
	"encoding/binary"
	"math"
)

func unpackGeneric(dst []float32, f Form, b []byte, t DType, rows, cols int, w *wide) {
	switch f {
	case FormPlain:
		toF32Generic(dst, b, t)
	case FormZero:
		clear(dst)
	case FormInt8, FormInt12, FormInt16:
		m := openIntegers(f, b, rows, cols)
		unpackRowsGeneric(dst, f, m.scales, m.q, cols)
		m.addDiagonal(dst, 0, rows)
	default:
		openLowRank(f, b, rows, cols).read(dst, w, gemmGeneric)
	}
}

// unpackRowsGeneric writes rows of integers as F32, without adding g to the diagonal. Rows
// follow each other without gaps in dst. In q each row starts at a whole byte.
func unpackRowsGeneric(dst []float32, f Form, scales, q []byte, cols int) {
	size := f.rowBytes(cols)
	for i := range len(scales) / 4 {
		scale := math.Float32frombits(binary.LittleEndian.Uint32(scales[4*i:]))
		widths[f].unpack(dst[i*cols:][:cols], q[i*size:][:size], scale)
	}
}

// Each of the functions below unpacks one row. The conversions to float32 round the
// products. So the compiler cannot fuse a product with g, which is added to the diagonal
// later.

func unpackInt8(dst []float32, src []byte, scale float32) {
	src = src[:len(dst)]
	for i, b := range src {
		dst[i] = float32(scale * float32(int8(b)))
	}
}

func unpackInt12(dst []float32, src []byte, scale float32) {
	for ; len(dst) >= 2; dst, src = dst[2:], src[3:] {
		_ = src[2]
		a := int16(uint16(src[0])<<4|uint16(src[1])<<12) >> 4
		b := int16(uint16(src[1])|uint16(src[2])<<8) >> 4
		dst[0], dst[1] = float32(scale*float32(a)), float32(scale*float32(b))
	}
	if len(dst) > 0 {
		dst[0] = float32(scale * float32(int16(binary.LittleEndian.Uint16(src)<<4)>>4))
	}
}

func unpackInt16(dst []float32, src []byte, scale float32) {
	src = src[:2*len(dst)]
	for i := range dst {
		dst[i] = float32(scale * float32(int16(binary.LittleEndian.Uint16(src[2*i:]))))
	}
}

// Each of the functions below packs one row.

func packInt8(dst []byte, q []int16) {
	dst = dst[:len(q)]
	for i, v := range q {
		dst[i] = byte(v)
	}
}

func packInt12(dst []byte, q []int16) {
	for ; len(q) >= 2; dst, q = dst[3:], q[2:] {
		_ = dst[2]
		dst[0], dst[1], dst[2] = byte(q[0]), byte(q[0]>>8&15|q[1]<<4), byte(q[1]>>4)
	}
	if len(q) > 0 {
		binary.LittleEndian.PutUint16(dst, uint16(q[0])&0xfff)
	}
}

func packInt16(dst []byte, q []int16) {
	dst = dst[:2*len(q)]
	for i, v := range q {
		binary.LittleEndian.PutUint16(dst[2*i:], uint16(v))
	}
}
