package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

var transitions = []Transition{Scalar, Diagonal, Dense}

// reserved returns a Scratch with room for heads of [dk, dv].
func reserved(dk, dv int) *Scratch {
	sc := new(Scratch)
	sc.reserve(dk, dv)
	return sc
}

func (tr Transition) name() string { return [...]string{"none", "scalar", "diagonal", "dense"}[tr] }

// plan is steps with the same numbers in float64.
type plan struct {
	tr     Transition
	dk, dv int
	start  []float32
	steps  []Step
	t, s   [][]float64
}

func newPlan(t testing.TB, r *rand.Rand, tr Transition, dk, dv, n int, tt, st DType) *plan {
	p := &plan{tr: tr, dk: dk, dv: dv, start: make([]float32, dk*dv)}
	normal(r, p.start, 1)
	for i := range n {
		var step Step
		var tv, sv []float64
		if i%4 != 3 { // every fourth is a seam that only reads the state
			T, S := make([]float32, tr.count(dk)), make([]float32, dk*dv)
			normal(r, T, 1/math.Sqrt(float64(len(T)/max(dk, 1)+1)))
			normal(r, S, 1)
			step.TType, step.SType = tt, st
			if tr == Scalar {
				step.TType = F32
			}
			step.T, tv = encode(t, T, step.TType)
			step.S, sv = encode(t, S, st)
		}
		p.steps, p.t, p.s = append(p.steps, step), append(p.t, tv), append(p.s, sv)
	}
	return p
}

// turnAll gives every step a rotation of S.
func (p *plan) turnAll(r *rand.Rand, dims int, interleaved bool) {
	for i := range p.steps {
		st := &p.steps[i]
		st.Dims, st.Interleaved = dims, interleaved
		st.Cos, st.Sin = make([]float32, dims/2), make([]float32, dims/2)
		for j := range st.Cos {
			sin, cos := math.Sincos(r.Float64() * 100)
			st.Cos[j], st.Sin[j] = float32(cos), float32(sin)
		}
	}
}

// oracle is the composition in float64, the states before each step, and a bound
// on what F32 arithmetic may differ from it, number by number.
func (p *plan) oracle() (state, bound []float64, before [][]float64) {
	dk, dv := p.dk, p.dv
	state, bound = make([]float64, dk*dv), make([]float64, dk*dv)
	for i, v := range p.start {
		state[i] = float64(v)
	}
	for n := range p.steps {
		before = append(before, append([]float64(nil), state...))
		if p.steps[n].empty() {
			continue
		}
		next, nextBound := turned64(&p.steps[n], p.s[n], dv)
		for i := range dk {
			for j := range dv {
				size := math.Abs(next[i*dv+j])
				for k := range dk {
					c := p.entry(n, i, k)
					if c == 0 {
						continue
					}
					next[i*dv+j] += c * state[k*dv+j]
					size += math.Abs(c * state[k*dv+j])
					nextBound[i*dv+j] += math.Abs(c) * bound[k*dv+j]
				}
				nextBound[i*dv+j] += float64(dk+1) * unit * size
			}
		}
		state, bound = next, nextBound
	}
	return state, bound, before
}

// entry is T[i,k] of step n, whatever the form.
func (p *plan) entry(n, i, k int) float64 {
	switch {
	case p.tr == Dense:
		return p.t[n][i*p.dk+k]
	case i != k:
		return 0
	case p.tr == Diagonal:
		return p.t[n][i]
	}
	return p.t[n][0]
}

func turned64(st *Step, s []float64, dv int) (out, bound []float64) {
	out, bound = append([]float64(nil), s...), make([]float64, len(s))
	for i := range st.Dims / 2 {
		a, b := pair(i, st.Dims, st.Interleaved)
		c, n := float64(st.Cos[i]), float64(st.Sin[i])
		for j := range dv {
			x, y := s[a*dv+j], s[b*dv+j]
			out[a*dv+j], out[b*dv+j] = x*c-y*n, y*c+x*n
			bound[a*dv+j] = 3 * unit * (math.Abs(x) + math.Abs(y))
			bound[b*dv+j] = bound[a*dv+j]
		}
	}
	return out, bound
}

// run composes on guarded memory, asking for the state before every step.
func (p *plan) run(t testing.TB, f func(Transition, int, int, []float32, []Step, *Scratch)) (state []float32, before [][]float32) {
	t.Helper()
	state, ok := guardedF32(t, len(p.start))
	copy(state, p.start)
	checks := []func(){ok}
	steps := append([]Step(nil), p.steps...)
	for i := range steps {
		b, ok := guardedF32(t, len(state))
		steps[i].Before, checks = b, append(checks, ok)
		before = append(before, b)
	}
	f(p.tr, p.dk, p.dv, state, steps, reserved(p.dk, p.dv))
	for _, ok := range checks {
		ok()
	}
	return state, before
}

func within(t testing.TB, what string, got []float32, want, bound []float64) {
	t.Helper()
	for i := range want {
		if d := math.Abs(float64(got[i]) - want[i]); !(d <= bound[i]) {
			t.Fatalf("%s: number %d is %v, want %v within %.2g", what, i, got[i], want[i], bound[i])
		}
	}
}

func (p *plan) verify(t *testing.T, what string) {
	t.Helper()
	want, bound, _ := p.oracle()
	state, before := p.run(t, Compose)
	within(t, what, state, want, bound)
	plain, plainBefore := p.run(t, composeGeneric)
	within(t, what+" generic", plain, want, bound)
	for i := range before {
		if p.tr != Dense {
			wantSame(t, fmt.Sprintf("%s: before step %d", what, i), before[i], plainBefore[i])
			continue
		}
		q := *p
		q.steps = q.steps[:i]
		w, b, _ := q.oracle()
		within(t, fmt.Sprintf("%s: before step %d", what, i), before[i], w, b)
	}
	if p.tr != Dense {
		wantSame(t, what, state, plain)
	}
}

func TestComposeAgreesWithFloat64(t *testing.T) {
	r := rng(t)
	shapes := [][2]int{{1, 1}, {128, 128}, {64, 64}, {16, 1}, {1, 130}, {130, 1}, {128, 40}, {6, 16}, {12, 32}, {13, 33}}
	for range 24 {
		shapes = append(shapes, [2]int{1 + r.IntN(130), 1 + r.IntN(130)})
	}
	eachISA(t, func(t *testing.T) {
		for i, d := range shapes {
			for _, tr := range transitions {
				tt, st := dtypes[i%3], dtypes[(i+i/3)%3]
				p := newPlan(t, r, tr, d[0], d[1], 1+i%5, tt, st)
				p.verify(t, fmt.Sprintf("%s [%d,%d] T %s S %s, %d steps", tr.name(), d[0], d[1], tt.name(), st.name(), len(p.steps)))
			}
		}
	})
}

func TestComposeTurnsEndStates(t *testing.T) {
	r := rng(t)
	eachISA(t, func(t *testing.T) {
		for i, d := range [][3]int{{128, 128, 64}, {128, 128, 128}, {10, 7, 10}, {65, 33, 18}, {4, 1, 2}} {
			for _, st := range dtypes {
				for _, interleaved := range []bool{false, true} {
					p := newPlan(t, r, Scalar, d[0], d[1], 2+i, F32, st)
					p.turnAll(r, d[2], interleaved)
					p.verify(t, fmt.Sprintf("%v %s interleaved=%v", d, st.name(), interleaved))
				}
			}
		}
	})
}

func TestComposeOfNothing(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		for _, tr := range transitions {
			Compose(tr, 0, 0, nil, nil, nil)
			Compose(tr, 0, 5, nil, []Step{{}}, nil)
			state := []float32{1, 2, 3, 4}
			Compose(tr, 2, 2, state, nil, nil)
			before := make([]float32, 4)
			Compose(tr, 2, 2, state, []Step{{Before: before}}, nil)
			wantSame(t, "state", state, []float32{1, 2, 3, 4})
			wantSame(t, "before", before, state)
		}
	})
}

func TestComposeCarriesNaNAndInf(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	eachISA(t, func(t *testing.T) {
		for _, tr := range transitions {
			const dk, dv = 9, 37
			T, S := make([]float32, tr.count(dk)), make([]float32, dk*dv)
			state := make([]float32, dk*dv)
			for i := range T {
				T[i] = 1
			}
			for i := range state {
				state[i] = 2
			}
			S[5], S[6], state[40] = nan, -inf, inf
			tb, _ := encode(t, T, F32)
			sb, _ := encode(t, S, F16)
			want := append([]float32(nil), state...)
			step := []Step{{T: tb, TType: F32, S: sb, SType: F16}}
			Compose(tr, dk, dv, state, step, nil)
			composeGeneric(tr, dk, dv, want, step, reserved(dk, dv))
			wantSame(t, tr.name(), state, want)
			if state[5] == state[5] || state[6] != -inf || state[40] != inf {
				t.Errorf("%s: %v %v %v", tr.name(), state[5], state[6], state[40])
			}
		}
	})
}

func TestComposeRefusesWrongSizes(t *testing.T) {
	f32 := func(n int) []byte { return make([]byte, 4*n) }
	try := func(what string, tr Transition, n int, s Step) {
		t.Helper()
		wantPanic(t, what, func() { Compose(tr, 2, 3, make([]float32, n), []Step{s}, nil) })
	}
	try("short state", Scalar, 5, Step{})
	try("short before", Scalar, 6, Step{Before: make([]float32, 5)})
	try("no T", Scalar, 6, Step{S: f32(6), SType: F32})
	try("no S", Dense, 6, Step{T: f32(4), TType: F32})
	try("T of another form", Dense, 6, Step{T: f32(2), TType: F32, S: f32(6), SType: F32})
	try("T of another type", Dense, 6, Step{T: f32(4), TType: F16, S: f32(6), SType: F32})
	try("short S", Diagonal, 6, Step{T: f32(2), TType: F32, S: f32(5), SType: F32})
	try("unknown type", Scalar, 6, Step{T: f32(1), TType: F32, S: f32(6), SType: 7})
	try("unknown transition", 9, 6, Step{T: f32(1), TType: F32, S: f32(6), SType: F32})
	turn := Step{T: f32(2), TType: F32, S: f32(6), SType: F32, Dims: 2, Cos: []float32{1}, Sin: []float32{0}}
	try("turn with a diagonal", Diagonal, 6, turn)
	turn.T, turn.Dims = f32(1), 4
	try("turn of too many rows", Scalar, 6, turn)
}

// packedAs is the head of plain numbers in a form, whatever its error, and its numbers.
func packedAs(t testing.TB, f Form, plain []byte, dt DType, rows, cols int) ([]byte, []byte) {
	var p Packer
	p.reserve(dt, rows, cols)
	toF32Generic(p.x, plain, dt)
	if f.integer() {
		if rows == cols {
			p.takeOffMean()
		}
		p.findPeaks()
		p.quantizeAs(f, math.Inf(1), rows == cols)
	}
	if rank := f.Rank(); rank > 0 {
		p.search.reserve(rank, rows, cols)
		copy(p.rest, p.x)
		p.search.measure(p.rest, cols)
		for k := 0; k < rank && p.search.step(p.rest, rows, cols, k); k++ {
			p.search.measure(p.rest, cols)
		}
	}
	size := f.size(dt, rows, cols)
	b, _ := guarded(t, size)
	padded := make([]byte, FormBytes(f, dt, rows, cols))
	p.write(padded, plain, f, len(padded))
	copy(b, padded)
	values := make([]float32, rows*cols)
	unpackGeneric(values, f, b, dt, rows, cols, nil)
	wide, _ := encode(t, values, F32)
	return b, wide
}

// inForms gives the steps other forms by turns, and returns the same steps in F32.
func (p *plan) inForms(t testing.TB, first int) *plan {
	same := *p
	same.steps = append([]Step(nil), p.steps...)
	forms := []Form{FormInt8, FormPlain, FormInt12, FormZero, FormInt16, FormRank + Form(first)*5}
	for i := range p.steps {
		s, wide := &p.steps[i], &same.steps[i]
		if s.empty() {
			continue
		}
		if f := forms[(first+i)%6]; p.tr == Dense && f != FormPlain {
			s.TForm = f
			s.T, wide.T = packedAs(t, f, s.T, s.TType, p.dk, p.dk)
			wide.TType = F32
		}
		if f := forms[(first+i/2+2*i)%6]; f != FormPlain {
			s.SForm = f
			s.S, wide.S = packedAs(t, f, s.S, s.SType, p.dk, p.dv)
			wide.SType = F32
		}
	}
	return &same
}

// A form is composed as the numbers that it stands for are.
func TestComposeOfFormsIsThatOfTheirNumbers(t *testing.T) {
	r := rng(t)
	eachISA(t, func(t *testing.T) {
		for i, d := range [][2]int{{1, 1}, {128, 128}, {16, 1}, {1, 30}, {6, 16}, {13, 33}, {29, 51}, {70, 40}, {33, 64}} {
			for first := range 6 {
				for _, tr := range transitions {
					p := newPlan(t, r, tr, d[0], d[1], 1+(i+first)%7, dtypes[i%3], dtypes[(i+first)%3])
					if tr == Scalar && first%2 == 0 {
						p.turnAll(r, d[0]/2*2, first == 2)
					}
					wide := p.inForms(t, first)
					what := fmt.Sprintf("%s %v from form %d, %d steps", tr.name(), d, first, len(p.steps))
					got, before := p.run(t, Compose)
					want, wantBefore := wide.run(t, Compose)
					wantEqual(t, what, got, want)
					for n := range before {
						wantEqual(t, fmt.Sprint(what, ": before ", n), before[n], wantBefore[n])
					}
					state := append([]float32(nil), p.start...)
					Compose(tr, p.dk, p.dv, state, p.steps, nil)
					wantEqual(t, what+", nothing asked for", state, want)
				}
			}
		}
	})
}

// wantEqual takes zeros of either sign for the same: a transition of FormZero adds
// nothing to a negative one.
func wantEqual(t testing.TB, what string, got, want []float32) {
	t.Helper()
	for i, v := range want {
		if got[i] != v {
			t.Fatalf("%s: number %d is %v, want %v", what, i, got[i], v)
		}
	}
}

func TestComposeForgetsBeforeAZeroTransition(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		s, _ := encode(t, []float32{1, 2, 3, 4, 5, 6}, F16)
		state := []float32{float32(math.NaN()), float32(math.Inf(1)), 0, 0, 0, 0}
		before := make([]float32, 6)
		steps := []Step{{TForm: FormZero, S: s, SType: F16}, {TForm: FormZero, SForm: FormZero}, {TForm: FormZero, S: s, SType: F16, Before: before}}
		Compose(Dense, 2, 3, state, steps[:1], nil)
		wantSame(t, "state", state, []float32{1, 2, 3, 4, 5, 6})
		Compose(Dense, 2, 3, state, steps, nil)
		wantSame(t, "state", state, []float32{1, 2, 3, 4, 5, 6})
		wantSame(t, "before", before, make([]float32, 6))
	})
}

func TestComposeRefusesWrongForms(t *testing.T) {
	good := func() Step {
		return Step{T: make([]byte, FormBytes(FormInt8, F16, 2, 2)), TForm: FormInt8, S: make([]byte, FormInt12.size(F32, 2, 3)), SForm: FormInt12}
	}
	run := func(tr Transition, s Step) func() {
		return func() { Compose(tr, 2, 3, make([]float32, 6), []Step{s}, nil) }
	}
	run(Dense, good())()
	try := func(what string, tr Transition, change func(*Step)) {
		t.Helper()
		s := good()
		change(&s)
		wantPanic(t, what, run(tr, s))
	}
	try("diagonal in a form", Diagonal, func(*Step) {})
	try("scalar zero", Scalar, func(s *Step) { s.T, s.TForm = nil, FormZero })
	try("short T", Dense, func(s *Step) { s.T = s.T[:FormInt8.size(F16, 2, 2)-1] })
	try("long S", Dense, func(s *Step) { s.S = make([]byte, 65) })
	try("zero with bytes", Dense, func(s *Step) { s.TForm = FormZero; s.T = s.T[:1] })
	try("unknown form", Dense, func(s *Step) { s.SForm = formCount })
	try("no T", Dense, func(s *Step) { s.T, s.TForm, s.TType = nil, FormPlain, F16 })
}

func TestComposeDoesNotAllocate(t *testing.T) {
	r := rng(t)
	eachISA(t, func(t *testing.T) {
		for _, tr := range transitions {
			for _, packed := range []bool{false, true} {
				n, st := 4, BF16
				if packed {
					n, st = 9, F32
				}
				p := newPlan(t, r, tr, 61, 70, n, F16, st)
				if packed {
					p.inForms(t, 0)
					p.steps[0].Before = make([]float32, len(p.start))
				}
				if tr == Scalar {
					p.turnAll(r, 60, true)
				}
				sc := reserved(p.dk, p.dv)
				state := append([]float32(nil), p.start...)
				if n := testing.AllocsPerRun(20, func() { Compose(tr, p.dk, p.dv, state, p.steps, sc) }); n != 0 {
					t.Errorf("%s, packed %v: %v allocations", tr.name(), packed, n)
				}
			}
		}
	})
}

func FuzzCompose(f *testing.F) {
	f.Add(uint64(1), uint8(1), uint8(20), uint8(33), uint8(3), uint8(1))
	f.Add(uint64(2), uint8(2), uint8(1), uint8(7), uint8(0), uint8(5))
	f.Add(uint64(3), uint8(0), uint8(64), uint8(16), uint8(2), uint8(8))
	f.Fuzz(func(t *testing.T, seed uint64, form, dk, dv, n, types uint8) {
		r := rand.New(rand.NewPCG(seed, 2))
		tr := transitions[form%3]
		p := newPlan(t, r, tr, 1+int(dk%70), 1+int(dv%70), int(n%6), dtypes[types%3], dtypes[types/3%3])
		if tr == Scalar {
			p.turnAll(r, 2*(p.dk/2), types%2 == 0)
		}
		p.verify(t, fmt.Sprintf("seed %d", seed))
	})
}
