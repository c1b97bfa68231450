package kernel

import (
	"encoding/binary"
	"math"
)

// lowRank is a head in a form of low rank: columns of left times rows of right.
type lowRank struct {
	right, left, scales []byte
	rank, rows, cols    int
}

func openLowRank(f Form, b []byte, rows, cols int) lowRank {
	r := f.Rank()
	return lowRank{right: b[:r*cols], left: b[r*cols:][:r*rows], scales: b[r*(cols+rows):][:4*r], rank: r, rows: rows, cols: cols}
}

// badScale returns the first scale whose products are not exact, if there is one.
func (f lowRank) badScale() (scale float32, bad bool) {
	for k := range f.rank {
		if scale = loadF32(f.scales[4*k:]); !exactScale(scale) {
			return scale, true
		}
	}
	return 0, false
}

// ones has scales of 1, with which the rows of right are unpacked.
var ones = func() []byte {
	b := make([]byte, 0, 4*maxRank)
	for range maxRank {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(1))
	}
	return b
}()

// wide is working memory for factors as F32. The field left has the columns of the left
// factor as rows, padded to a multiple of 8, times their scales. The field turned is the
// transpose of left. The field panels has the numbers of the field right in the layout of a
// dense kernel.
type wide struct{ left, turned, right, panels []float32 }

// turnedLD returns the numbers from row to row in turned.
func turnedLD(rank int) int { return (rank + 7) &^ 7 }

// reserve allocates memory for factors of the given rank.
func (w *wide) reserve(rank, rows, cols int) {
	grow(&w.left, turnedLD(rank)*rows)
	grow(&w.turned, turnedLD(rank)*rows)
	grow(&w.right, rank*cols)
	grow(&w.panels, rank*cols)
}

// The method open writes the factors to w. The head is the matrix product of w.turned and
// w.right. w.turned is [rows, rank], with turnedLD numbers from row to row, and w.right is
// [rank, cols].
func (f lowRank) open(w *wide) {
	w.reserve(f.rank, f.rows, f.cols)
	unpackRows(w.left, FormInt8, f.scales, f.left, f.rows)
	unpackRows(w.right, FormInt8, ones[:4*f.rank], f.right, f.cols)
	turned(w.turned, turnedLD(f.rank), w.left, f.rank, f.rows)
}

// The method read writes the numbers of the head to dst. The parameter product is a
// function like Gemm, which multiplies the factors. w is working memory. If w is nil, read
// allocates.
func (f lowRank) read(dst []float32, w *wide, product func(c []float32, ldc int, a []float32, lda int, b []float32, ldb int, m, n, k int)) {
	if w == nil {
		w = new(wide)
	}
	f.open(w)
	clear(dst)
	product(dst, f.cols, w.turned, turnedLD(f.rank), w.right, f.cols, f.rows, f.cols, f.rank)
}

func turnedGeneric(dst []float32, ld int, src []float32, rows, cols int) {
	for i := range rows {
		for j, v := range src[i*cols:][:cols] {
			dst[j*ld+i] = v
		}
	}
}

const (
	// rankShare bounds the rank, which is at most the shorter side divided by rankShare.
	// Above a quarter of that side, the factors would take more than half of the bytes of
	// 8-bit rows, and much time to find and to multiply.
	rankShare = 4
	// earlyFactor and lateFactor end a search early. After a quarter of the allowed ranks
	// the search continues only if the error is at most earlyFactor times the budget, and
	// after half of them only if the error is at most lateFactor times the budget. For
	// end-states of trained models this misses a few percent of the heads that have a low
	// rank.
	earlyFactor, lateFactor = 20, 8
)

// search finds factors of a matrix (Gram-Schmidt with pivots). In each step, the largest
// row of the remainder becomes a row of the right factor. The column that fits this row
// best becomes a column of the left factor. Both are rounded before their product is
// subtracted, so that later steps compensate for the rounding.
type search struct {
	q      []int16   // [rank, cols + rows]
	scales []float32 // [rank]
	sums   []float64 // sums of squares of the rows of the remainder
	column []float32
	spare  []float32
	turned []float32 // [rows, rank], times the scales; rows are turnedLD numbers apart
	right  []float32 // [rank, cols]
}

// reserve allocates memory for factors of up to the given rank.
func (s *search) reserve(rank, rows, cols int) {
	s.q, s.scales = make([]int16, rank*(cols+rows)), make([]float32, rank)
	s.sums, s.column, s.spare = make([]float64, rows), make([]float32, rows), make([]float32, max(rows, cols))
	s.turned, s.right = make([]float32, turnedLD(rank)*rows), make([]float32, rank*cols)
}

// find searches for factors of x [rows, cols] whose error has a Frobenius norm of at most
// budget. It leaves the factors in s and the difference in rest. It returns the rank of the
// factors and the norm of the error. A rank of 0 means that no factors are worth it.
func (s *search) find(x, rest []float32, rows, cols int, budget float64) (rank int, frobenius float64) {
	most := len(s.scales)
	copy(rest, x)
	s.measure(rest, cols)
	for k := 1; k <= most; k++ {
		if !s.step(rest, rows, cols, k-1) {
			return 0, 0
		}
		left := s.measure(rest, cols)
		switch allowed := float64(budget * budget); {
		case !(left <= math.MaxFloat64),
			k == most/4 && left > earlyFactor*earlyFactor*allowed,
			k == most/2 && left > lateFactor*lateFactor*allowed:
			return 0, 0
		case left <= allowed:
			s.subtract(x, rest, rows, cols, k)
			frobenius = float64(root(s.measure(rest, cols), len(rest)) * (1 + 2*half32)) // rest was rounded
			if frobenius <= budget {
				return k, frobenius
			}
		}
	}
	return 0, 0
}

// measure computes the sum of squares of each row in s.sums, and returns the total.
func (s *search) measure(rest []float32, cols int) float64 {
	var sum float64
	for i := range s.sums {
		s.sums[i] = squares(rest[i*cols:][:cols])
		sum += s.sums[i]
	}
	return sum
}

// The method step finds factor pair k, which is a column of the left factor and a row of
// the right factor, and subtracts their product from rest. It returns false if numbers
// become too small or too large.
func (s *search) step(rest []float32, rows, cols, k int) bool {
	pivot := 0
	for i, v := range s.sums {
		if v > s.sums[pivot] {
			pivot = i
		}
	}
	q := s.q[k*(cols+rows):][:cols+rows]
	right := s.right[k*cols:][:cols]
	if s.round(q[:cols], rest[pivot*cols:][:cols]) == 0 {
		return false
	}
	for j, v := range q[:cols] {
		right[j] = float32(v)
	}
	norm := squares(right)
	for i := range s.column {
		s.column[i] = float32(inner(rest[i*cols:][:cols], right) / norm)
	}
	scale := s.round(q[cols:], s.column)
	if scale == 0 || !exactScale(scale) {
		return false
	}
	s.scales[k] = scale
	ld := turnedLD(len(s.scales))
	for i, v := range q[cols:] {
		s.turned[i*ld+k] = scale * float32(v)
		s.column[i] = -scale * float32(v)
	}
	gemm(rest, cols, s.column, 1, right, cols, rows, cols, 1)
	return true
}

// round writes v as 8-bit integers to q and returns their scale, which has at most ten
// significant bits. It returns 0 if v cannot be rounded that way.
func (s *search) round(q []int16, v []float32) float32 {
	peak := peakBits(v)
	scale := FactorScale(math.Float32frombits(peak) / FormInt8.largest())
	if peak >= 0x7f800000 || scale == 0 {
		return 0
	}
	quantize(q, s.spare[:len(v)], v, scale, FormInt8.largest())
	return scale
}

// subtract sets rest to x minus the sum of the products of the first k factor pairs. It
// adds them in the order in which the method lowRank.read adds them.
func (s *search) subtract(x, rest []float32, rows, cols, k int) {
	clear(rest)
	gemm(rest, cols, s.turned, turnedLD(len(s.scales)), s.right, cols, rows, cols, k)
	for i, v := range rest {
		rest[i] = x[i] - v
	}
}

// write writes a head of the given rank, without padding, and returns its length in bytes.
func (s *search) write(dst []byte, rank, rows, cols int) int {
	right, left, scales := dst, dst[rank*cols:], dst[rank*(cols+rows):]
	for k := range rank {
		q := s.q[k*(cols+rows):]
		packInt8(right[k*cols:], q[:cols])
		packInt8(left[k*rows:], q[cols:][:rows])
	}
	fromF32(scales, s.scales[:rank], F32)
	return rank * (cols + rows + 4)
}
