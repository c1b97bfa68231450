package kernel

import "unsafe"

// dense composes one head with a dense transition. It widens a few rows of T and S at a
// time to F32 in L1, and multiplies them with one panel of the state after another. A panel
// has all rows of the state and cols of its columns. While the first rows of T read the
// state, the state is converted to panels. It stays in panels from step to step, and the
// last step writes it back row-major. In the last panel, columns past dv are garbage that
// is never read.
type dense struct {
	isa    isa
	dk, dv int
	cols   int // columns of a panel
	full   int // number of complete panels
	edge   int // columns of the incomplete panel; 0 = there is none
	size   int // numbers in a panel
	state  []float32
	now    []float32 // the state before the step, in panels
	next   []float32 // the state after the step, in panels
	rows   []float32 // rows of T, as F32
	end    []float32 // rows of S, as F32
	wide   *wide
}

func composeDense(v isa, dk, dv int, state []float32, steps []Step, sc *Scratch) {
	d := dense{isa: v, dk: dk, dv: dv, cols: v.cols(), state: state, now: sc.a, next: sc.b, rows: sc.t, end: sc.s, wide: &sc.wide}
	d.full, d.edge, d.size = dv/d.cols, dv%d.cols, dk*d.cols
	last := len(steps) - 1
	for last >= 0 && steps[last].empty() {
		last--
	}
	packed := false
	for i := range steps {
		if b := steps[i].Before; b != nil {
			if packed {
				d.unpack(b)
			} else {
				copy(b, state)
			}
		}
		switch s := &steps[i]; {
		case s.empty():
		case s.TForm == FormZero:
			unpack(state, s.SForm, s.S, s.SType, dk, dv, d.wide)
			packed = false
		default:
			d.step(s, packed, i == last)
			packed = i != last
		}
	}
}

// step writes T*now + S into next or, for the last step, into state.
func (d *dense) step(s *Step, packed, last bool) {
	t := openRows(s.T, s.TForm, s.TType, d.dk, d.dk)
	if s.TForm.Rank() > 0 {
		t = openRows(widened(d.rows[:d.dk*d.dk], s.TForm, s.T, s.TType, d.dk, d.dk, d.wide), FormPlain, F32, d.dk, d.dk)
	}
	end := openRows(s.S, s.SForm, s.SType, d.dk, d.dv)
	rank := 0 // rank of S if the complete panels compute its rows from factors
	switch {
	case d.edge > 0:
		whole := endF32(s, d.end, d.dk, d.dv, d.wide)
		end = openRows(whole, FormPlain, F32, d.dk, d.dv)
		d.startEdge(whole, packed)
	case s.SForm.Rank() > 0:
		rank = s.SForm.Rank()
		openLowRank(s.SForm, s.S, d.dk, d.dv).open(d.wide)
		d.isa.pack(&d.wide.panels[0], 4*d.cols, 4*rank*d.cols, &d.wide.right[0], 4*d.dv, 4*d.cols, rank, d.full)
	}
	for i := 0; i < d.dk; {
		rows := d.isa.rows(d.dk - i)
		a, next := t.take(d.rows, i, rows)
		keep := i == 0 && !packed
		if keep && rows < d.isa.tallest() {
			d.pack()
			keep = false
		}
		if d.full > 0 {
			c, after := d.takeEnd(&end, rank, i, rows)
			d.multiply(a, c, i, rows, keep, last, next, after)
		}
		if d.edge > 0 {
			d.multiplyEdge(a, i, rows)
		}
		i += rows
	}
	if d.edge > 0 && last {
		d.unpackEdge(d.state, d.next)
	}
	d.now, d.next = d.next, d.now
}

// endF32 returns S as F32. It uses scratch unless S is F32 already.
func endF32(s *Step, scratch []float32, dk, dv int, w *wide) []byte {
	if s.SForm == FormPlain && s.SType == F32 {
		return s.S
	}
	return widened(scratch[:dk*dv], s.SForm, s.S, s.SType, dk, dv, w)
}

// widened unpacks a head of [rows, cols] into scratch and returns the bytes of its numbers.
func widened(scratch []float32, f Form, b []byte, t DType, rows, cols int, w *wide) []byte {
	unpack(scratch, f, b, t, rows, cols, w)
	return unsafe.Slice((*byte)(unsafe.Pointer(&scratch[0])), 4*rows*cols)
}

// takeEnd returns rows of S as F32. Rows of an S of low rank are computed, in L1, from the
// factors in d.wide.
func (d *dense) takeEnd(s *rowsOf, rank, row, rows int) (c *float32, after *byte) {
	if rank == 0 {
		return s.take(d.end, row, rows)
	}
	nothing, ld := (*byte)(unsafe.Pointer(&zeroRow[0])), turnedLD(rank)
	t := tile{
		a: &d.wide.turned[row*ld], lda: 4 * ld,
		b: &d.wide.panels[0], ldb: 4 * d.cols, stepB: 4 * rank * d.cols,
		c: nothing, after: nothing, ahead: nothing,
		d: &d.end[0], ldd: 4 * d.dv, stepD: 4 * d.cols,
		k: rank, count: d.full,
	}
	t.call(d.isa, rows)
	return &d.end[0], nothing
}

// zeroRow is used as C in products that add to nothing. It is only read.
var zeroRow [panelWidth]float32

// rowsOf has the rows of T or S in any form except those of low rank.
type rowsOf struct {
	b    []byte
	size int // bytes of a row
	cols int
	dt   DType
	form Form
	q    integers
}

func openRows(b []byte, f Form, dt DType, rows, cols int) rowsOf {
	r := rowsOf{b: b, size: cols * dt.Size(), cols: cols, dt: dt, form: f}
	switch f {
	case FormInt8, FormInt12, FormInt16:
		r.q = openIntegers(f, b, rows, cols)
		r.b, r.size = r.q.q, r.q.size
	case FormPlain:
	default:
		r.size = 0
	}
	return r
}

// take returns n rows as F32, beginning with row i. It uses scratch unless they are F32
// already. It also returns the address after these rows, which callers only prefetch.
func (r *rowsOf) take(scratch []float32, i, n int) (rows *float32, next *byte) {
	if r.form == FormZero {
		clear(scratch[:n*r.cols])
		return &scratch[0], (*byte)(unsafe.Pointer(&scratch[0]))
	}
	rest := r.b[i*r.size:]
	next = &rest[min(len(rest)-1, n*r.size)]
	switch {
	case r.form != FormPlain:
		r.q.read(scratch[:n*r.cols], i, n)
	case r.dt == F32:
		return asF32Pointer(rest), next
	default:
		toF32(scratch[:n*r.cols], rest, r.dt)
	}
	return &scratch[0], next
}

// multiply computes rows of all complete panels. The parameter row is the number of the
// first.
func (d *dense) multiply(a, c *float32, row, rows int, keep, last bool, next, after *byte) {
	width := 4 * d.cols
	t := tile{
		a: a, lda: 4 * d.dk,
		b: &d.now[0], ldb: width, stepB: 4 * d.size,
		c: (*byte)(unsafe.Pointer(c)), ldc: 4 * d.dv, stepC: width,
		d: &d.next[row*d.cols], ldd: width, stepD: 4 * d.size,
		k: d.dk, count: d.full, ahead: next, after: after,
	}
	if last {
		t.d, t.ldd, t.stepD = &d.state[row*d.dv], 4*d.dv, width
	}
	if keep {
		t.b, t.ldb, t.stepB = &d.state[0], 4*d.dv, width
		t.panel, t.stepOfPanel = &d.now[0], 4*d.size
		t.callKeeping(d.isa)
		return
	}
	t.call(d.isa, rows)
}

// startEdge copies the last columns of the state and of S into panels. The columns of S go
// where the result will be.
func (d *dense) startEdge(end []byte, packed bool) {
	now, next := d.now[d.full*d.size:], d.next[d.full*d.size:]
	for i := range d.dk {
		at := i*d.dv + d.full*d.cols
		toF32Generic(next[i*d.cols:][:d.edge], end[4*at:], F32)
		if !packed {
			copy(now[i*d.cols:][:d.edge], d.state[at:])
		}
	}
}

func (d *dense) multiplyEdge(a *float32, row, rows int) {
	at := d.full * d.size
	t := tile{
		a: a, lda: 4 * d.dk,
		b: &d.now[at], ldb: 4 * d.cols,
		d: &d.next[at+row*d.cols], ldd: 4 * d.cols, ldc: 4 * d.cols,
		k: d.dk, count: 1,
	}
	t.c = (*byte)(unsafe.Pointer(t.d))
	t.after, t.ahead = t.c, t.c
	t.call(d.isa, rows)
}

// pack converts the complete columns of state to panels.
func (d *dense) pack() {
	if d.full > 0 {
		d.isa.pack(&d.now[0], 4*d.cols, 4*d.size, &d.state[0], 4*d.dv, 4*d.cols, d.dk, d.full)
	}
}

func (d *dense) unpack(dst []float32) {
	if d.full > 0 {
		d.isa.pack(&dst[0], 4*d.dv, 4*d.cols, &d.now[0], 4*d.cols, 4*d.size, d.dk, d.full)
	}
	if d.edge > 0 {
		d.unpackEdge(dst, d.now)
	}
}

func (d *dense) unpackEdge(dst, panels []float32) {
	for i := range d.dk {
		copy(dst[i*d.dv+d.full*d.cols:][:d.edge], panels[d.full*d.size+i*d.cols:])
	}
}

// asF32Pointer returns a pointer to b as numbers. b may be at any address, because vector
// loads need no alignment.
func asF32Pointer(b []byte) *float32 { return (*float32)(unsafe.Pointer(&b[0])) }
