package kernel

import (
	"encoding/binary"
	"math"
)

// lowRank is a head of some rank: columns of left times rows of right.
type lowRank struct {
	right, left, scales []byte
	rank, rows, cols    int
}

func openLowRank(f Form, b []byte, rows, cols int) lowRank {
	r := f.Rank()
	return lowRank{right: b[:r*cols], left: b[r*cols:][:r*rows], scales: b[r*(cols+rows):][:4*r], rank: r, rows: rows, cols: cols}
}

// badScale searches a scale with inexact products.
func (f lowRank) badScale() (scale float32, bad bool) {
	for k := range f.rank {
		if scale = loadF32(f.scales[4*k:]); !exactScale(scale) {
			return scale, true
		}
	}
	return 0, false
}

// ones are the scales of right.
var ones = func() []byte {
	b := make([]byte, 0, 4*maxRank)
	for range maxRank {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(1))
	}
	return b
}()

// wide is working memory for factors as F32. left has the stored rows, padded to a
// multiple of 8; turned is its transpose times the scales, and panels is right for a
// dense kernel.
type wide struct{ left, turned, right, panels []float32 }

// turnedLD returns the stride of turned in numbers.
func turnedLD(rank int) int { return (rank + 7) &^ 7 }

// reserve allocates memory for factors of some rank.
func (w *wide) reserve(rank, rows, cols int) {
	grow(&w.left, turnedLD(rank)*rows)
	grow(&w.turned, turnedLD(rank)*rows)
	grow(&w.right, rank*cols)
	grow(&w.panels, rank*cols)
}

// open writes the factors to w: the head is turned [rows, rank], whose rows are turnedLD
// numbers apart, times right [rank, cols].
func (f lowRank) open(w *wide) {
	w.reserve(f.rank, f.rows, f.cols)
	unpackRows(w.left, FormInt8, f.scales, f.left, f.rows)
	unpackRows(w.right, FormInt8, ones[:4*f.rank], f.right, f.cols)
	turned(w.turned, turnedLD(f.rank), w.left, f.rank, f.rows)
}

// read writes the numbers of the head, by a product like Gemm. w is working memory; nil
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
	// rankShare is the share of the shorter side that bounds the rank: above a quarter
	// factors take more than half of the bytes of 8-bit rows, and time to find and to
	// add up.
	rankShare = 4
	// A search continues after a quarter of its ranks if the error is at most
	// earlyFactor times the budget, and after half if it is at most lateFactor times.
	// For end-states of trained models this misses a few percent of the heads with a low
	// rank.
	earlyFactor, lateFactor = 20, 8
)

// search finds factors of a matrix: the largest row of the remainder is one of right, and
// the column that fits it best one of left (Gram-Schmidt with pivots). Both are rounded
// before their product is subtracted, so that later ones compensate.
type search struct {
	q      []int16   // [rank, cols + rows]
	scales []float32 // [rank]
	sums   []float64 // squares of the rows of the remainder
	column []float32
	spare  []float32
	turned []float32 // [rows, rank], in rows of turnedLD, times the scales
	right  []float32 // [rank, cols]
}

// reserve allocates memory for factors of that many ranks.
func (s *search) reserve(rank, rows, cols int) {
	s.q, s.scales = make([]int16, rank*(cols+rows)), make([]float32, rank)
	s.sums, s.column, s.spare = make([]float64, rows), make([]float32, rows), make([]float32, max(rows, cols))
	s.turned, s.right = make([]float32, turnedLD(rank)*rows), make([]float32, rank*cols)
}

// find searches factors of x [rows, cols] whose error has a Frobenius norm of at most
// budget. It leaves them in s, and the difference in rest, and returns their rank and the
// norm; a rank of 0 means that no factors are worth it.
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

// measure sums up squares, row by row.
func (s *search) measure(rest []float32, cols int) float64 {
	var sum float64
	for i := range s.sums {
		s.sums[i] = squares(rest[i*cols:][:cols])
		sum += s.sums[i]
	}
	return sum
}

// step finds term k and subtracts it from rest. It fails if numbers become too small or
// too large.
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

// round writes v as 8-bit integers to q and returns their scale, of ten bits; 0 = not
// usable.
func (s *search) round(q []int16, v []float32) float32 {
	peak := peakBits(v)
	scale := FactorScale(math.Float32frombits(peak) / FormInt8.largest())
	if peak >= 0x7f800000 || scale == 0 {
		return 0
	}
	quantize(q, s.spare[:len(v)], v, scale, FormInt8.largest())
	return scale
}

// subtract computes rest, x less k terms as their reader adds them up.
func (s *search) subtract(x, rest []float32, rows, cols, k int) {
	clear(rest)
	gemm(rest, cols, s.turned, turnedLD(len(s.scales)), s.right, cols, rows, cols, k)
	for i, v := range rest {
		rest[i] = x[i] - v
	}
}

// write writes a head of some rank, without padding, and returns its length.
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
