package kernel

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Limit bounds the error of the heads that Pack stores. If Absolute is positive, the part
// has transitions: the spectral norm of the difference is at most Absolute, and a head
// whose own norm is at most Absolute is stored as zero. Otherwise the part has end-states:
// the Frobenius norm of the difference is at most Relative times the norm of the exact
// matrix. The zero Limit allows no error.
type Limit struct {
	Absolute, Relative float64
}

func (l Limit) transition() bool { return l.Absolute > 0 }

// FormError has the error and the norms of a stored head. For a head that is not finite,
// Norm and NormBound are infinite. For an end-state, both spectral bounds are computed from
// Frobenius norms.
type FormError struct {
	Spectral  float64 // upper bound of the spectral norm of exact minus stored
	Frobenius float64 // Frobenius norm of exact minus stored, rounded up
	Norm      float64 // Frobenius norm of the exact matrix
	NormBound float64 // upper bound of the spectral norm of the stored matrix
}

// Packer packs parts. The zero value is ready. It serves one call at a time and allocates
// for each new shape.
type Packer struct {
	rows, cols int
	x          []float32 // the exact head, minus g on its diagonal
	diagonal   []float32 // the exact diagonal
	peaks      []float32 // largest magnitude of each row of x
	q          []int16
	scales     []float32
	rest       []float32 // exact minus stored
	meter      meter
	search     search
	row        rowBuffers
	forms      []Form // integer forms that are smaller than FormPlain, smallest first
	errs       []FormError

	// g is subtracted from the diagonal, see FormInt8.
	g float32
}

// Pack chooses a form for every head of src, which is [heads, rows, cols] of type t: the
// smallest form whose error is within the limit. It writes the packed part to dst, which
// must have room for all heads in plain form and must not overlap src. It returns the
// length of the part in bytes, and the error of each head, which is valid until the next
// call.
//
// The result depends only on the arguments: the bytes are the same on every processor.
// Wrong sizes panic.
func (p *Packer) Pack(dst, src []byte, t DType, heads, rows, cols int, limit Limit) (n int, errs []FormError) {
	plain := FormBytes(FormPlain, t, rows, cols)
	if t.Size() == 0 || min(heads, rows, cols) < 0 || max(heads, rows, cols) > maxSide ||
		len(src) != heads*rows*cols*t.Size() || len(dst) < PackedHeader(heads)+heads*plain {
		panic(fmt.Sprintf("kernel: pack [%d, %d, %d] numbers of type %d from %d into %d bytes", heads, rows, cols, t, len(src), len(dst)))
	}
	p.reserve(t, rows, cols)
	n, p.errs = PackedHeader(heads), p.errs[:0]
	clear(dst[:n])
	for h := range heads {
		size := rows * cols * t.Size()
		head := src[h*size:][:size]
		toF32(p.x, head, t)
		f, e := p.choose(limit)
		dst[h] = byte(f)
		n += p.write(dst[n:], head, f, FormBytes(f, t, rows, cols))
		p.errs = append(p.errs, e)
		if limit.transition() {
			putBounds(dst, heads, h, e.Spectral, e.NormBound)
		} else {
			putBounds(dst, heads, h, e.Frobenius, e.Norm)
		}
	}
	return n, p.errs
}

func (p *Packer) reserve(t DType, rows, cols int) {
	if p.rows != rows || p.cols != cols || len(p.x) != rows*cols {
		errs := p.errs
		*p = Packer{
			rows: rows, cols: cols, errs: errs, row: p.row,
			x: make([]float32, rows*cols), rest: make([]float32, rows*cols), q: make([]int16, rows*cols),
			diagonal: make([]float32, min(rows, cols)), peaks: make([]float32, rows), scales: make([]float32, rows),
		}
	}
	p.forms = p.forms[:0]
	for f := range Form(formCount) {
		size := FormBytes(f, t, rows, cols)
		if !f.integer() || size >= FormBytes(FormPlain, t, rows, cols) {
			continue
		}
		p.forms = append(p.forms, f)
		for i := len(p.forms) - 1; i > 0 && size < FormBytes(p.forms[i-1], t, rows, cols); i-- {
			p.forms[i], p.forms[i-1] = p.forms[i-1], f
		}
	}
	least := FormBytes(FormPlain, t, rows, cols)
	if len(p.forms) > 0 {
		least = FormBytes(p.forms[0], t, rows, cols)
	}
	rank := min(min(rows, cols)/rankShare, maxRank)
	for rank > 0 && FormBytes(FormRank+Form(rank-1), t, rows, cols) >= least {
		rank--
	}
	if rank != len(p.search.scales) || rows != len(p.search.sums) {
		p.search.reserve(rank, rows, cols)
	}
}

// choose chooses the form of the head in p.x. For an integer form the result is in p.g,
// p.scales and p.q. For a form of low rank it is in p.search.
func (p *Packer) choose(limit Limit) (Form, FormError) {
	if peakBits(p.x) >= 0x7f800000 {
		return FormPlain, FormError{Norm: math.Inf(1), NormBound: math.Inf(1)}
	}
	sum := squares(p.x)
	norm := root(sum, len(p.x))
	p.g = 0
	e := FormError{Norm: math.Sqrt(sum), NormBound: norm}
	switch {
	case norm == 0:
		return FormZero, e
	case limit.transition():
		return p.chooseTransition(e, limit.Absolute)
	}
	least := norm * (1 - float64(float64(2*len(p.x)+64)*2*half64)) // at most the exact norm
	return p.chooseEndState(e, limit.Relative*least)
}

// chooseEndState chooses a form by the Frobenius norm of its error. e describes the plain
// form.
func (p *Packer) chooseEndState(e FormError, budget float64) (Form, FormError) {
	if rank, frobenius := p.search.find(p.x, p.rest, p.rows, p.cols, budget); rank > 0 {
		return FormRank + Form(rank-1), FormError{frobenius, frobenius, e.Norm, (e.NormBound + frobenius) * (1 + 2*half64)}
	}
	p.findPeaks()
	for _, f := range p.forms {
		if !p.quantizeAs(f, budget*budget, false) {
			continue
		}
		frobenius := float64(root(squares(p.rest), len(p.rest)) * (1 + 2*half32)) // rest was rounded
		if frobenius <= budget {
			return f, FormError{frobenius, frobenius, e.Norm, (e.NormBound + frobenius) * (1 + 2*half64)}
		}
	}
	return FormPlain, e
}

// chooseTransition chooses a form by the spectral norm of its error. e describes the plain
// form.
func (p *Packer) chooseTransition(e FormError, budget float64) (Form, FormError) {
	norm := e.NormBound
	zero := FormError{Spectral: norm, Frobenius: norm, Norm: e.Norm}
	if norm <= budget {
		return FormZero, zero
	}
	if p.rows == p.cols {
		p.takeOffMean()
	}
	p.findPeaks()
	// The stored matrix is g*I + x, except that x is rounded on its diagonal.
	spectral, _ := p.meter.norms(p.x, p.rows, p.cols)
	e.NormBound = min(norm, (math.Abs(float64(p.g))+float64(spectral*(1+2*half32)))*(1+4*half64))
	if e.NormBound <= budget {
		zero.Spectral = e.NormBound
		return FormZero, zero
	}
	// A spectral bound from the method norms is at least n^-¼ times the Frobenius norm of
	// the remainder, where n is the shorter side. So forms that leave a larger remainder
	// than most are given up early.
	most := budget * budget * math.Sqrt(float64(min(p.rows, p.cols))) * (1 + 0x1p-20)
	for _, f := range p.forms {
		if !p.quantizeAs(f, most, p.rows == p.cols) {
			continue
		}
		spectral, frobenius := p.meter.norms(p.rest, p.rows, p.cols)
		frobenius = float64(frobenius * (1 + 2*half32)) // rest was rounded
		spectral = min(frobenius, spectral+float64(2*half32*frobenius))
		if spectral <= budget {
			return f, FormError{spectral, frobenius, e.Norm, (e.NormBound + spectral) * (1 + 2*half64)}
		}
	}
	return FormPlain, e
}

// takeOffMean subtracts the mean of the diagonal from the diagonal, unless that overflows.
func (p *Packer) takeOffMean() {
	var sum float64
	for i := range p.diagonal {
		p.diagonal[i] = p.x[i*p.cols+i]
		sum += float64(p.diagonal[i])
	}
	p.g = float32(sum / float64(p.rows))
	for i, v := range p.diagonal {
		v -= p.g
		if math.IsInf(float64(v), 0) {
			p.restoreDiagonal()
			return
		}
		p.x[i*p.cols+i] = v
	}
}

func (p *Packer) restoreDiagonal() {
	p.g = 0
	for i, v := range p.diagonal {
		p.x[i*p.cols+i] = v
	}
}

// findPeaks finds the largest magnitude of each row of x.
func (p *Packer) findPeaks() {
	for i := range p.peaks {
		p.peaks[i] = math.Float32frombits(peakBits(p.x[i*p.cols:][:p.cols]))
	}
}

// quantizeAs rounds the head p.x to the integer form f. The results are in p.q, p.scales
// and p.rest, which has what rounding left. As soon as the sum of squares of p.rest exceeds
// the parameter most, quantizeAs stops and returns false.
func (p *Packer) quantizeAs(f Form, most float64, square bool) bool {
	var sum float64
	largest := f.largest()
	for i, peak := range p.peaks {
		row, scale := p.x[i*p.cols:][:p.cols], peak/largest
		q, rest := p.q[i*p.cols:][:p.cols], p.rest[i*p.cols:][:p.cols]
		quantize(q, rest, row, scale, largest)
		if square {
			rest[i] = p.diagonal[i] - (float32(scale*float32(q[i])) + p.g)
		}
		p.scales[i] = scale
		if sum += squares(rest); !(sum <= most*(1+0x1p-20)) {
			return false
		}
	}
	return sum <= math.MaxFloat64
}

// write writes a head in form f. size is the number of bytes with padding.
func (p *Packer) write(dst, head []byte, f Form, size int) int {
	dst = dst[:size]
	n := 0
	switch {
	case f == FormPlain:
		n = copy(dst, head)
	case f.integer():
		binary.LittleEndian.PutUint32(dst, math.Float32bits(p.g))
		fromF32(dst[4:], p.scales, F32)
		n = 4 + 4*p.rows
		for i := range p.rows {
			widths[f].pack(dst[n:][:f.rowBytes(p.cols)], p.q[i*p.cols:][:p.cols])
			n += f.rowBytes(p.cols)
		}
	case f.Rank() > 0:
		n = p.search.write(dst, f.Rank(), p.rows, p.cols)
	}
	clear(dst[n:])
	return size
}
