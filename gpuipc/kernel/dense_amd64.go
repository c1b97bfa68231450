package kernel

import "unsafe"

// dense composes one head with a dense transition. The state stays in panels of
// v.cols() columns from the first step that changes it to the last, which writes
// it back row-major. Columns past dv of the last panel hold rubbish that nothing
// reads.
type dense struct {
	isa    isa
	dk, dv int
	state  []float32
	sc     *Scratch
	now    []float32 // the state in panels
	next   []float32
}

func composeDense(v isa, dk, dv int, state []float32, steps []Step, sc *Scratch) {
	d := dense{v, dk, dv, state, sc, sc.a, sc.b}
	last := -1
	for i := range steps {
		if !steps[i].empty() {
			last = i
		}
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
		if steps[i].empty() {
			continue
		}
		if !packed {
			d.pack()
		}
		packed = i != last
		d.step(&steps[i], !packed)
	}
}

// full is the number of complete panels, edge the columns of the incomplete one.
func (d *dense) full() int      { return d.dv / d.isa.cols() }
func (d *dense) edge() int      { return d.dv % d.isa.cols() }
func (d *dense) panelLen() int  { return d.dk * d.isa.cols() }
func (d *dense) edgeStart() int { return d.full() * d.isa.cols() }

func (d *dense) pack() {
	cols := d.isa.cols()
	if d.full() > 0 {
		d.isa.pack(&d.now[0], 4*cols, 4*d.panelLen(), &d.state[0], 4*d.dv, 4*cols, d.dk, d.full())
	}
	if n := d.edge(); n > 0 {
		packEdge(d.now[d.full()*d.panelLen():], cols, matrix{d.state, d.dv}, 0, d.dk, d.edgeStart(), n)
	}
}

func (d *dense) unpack(dst []float32) {
	cols := d.isa.cols()
	if d.full() > 0 {
		d.isa.pack(&dst[0], 4*d.dv, 4*cols, &d.now[0], 4*cols, 4*d.panelLen(), d.dk, d.full())
	}
	if d.edge() > 0 {
		d.unpackEdge(dst, d.now[d.full()*d.panelLen():])
	}
}

func (d *dense) unpackEdge(dst, panel []float32) {
	n, cols := d.edge(), d.isa.cols()
	for i := range d.dk {
		copy(dst[i*d.dv+d.edgeStart():][:n], panel[i*cols:][:n])
	}
}

// step is T*now + S into next, or into state when it is the last.
func (d *dense) step(s *Step, last bool) {
	cols := d.isa.cols()
	t := tile{a: asNumbers(s.T), lda: 4 * d.dk, ldb: 4 * cols, c: &s.S[0], ldc: 4 * d.dv}
	if s.TType != F32 {
		toF32(d.sc.t[:d.dk*d.dk], s.T, s.TType)
		t.a = &d.sc.t[0]
	}
	if s.SType != F32 {
		toF32(d.sc.s[:d.dk*d.dv], s.S, s.SType)
		t.c = (*byte)(unsafe.Pointer(&d.sc.s[0]))
	}
	first := t.c
	for p := range d.full() {
		t.b = &d.now[p*d.panelLen()]
		t.c = (*byte)(unsafe.Add(unsafe.Pointer(first), 4*p*cols))
		if t.d, t.ldd = &d.next[p*d.panelLen()], 4*cols; last {
			t.d, t.ldd = &d.state[p*cols], 4*d.dv
		}
		t.run(d.isa, d.dk, d.dk)
	}
	if d.edge() > 0 {
		d.stepEdge(t, s, last)
	}
	d.now, d.next = d.next, d.now
}

// stepEdge brings the last columns of S into a panel of their own first.
func (d *dense) stepEdge(t tile, s *Step, last bool) {
	n, cols, at := d.edge(), d.isa.cols(), d.full()*d.panelLen()
	out := d.next[at:]
	for i := range d.dk {
		from := i*d.dv + d.edgeStart()
		if s.SType == F32 {
			toF32Generic(out[i*cols:][:n], s.S[4*from:], F32)
		} else {
			copy(out[i*cols:][:n], d.sc.s[from:])
		}
	}
	t.b = &d.now[at]
	t.c, t.ldc = (*byte)(unsafe.Pointer(&out[0])), 4*cols
	t.d, t.ldd = &out[0], 4*cols
	t.run(d.isa, d.dk, d.dk)
	if last {
		d.unpackEdge(d.state, out)
	}
}

// asNumbers points at b as numbers, at whatever address: vector loads do not mind.
func asNumbers(b []byte) *float32 { return (*float32)(unsafe.Pointer(unsafe.SliceData(b))) }
