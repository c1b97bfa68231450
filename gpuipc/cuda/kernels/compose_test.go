package kernels

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

var dtypes = []gpuipc.DType{kernel.F32, kernel.F16, kernel.BF16}

// composition is a job in guarded memory, with what the host needs to do the same.
type composition struct {
	args      ComposeJob
	from, out []byte
	t, s      [][]byte
	before    [][]byte
	tType     gpuipc.DType
	sType     gpuipc.DType
	off       int // of all tensors, from their alignment
}

type shape struct {
	tr            gpuipc.Transition
	heads, dk, dv int
}

// newComposition: every fourth step is a seam that has neither T nor S; every step's state before
// is asked for.
func newComposition(tb testing.TB, r *rand.Rand, sh shape, steps int, tType, sType gpuipc.DType, off int) *composition {
	if sh.tr == kernel.Scalar {
		tType = kernel.F32
	}
	c := &composition{args: ComposeJob{Transition: sh.tr, Heads: sh.heads, DK: sh.dk, DV: sh.dv}, tType: tType, sType: sType, off: off}
	n := sh.heads * sh.dk * sh.dv
	c.from, c.out = c.tensor(tb, r, n, kernel.F32, 1), memory(tb, 4*n, off)
	c.args.From, c.args.Out = address(c.from), address(c.out)
	factors := c.args.factors()
	for i := range steps {
		before := memory(tb, 4*n, off)
		st := ComposeStep{Before: address(before)}
		var t, s []byte
		if i%4 != 3 {
			t = c.tensor(tb, r, sh.heads*factors, tType, 1/math.Sqrt(float64(max(1, factors/sh.dk))))
			s = c.tensor(tb, r, n, sType, 1)
			st.T, st.S, st.TType, st.SType = address(t), address(s), tType, sType
		}
		c.t, c.s, c.before = append(c.t, t), append(c.s, s), append(c.before, before)
		c.args.Steps = append(c.args.Steps, st)
	}
	return c
}

func (c *composition) tensor(tb testing.TB, r *rand.Rand, n int, dt gpuipc.DType, sigma float64) []byte {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(r.NormFloat64() * sigma)
	}
	b := memory(tb, n*dt.Size(), c.off)
	kernel.FromF32(b, v, dt)
	return b
}

func (c *composition) turn(r *rand.Rand, dims int, interleaved func(step int) bool) {
	for i := range c.args.Steps {
		rot := gpuipc.Rotation{Dims: dims, Interleaved: interleaved(i)}
		for range dims / 2 {
			sin, cos := math.Sincos(r.Float64() * 100)
			rot.Cos, rot.Sin = append(rot.Cos, float32(cos)), append(rot.Sin, float32(sin))
		}
		c.args.Steps[i].Rotation = &rot
	}
}

// host is the same job by gpuipc/kernel: the last state, and those before the steps.
func (c *composition) host() (state []float32, before [][]float32) {
	a := &c.args
	n, factors := a.DK*a.DV, a.factors()
	state = append(state, f32s(c.from)...)
	if a.From == 0 {
		clear(state)
	}
	for range a.Steps {
		before = append(before, make([]float32, len(state)))
	}
	for h := range a.Heads {
		steps := make([]kernel.Step, len(a.Steps))
		for i := range steps {
			st := &steps[i]
			if a.Steps[i].Before != 0 {
				st.Before = before[i][h*n:][:n]
			}
			if c.t[i] == nil {
				continue
			}
			in := &a.Steps[i]
			st.TType, st.SType = in.TType, in.SType
			st.TForm, st.T = headOf(c.t[i], in.TPacked != 0, in.TType, a.Heads, factors/a.DK, a.DK, factors, h)
			st.SForm, st.S = headOf(c.s[i], in.SPacked != 0, in.SType, a.Heads, a.DK, a.DV, n, h)
			if rot := a.Steps[i].Rotation; rot != nil {
				st.Dims, st.Interleaved, st.Cos, st.Sin = rot.Dims, rot.Interleaved, rot.Cos, rot.Sin
			}
		}
		kernel.Compose(a.Transition, a.DK, a.DV, state[h*n:][:n], steps, nil)
	}
	return state, before
}

// headOf is one head of a part of n numbers a head, packed or not.
func headOf(b []byte, packed bool, dt gpuipc.DType, heads, rows, cols, n, head int) (kernel.Form, []byte) {
	if !packed {
		size := n * dt.Size()
		return kernel.FormPlain, b[head*size:][:size]
	}
	p, err := kernel.OpenPacked(b, dt, heads, rows, cols)
	if err != nil {
		panic(err)
	}
	return p.Head(head)
}

// exact is the last state of a dense job in float64.
func (c *composition) exact() []float64 {
	a := &c.args
	state := make([]float64, a.Heads*a.DK*a.DV)
	if a.From != 0 {
		for i, v := range f32s(c.from) {
			state[i] = float64(v)
		}
	}
	for i := range a.Steps {
		if c.t[i] == nil {
			continue
		}
		t, s, st := make([]float32, a.Heads*a.DK*a.DK), make([]float32, len(state)), &a.Steps[i]
		if err := errors.Join(
			kernel.PartToF32(t, c.t[i], st.TType, st.TPacked != 0, [3]int{a.Heads, a.DK, a.DK}),
			kernel.PartToF32(s, c.s[i], st.SType, st.SPacked != 0, [3]int{a.Heads, a.DK, a.DV})); err != nil {
			panic(err)
		}
		state = multiplyAdd(a, t, s, state)
	}
	return state
}

func multiplyAdd(a *ComposeJob, t, s []float32, state []float64) []float64 {
	next := make([]float64, len(state))
	for row := range a.Heads * a.DK {
		head := row / a.DK
		out := next[row*a.DV:][:a.DV]
		for j := range out {
			out[j] = float64(s[row*a.DV+j])
		}
		for k := range a.DK {
			f := float64(t[row*a.DK+k])
			for j, v := range state[(head*a.DK+k)*a.DV:][:a.DV] {
				out[j] += f * v
			}
		}
	}
	return next
}

// distance is the root of the mean square of got-want, relative to that of want.
func distance[T float32 | float64](got []float32, want []T) float64 {
	var d, size float64
	for i := range want {
		d += math.Pow(float64(got[i])-float64(want[i]), 2)
		size += math.Pow(float64(want[i]), 2)
	}
	if d == 0 {
		return 0
	}
	return math.Sqrt(d / size)
}

// denseBound is the promise of Compose for dense transitions.
const denseBound = 1e-6

func (c *composition) wantBits(tb testing.TB, what string) {
	tb.Helper()
	state, before := c.host()
	same := func(name string, got []byte, want []float32) {
		for i, v := range f32s(got) {
			if math.Float32bits(v) != math.Float32bits(want[i]) {
				tb.Fatalf("%s: %s: number %d is %v, the host says %v", what, name, i, v, want[i])
			}
		}
	}
	for i := range before {
		same(fmt.Sprintf("state before step %d", i), c.before[i], before[i])
	}
	if c.args.Out != 0 {
		same("state", c.out, state)
	}
}

// wantClose returns the distance from float64.
func (c *composition) wantClose(tb testing.TB, what string) float64 {
	tb.Helper()
	_, before := c.host()
	for i := range before {
		if d := distance(f32s(c.before[i]), before[i]); !(d <= denseBound) {
			tb.Fatalf("%s: state before step %d is %.2g from the host's", what, i, d)
		}
	}
	if c.args.Out == 0 {
		return 0
	}
	d := distance(f32s(c.out), c.exact())
	if !(d <= denseBound) {
		tb.Fatalf("%s: the state is %.2g from float64", what, d)
	}
	return d
}

// compose runs jobs that all go to one kernel.
func compose(tb testing.TB, k composeKernel, all ...*composition) {
	tb.Helper()
	var jobs []ComposeJob
	for _, c := range all {
		jobs = append(jobs, c.args)
	}
	launches, err := Compose(jobs)
	must(tb, err)
	if len(launches) != 1 || launches[0].Name != k.String() {
		tb.Fatalf("%d launches, the first of %s, want one of %s", len(launches), launches[0].Name, k)
	}
	emulated(tb).run(tb, launches[0])
}

func TestComposeOfFactorsHasTheHostsBits(t *testing.T) {
	r := seeded(t)
	for _, c := range []struct {
		shape
		off    int
		kernel composeKernel
	}{
		{shape{kernel.Scalar, 3, 16, 40}, 0, composeRows},
		{shape{kernel.Scalar, 2, 6, 2}, 0, composeRows},
		{shape{kernel.Diagonal, 3, 17, 20}, 0, composeRows},
		{shape{kernel.Diagonal, 40, 16, 1}, 0, composeNumbers},
		{shape{kernel.Diagonal, 5, 12, 3}, 0, composeSingle},
		{shape{kernel.Scalar, 5, 7, 3}, 0, composeSingle},
		{shape{kernel.Scalar, 3, 16, 40}, 4, composeSingle},
		{shape{kernel.Diagonal, 2, 16, 8}, 12, composeSingle},
	} {
		for i, sType := range dtypes {
			for steps := range 7 {
				tType := dtypes[(steps+i)%3]
				what := fmt.Sprintf("%v off %d, %d steps, T %d S %d", c.shape, c.off, steps, tType, sType)
				j := newComposition(t, r, c.shape, steps, tType, sType, c.off)
				compose(t, c.kernel, j)
				j.wantBits(t, what)
			}
		}
	}
}

func TestComposeTurnsEndStates(t *testing.T) {
	r := seeded(t)
	same := func(v bool) func(int) bool { return func(int) bool { return v } }
	for _, c := range []struct {
		dk, dv, dims, off int
		interleaved       func(int) bool
		kernel            composeKernel
	}{
		{16, 40, 16, 0, same(false), composeTurned},
		{16, 40, 10, 0, same(true), composeTurned},
		{17, 8, 10, 0, same(false), composeTurned},
		{9, 4, 2, 0, same(true), composeTurned},
		{16, 40, 12, 4, same(false), composeSingle},
		{16, 5, 12, 0, same(true), composeSingle},
		{16, 8, 12, 0, func(i int) bool { return i%2 == 0 }, composeSingle},
	} {
		for _, sType := range dtypes {
			j := newComposition(t, r, shape{kernel.Scalar, 3, c.dk, c.dv}, 6, kernel.F32, sType, c.off)
			j.turn(r, c.dims, c.interleaved)
			compose(t, c.kernel, j)
			j.wantBits(t, fmt.Sprintf("[%d, %d], %d dimensions, S %d", c.dk, c.dv, c.dims, sType))
		}
	}
}

// launched is a shape, an offset of its memory, and the kernel that takes it.
type launched struct {
	shape
	off    int
	kernel composeKernel
}

// areF32 composes jobs of several steps and types, after prepare has changed them.
func areF32(t *testing.T, all []launched, prepare func(r *rand.Rand, j *composition)) {
	t.Helper()
	r := seeded(t)
	var worst float64
	for i, c := range all {
		for k, tType := range dtypes {
			sType := dtypes[(i+k)%3]
			what := fmt.Sprintf("%v off %d, T %d S %d", c.shape, c.off, tType, sType)
			j := newComposition(t, r, c.shape, 1+(i+2*k)%6, tType, sType, c.off)
			prepare(r, j)
			compose(t, c.kernel, j)
			d := j.wantClose(t, what)
			t.Logf("%s, %d steps: %.2g", what, len(j.args.Steps), d)
			worst = max(worst, d)
		}
	}
	t.Logf("largest distance from float64: %.2g", worst)
}

func TestDenseComposeIsF32(t *testing.T) {
	areF32(t, []launched{
		{shape{kernel.Dense, 2, 128, 128}, 0, composeDense128},
		{shape{kernel.Dense, 1, 64, 64}, 0, composeDense64},
		{shape{kernel.Dense, 1, 192, 128}, 0, composeDense192},
		{shape{kernel.Dense, 1, 128, 64}, 0, composeDense128},
		{shape{kernel.Dense, 2, 16, 8}, 0, composeDense64},
		{shape{kernel.Dense, 3, 40, 24}, 0, composeDense64},
		{shape{kernel.Dense, 1, 72, 88}, 0, composeDense128},
		{shape{kernel.Dense, 1, 136, 40}, 0, composeDense192},
		{shape{kernel.Dense, 2, 16, 1}, 0, composePlain},
		{shape{kernel.Dense, 1, 37, 19}, 0, composePlain},
		{shape{kernel.Dense, 1, 64, 32}, 4, composePlain},
		{shape{kernel.Dense, 1, 200, 16}, 0, composePlain},
	}, func(*rand.Rand, *composition) {})
}

func TestComposeOfManyLayersIsOneLaunch(t *testing.T) {
	r := seeded(t)
	shapes := []shape{{kernel.Dense, 3, 128, 64}, {kernel.Dense, 1, 96, 40}, {kernel.Dense, 2, 128, 16}}
	var all []*composition
	for i, sh := range shapes {
		all = append(all, newComposition(t, r, sh, 3*i, dtypes[i], dtypes[(i+1)%3], 0))
	}
	compose(t, composeDense128, all...)
	for i, c := range all {
		c.wantClose(t, fmt.Sprintf("job %d", i))
	}
}

// Jobs of random shapes in one call, each by whichever kernel takes it.
func TestComposeOfRandomJobs(t *testing.T) {
	e := emulated(t)
	r := seeded(t)
	for range 12 {
		var all []*composition
		var jobs []ComposeJob
		for range 1 + r.IntN(6) {
			sh := shape{gpuipc.Transition(1 + r.IntN(3)), 1 + r.IntN(3), 1 + r.IntN(80), 1 + r.IntN(70)}
			if r.IntN(2) == 0 {
				sh.dk, sh.dv = (sh.dk+7)/8*8, (sh.dv+7)/8*8
			}
			c := newComposition(t, r, sh, r.IntN(6), dtypes[r.IntN(3)], dtypes[r.IntN(3)], 4*max(0, r.IntN(8)-4))
			if sh.tr == kernel.Scalar && r.IntN(2) == 0 {
				c.turn(r, r.IntN(sh.dk/2+1)*2, func(int) bool { return r.IntN(4) == 0 })
			}
			all, jobs = append(all, c), append(jobs, c.args)
		}
		launches, err := Compose(jobs)
		e.runAll(t, launches, err)
		for _, c := range all {
			what := fmt.Sprintf("%v off %d, %d steps, T %d S %d, %s", c.args.Transition, c.off, len(c.args.Steps), c.tType, c.sType, c.args.kernel())
			if c.args.Transition == kernel.Dense {
				c.wantClose(t, what)
			} else {
				c.wantBits(t, what)
			}
		}
	}
}

// Random transitions keep a state's size and so all errors of the steps before; these add up like a
// random walk, as those of plain F32 do.
func TestDenseErrorsOfManyStepsAddUpLikeThoseOfF32(t *testing.T) {
	const steps = 40
	r := seeded(t)
	for i, tType := range dtypes {
		c := newComposition(t, r, shape{kernel.Dense, 1, 64, 16}, steps, tType, dtypes[i], 0)
		compose(t, composeDense64, c)
		state, _ := c.host()
		exact := c.exact()
		device, host := distance(f32s(c.out), exact), distance(state, exact)
		t.Logf("T %d, %d steps: %.2g from float64, the host %.2g", tType, steps, device, host)
		if device > 3*host {
			t.Errorf("T %d: %.2g from float64, more than three times the host's %.2g", tType, device, host)
		}
	}
}

func TestComposeInPlaceAndFromZero(t *testing.T) {
	r := seeded(t)
	for _, sh := range []shape{{kernel.Scalar, 2, 8, 12}, {kernel.Diagonal, 2, 8, 3}, {kernel.Dense, 1, 64, 48}, {kernel.Dense, 1, 20, 3}} {
		in := newComposition(t, r, sh, 3, kernel.F16, kernel.F32, 0)
		zero := newComposition(t, r, sh, 2, kernel.F16, kernel.F32, 0)
		blind := newComposition(t, r, sh, 2, kernel.F16, kernel.F32, 0)
		before := bytes.Clone(in.from)
		in.args.Out, in.out = in.args.From, in.from
		zero.args.From = 0
		untouched := bytes.Clone(blind.out)
		blind.args.Out = 0
		compose(t, in.args.kernel(), in, zero, blind)
		in.from = before
		for i, c := range []*composition{in, zero, blind} {
			if sh.tr == kernel.Dense {
				c.wantClose(t, fmt.Sprint(sh, i))
			} else {
				c.wantBits(t, fmt.Sprint(sh, i))
			}
		}
		if !bytes.Equal(blind.out, untouched) {
			t.Error("a state that was not wanted was written")
		}
	}
}

func TestComposeOfNothing(t *testing.T) {
	e := emulated(t)
	r := seeded(t)
	for _, tr := range []gpuipc.Transition{kernel.Scalar, kernel.Diagonal, kernel.Dense} {
		c := newComposition(t, r, shape{tr, 2, 16, 8}, 0, kernel.F32, kernel.F32, 0)
		launches, err := Compose([]ComposeJob{c.args})
		e.runAll(t, launches, err)
		if !bytes.Equal(c.out, c.from) {
			t.Error("no steps: the state is not what it was")
		}
		c.args.Out = c.args.From
		if launches, err := Compose([]ComposeJob{c.args}); err != nil || len(launches) != 0 {
			t.Errorf("%d launches for nothing to do, %v", len(launches), err)
		}
	}
}

// A NaN or an infinity must not come out as a number.
func TestComposeCarriesWhatIsNotFinite(t *testing.T) {
	r := seeded(t)
	for _, sh := range []shape{{kernel.Scalar, 1, 8, 12}, {kernel.Diagonal, 1, 16, 1}, {kernel.Dense, 1, 64, 32}, {kernel.Dense, 1, 72, 32}, {kernel.Dense, 1, 10, 3}} {
		for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)), math.Float32frombits(0x7fffffff)} {
			c := newComposition(t, r, sh, 2, kernel.F32, kernel.F16, 0)
			f32s(c.from)[sh.dv] = bad // row 1, column 0
			compose(t, c.args.kernel(), c)
			for i, v := range f32s(c.out) {
				finite := !math.IsNaN(float64(v)) && !math.IsInf(float64(v), 0)
				reached := i == sh.dv || sh.tr == kernel.Dense && i%sh.dv == 0
				if finite == reached {
					t.Fatalf("%v: number %d is %v after %v in number %d", sh, i, v, bad, sh.dv)
				}
			}
		}
	}
}

func TestComposeRefuses(t *testing.T) {
	good := func() ComposeJob {
		return ComposeJob{Transition: kernel.Dense, Heads: 1, DK: 16, DV: 16, From: 1 << 20, Out: 1 << 20,
			Steps: []ComposeStep{{T: 1 << 21, S: 1 << 22, TType: kernel.F16, SType: kernel.F32}}}
	}
	if launches, err := Compose([]ComposeJob{good()}); err != nil || len(launches) != 1 {
		t.Fatal(launches, err)
	}
	for what, spoil := range map[string]func(*ComposeJob){
		"no heads":              func(a *ComposeJob) { a.Heads = 0 },
		"a state of 4 GiB":      func(a *ComposeJob) { a.Heads, a.DK, a.DV = 1<<15, 1<<10, 1<<10 },
		"unknown transition":    func(a *ComposeJob) { a.Transition = 9 },
		"T without S":           func(a *ComposeJob) { a.Steps[0].S = 0 },
		"unknown type":          func(a *ComposeJob) { a.Steps[0].SType = 7 },
		"F32 at an odd address": func(a *ComposeJob) { a.Steps[0].S++ },
		"out at an odd address": func(a *ComposeJob) { a.Out += 2 },
		"fp16 factors per head": func(a *ComposeJob) { a.Transition = kernel.Scalar },
		"a turn of dense":       func(a *ComposeJob) { a.Steps[0].Rotation = &gpuipc.Rotation{} },
		"a turn without angles": func(a *ComposeJob) {
			a.Transition, a.Steps[0].TType = kernel.Scalar, kernel.F32
			a.Steps[0].Rotation = &gpuipc.Rotation{Dims: 4}
		},
		"too many key dimensions": func(a *ComposeJob) { a.DK = 1 << 15 },
	} {
		a := good()
		spoil(&a)
		if _, err := Compose([]ComposeJob{good(), a}); !errors.Is(err, gpuipc.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
