package kernel

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
)

// Form is the encoding of one head's matrix in a packed part.
type Form uint8

// A head in an integer form is
//
//	F32 g | rows x F32 scale | rows of integers, each starting at a whole byte
//
// Number [i, j] is scale[i]*q[i][j], rounded to F32, where q are the integers. If i == j, g
// is added. All is little-endian. Two 12-bit integers take three bytes, lower bits first;
// an odd last one takes two bytes.
//
// A head of rank r is the sum of r products of a column (left[k], which has rows numbers)
// and a row (right[k], which has cols numbers):
//
//	right: r x cols of 8 bits | left: r x rows of 8 bits | scale: r x F32
//
// Number [i, j] is the sum over k, in this order and from zero, of
// scale[k]*left[k][i]*right[k][j]. Each sum is rounded to F32. Products are exact, since a
// scale has at most ten significant bits, so a fused multiply-add gives the same result.
const (
	FormPlain Form = 0 // numbers of the part's DType, row-major
	FormZero  Form = 1 // no bytes: all zeros
	FormInt8  Form = 2 // rows of 8-bit integers
	FormInt12 Form = 3 // rows of 12-bit integers
	FormInt16 Form = 4 // rows of 16-bit integers

	formCount = 5

	FormRank Form = 16 // rank 1; the following numbers are rank 2, 3 and so on
	maxRank       = 255 - int(FormRank) + 1
)

// PartAlign is the multiple of bytes to which each head of a packed part is padded.
const PartAlign = 64

// width describes how an integer form encodes a row, with at most 16 bits per number.
type width struct {
	bits   int
	pack   func(dst []byte, q []int16)
	unpack func(dst []float32, src []byte, scale float32)
}

// widths has all integer forms. It is the only place with their numbers of bits.
var widths = [formCount]width{
	FormInt8:  {8, packInt8, unpackInt8},
	FormInt12: {12, packInt12, unpackInt12},
	FormInt16: {16, packInt16, unpackInt16},
}

// scaleMask has the bits that are zero in a factor scale, which is a scale of a form of low
// rank. largestScale is the largest factor scale, with which no product overflows.
const (
	scaleMask    = 1<<14 - 1
	largestScale = 0x1p113
)

// FactorScale returns x rounded away from zero to the bits of a factor scale.
func FactorScale(x float32) float32 {
	return math.Float32frombits((math.Float32bits(x) + scaleMask) &^ scaleMask)
}

// exactScale reports whether products with a factor scale are exact.
func exactScale(scale float32) bool {
	return math.Float32bits(scale)&scaleMask == 0 && scale >= -largestScale && scale <= largestScale
}

// Bits returns the bits of one integer in this form; 0 for forms without integers.
func (f Form) Bits() int {
	if f >= formCount {
		return 0
	}
	return widths[f].bits
}

// Rank returns the rank of heads in this form; 0 for forms that are not of low rank.
func (f Form) Rank() int { return max(int(f)-int(FormRank)+1, 0) }

// integer reports whether heads in this form are rows of integers.
func (f Form) integer() bool { return f.Bits() > 0 }

// largest returns the largest integer of a form. The smallest integer is its negative.
func (f Form) largest() float32 { return float32(int(1)<<(widths[f].bits-1) - 1) }

// rowBytes returns the bytes of the integers in a row.
func (f Form) rowBytes(cols int) int { return (cols*widths[f].bits + 7) / 8 }

// size returns the bytes of a head without padding, or -1 if f or t is unknown.
func (f Form) size(t DType, rows, cols int) int {
	switch {
	case t.Size() == 0:
		return -1
	case f == FormPlain:
		return rows * cols * t.Size()
	case f == FormZero:
		return 0
	case f.integer():
		return 4 + rows*(4+f.rowBytes(cols))
	case f.Rank() > 0:
		return f.Rank() * (4 + rows + cols)
	}
	return -1
}

func padded(n int) int { return (n + PartAlign - 1) / PartAlign * PartAlign }

// FormBytes returns the bytes of a head of [rows, cols] in a form, with padding; -1 if
// the form or the type is unknown.
func FormBytes(f Form, t DType, rows, cols int) int {
	n := f.size(t, rows, cols)
	if n < 0 {
		return -1
	}
	return padded(n)
}

// PackedHeader returns the bytes of a packed part's header: the form, the error and the
// norm of each head, padded with zeros.
func PackedHeader(heads int) int { return padded((1 + 4 + 4) * heads) }

// PackedBytes returns the bytes of a packed part whose heads have these forms, or -1 if a
// form is unknown.
func PackedBytes(forms []Form, t DType, rows, cols int) int {
	n := PackedHeader(len(forms))
	for _, f := range forms {
		size := FormBytes(f, t, rows, cols)
		if size < 0 {
			return -1
		}
		n += size
	}
	return n
}

// Packed is a packed part that OpenPacked has checked, so that reading it never leaves its
// bytes. A part of [heads, rows, cols] is
//
//	heads x u8 form | heads x F32 error | heads x F32 norm | head after head
//
// The header and each head are padded with zeros to a multiple of PartAlign. More zeros may
// follow. Errors and norms are upper bounds. For a transition they are the spectral norm of
// exact minus stored, and of the stored matrix. For an end-state they are the Frobenius
// norm of exact minus stored, and of the exact matrix.
type Packed struct {
	b                 []byte
	t                 DType
	heads, rows, cols int
}

// maxSide bounds heads, rows and columns, so that no size overflows.
const maxSide = 1 << 18

// OpenPacked checks the packed part b of [heads, rows, cols] numbers of type t. The result
// keeps a reference to b. Scales of rows are not checked, since a bad scale only gives bad
// numbers.
func OpenPacked(b []byte, t DType, heads, rows, cols int) (Packed, error) {
	var none Packed
	if t.Size() == 0 || min(heads, rows, cols) < 0 || max(heads, rows, cols) > maxSide {
		return none, fmt.Errorf("kernel: packed part of [%d, %d, %d] numbers of type %d", heads, rows, cols, t)
	}
	want := PackedHeader(heads)
	if len(b) < want {
		return none, fmt.Errorf("kernel: packed part of %d bytes is too short for the forms of %d heads", len(b), heads)
	}
	for i, f := range b[:heads] {
		n := FormBytes(Form(f), t, rows, cols)
		if n < 0 {
			return none, fmt.Errorf("kernel: packed part has head %d in unknown form %d", i, f)
		}
		if r := Form(f).Rank(); r > 0 && want+n <= len(b) {
			if scale, bad := openLowRank(Form(f), b[want:], rows, cols).badScale(); bad {
				return none, fmt.Errorf("kernel: packed part has head %d of rank %d with a scale of %v, which is more than ten bits or too large", i, r, scale)
			}
		}
		want += n
	}
	if len(b) < want {
		return none, fmt.Errorf("kernel: packed part has %d bytes, want %d", len(b), want)
	}
	if !zeros(b[(1+4+4)*heads:PackedHeader(heads)]) || !zeros(b[want:]) {
		return none, fmt.Errorf("kernel: packed part of %d bytes has more than zeros behind what it holds", len(b))
	}
	p := Packed{b[:want:want], t, heads, rows, cols}
	for i := range heads {
		if e, n := p.Bounds(i); !(e >= 0 && n >= 0) {
			return none, fmt.Errorf("kernel: packed part has head %d with an error of %v and a norm of %v", i, e, n)
		}
	}
	return p, nil
}

func zeros(b []byte) bool { return !slices.ContainsFunc(b, func(x byte) bool { return x != 0 }) }

// Bounds returns the error and the norm of a head, see Packed.
func (p Packed) Bounds(i int) (err, norm float32) {
	at := p.b[p.heads:]
	return loadF32(at[4*i:]), loadF32(at[4*(p.heads+i):])
}

func loadF32(b []byte) float32 { return math.Float32frombits(binary.LittleEndian.Uint32(b)) }

// putBounds writes the error and the norm of head i into the header b of a part.
func putBounds(b []byte, heads, i int, err, norm float64) {
	at := b[heads:]
	binary.LittleEndian.PutUint32(at[4*i:], math.Float32bits(Above(err)))
	binary.LittleEndian.PutUint32(at[4*(heads+i):], math.Float32bits(Above(norm)))
}

// Above returns the smallest F32 that is not below x.
func Above(x float64) float32 {
	y := float32(x)
	if float64(y) < x {
		y = math.Nextafter32(y, float32(math.Inf(1)))
	}
	return y
}

// Form returns a head's form.
func (p Packed) Form(i int) Form { return Form(p.b[:p.heads][i]) }

// Head returns a head's form and bytes, without padding, for a Step.
func (p Packed) Head(i int) (Form, []byte) {
	if i < 0 || i >= p.heads {
		panic(fmt.Sprintf("kernel: head %d of %d", i, p.heads))
	}
	off := PackedHeader(p.heads)
	for _, f := range p.b[:i] {
		off += FormBytes(Form(f), p.t, p.rows, p.cols)
	}
	f := p.Form(i)
	n := f.size(p.t, p.rows, p.cols)
	return f, p.b[off:][:n:n]
}

// Unpack writes the rows*cols numbers of a head as F32. They have the same bits on every
// processor.
func (p Packed) Unpack(dst []float32, head int) {
	if len(dst) != p.rows*p.cols {
		panic(fmt.Sprintf("kernel: unpack a head of [%d, %d] into %d numbers", p.rows, p.cols, len(dst)))
	}
	f, b := p.Head(head)
	unpack(dst, f, b, p.t, p.rows, p.cols, nil)
}

// unpack writes a head as F32. w is working memory for factors. If w is nil, unpack
// allocates.
func unpack(dst []float32, f Form, b []byte, t DType, rows, cols int, w *wide) {
	switch f {
	case FormPlain:
		toF32(dst, b, t)
	case FormZero:
		clear(dst)
	case FormInt8, FormInt12, FormInt16:
		m := openIntegers(f, b, rows, cols)
		m.read(dst, 0, rows)
	default:
		openLowRank(f, b, rows, cols).read(dst, w, gemm)
	}
}

// integers is a head in an integer form.
type integers struct {
	form       Form
	g          float32
	scales     []byte
	q          []byte
	cols, size int // numbers and bytes of a row
}

func openIntegers(f Form, b []byte, rows, cols int) integers {
	return integers{
		form: f, g: math.Float32frombits(binary.LittleEndian.Uint32(b)),
		scales: b[4:][:4*rows], q: b[4+4*rows:], cols: cols, size: f.rowBytes(cols),
	}
}

// The method read writes n rows to dst as F32. The parameter row is the number of the
// first.
func (m *integers) read(dst []float32, row, n int) {
	unpackRows(dst, m.form, m.scales[4*row:][:4*n], m.q[row*m.size:], m.cols)
	m.addDiagonal(dst, row, n)
}

// addDiagonal adds g to the diagonal. dst has n rows of the head; row is the number of the
// first.
func (m *integers) addDiagonal(dst []float32, row, n int) {
	for i := row; i < min(row+n, m.cols); i++ {
		dst[(i-row)*m.cols+i] += m.g
	}
}
