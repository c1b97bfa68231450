package kernel

import (
	"encoding/binary"
	"fmt"
	"math"
)

// A part of keys or values [rows, heads, dim] is packed like one end-state with rows*heads
// rows: in 8 bits per number, with a scale for each head of a row, or not at all. So any
// run of rows can be read without the others.

// PackRows writes src, which is [rows, cols] of type t, to dst as a packed part of one head
// in 8 bits per number. It returns the part's length in bytes and its error: a bound on the
// Frobenius norm of the difference between src and the unpacked numbers of type t. relative
// is the largest allowed error, divided by the norm of src.
//
// n is 0, and dst undefined, if the error would be larger than allowed, if a number is not
// finite, if there are more than 2^18 rows, or if the part would not be smaller than src.
// dst must have room for PackedBytes of FormInt8 and must not overlap src.
//
// As with Pack, the result depends only on the arguments.
func (p *Packer) PackRows(dst, src []byte, t DType, rows, cols int, relative float64) (n int, e FormError) {
	if t.Size() == 0 || min(rows, cols) < 0 || len(src) != rows*cols*t.Size() {
		panic(fmt.Sprintf("kernel: pack rows [%d, %d] of type %d from %d bytes", rows, cols, t, len(src)))
	}
	n = PackedBytes([]Form{FormInt8}, t, rows, cols)
	if n >= len(src) || max(rows, cols) > maxSide {
		return 0, e
	}
	dst = dst[:n]
	p.row.reserve(cols)
	head := dst[PackedHeader(1):]
	clear(dst[:PackedHeader(1)+4]) // no g
	scales, q := head[4:][:4*rows], head[4+4*rows:]
	var all, rest float64
	for i := range rows {
		x := p.row.x[:cols]
		toF32(x, src[i*cols*t.Size():][:cols*t.Size()], t)
		peak := math.Float32frombits(peakBits(x))
		if !(peak <= math.MaxFloat32) {
			return 0, e
		}
		scale := peak / FormInt8.largest()
		quantize(p.row.q[:cols], p.row.rest[:cols], x, scale, FormInt8.largest())
		binary.LittleEndian.PutUint32(scales[4*i:], math.Float32bits(scale))
		packInt8(q[i*cols:][:cols], p.row.q[:cols])
		all += squares(x)
		if t != F32 {
			p.row.round(scales[4*i:][:4], q[i*cols:][:cols], t)
		}
		rest += squares(p.row.rest[:cols])
	}
	clear(q[rows*cols:])
	norm := root(all, rows*cols)
	frobenius := float64(root(rest, rows*cols) * (1 + 2*half32)) // rest was rounded
	least := norm * (1 - float64(float64(2*rows*cols+64)*2*half64))
	if !(norm <= math.MaxFloat64 && frobenius <= relative*least) {
		return 0, e
	}
	dst[0] = byte(FormInt8)
	putBounds(dst, 1, 0, frobenius, norm)
	return n, FormError{frobenius, frobenius, math.Sqrt(all), (norm + frobenius) * (1 + 2*half64)}
}

// rowBuffers is working memory for one row.
type rowBuffers struct {
	x, rest, near []float32
	q             []int16
	raw           []byte
}

func (b *rowBuffers) reserve(cols int) {
	if cap(b.x) < cols {
		*b = rowBuffers{make([]float32, cols), make([]float32, cols), make([]float32, cols), make([]int16, cols), make([]byte, 2*cols)}
	}
}

// round computes rest: x minus the 8-bit numbers after these are rounded to type t.
func (b *rowBuffers) round(scale, q []byte, t DType) {
	n := len(q)
	near, raw, rest := b.near[:n], b.raw[:n*t.Size()], b.rest[:n]
	unpackRows(near, FormInt8, scale, q, n)
	fromF32(raw, near, t)
	toF32(near, raw, t)
	copy(rest, b.x)
	axpy(rest, -1, near) // exact, except that the difference is rounded
}

// rowsAtOnce is the count of numbers that are converted at once. As F32 they stay in L1.
const rowsAtOnce = 2 << 10

// ReadRows writes n rows of packed keys or values in their original type t. The parameter
// row is the number of the first. Rows are counted as in OpenRows: one for each token and
// head.
func (p *Packed) ReadRows(dst []byte, row, n int, t DType, scratch *[]float32) {
	f, b := p.Head(0)
	size := p.cols * t.Size()
	switch f {
	case FormPlain:
		copy(dst, b[row*size:][:n*size])
		return
	case FormZero:
		clear(dst[:n*size])
		return
	}
	step := min(n, max(1, rowsAtOnce/p.cols))
	grow(scratch, step*p.cols)
	m := openIntegers(f, b, p.rows, p.cols)
	for ; n > 0; n -= step {
		step = min(step, n)
		x := (*scratch)[:step*p.cols]
		m.read(x, row, step)
		fromF32(dst[:step*size], x, t)
		dst, row = dst[step*size:], row+step
	}
}

// UnpackRows returns the keys or values [rows, heads, dim] of type t that are packed in b.
func UnpackRows(b []byte, t DType, rows, heads, dim int) ([]byte, error) {
	p, err := OpenRows(b, t, rows, heads, dim)
	if err != nil {
		return nil, err
	}
	out := make([]byte, p.rows*dim*t.Size())
	p.ReadRows(out, 0, p.rows, t, new([]float32))
	return out, nil
}

// RowsToF32 does PartToF32 for keys or values [rows, heads, dim]. It rounds packed numbers
// to type t first, as ReadRows does.
func RowsToF32(dst []float32, b []byte, t DType, packed bool, shape [3]int) error {
	if packed {
		raw, err := UnpackRows(b, t, shape[0], shape[1], shape[2])
		if err != nil {
			return err
		}
		b = raw
	}
	return PartToF32(dst, b, t, false, shape)
}

// OpenRows does OpenPacked for keys or values [rows, heads, dim]. The part has one head
// with rows*heads rows.
func OpenRows(b []byte, t DType, rows, heads, dim int) (Packed, error) {
	p, err := OpenPacked(b, t, 1, rows*heads, dim)
	if err == nil && Form(b[0]).Rank() > 0 {
		err = fmt.Errorf("kernel: packed rows of rank %d", Form(b[0]).Rank())
	}
	return p, err
}
