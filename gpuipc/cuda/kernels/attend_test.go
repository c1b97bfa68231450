package kernels

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// attendCase is one job and its memory.
type attendCase struct {
	AttendJob
	q, out numbers
	pools  []attendPool // of each run
}

// attendPool is a run's memory, and where in it the base is.
type attendPool struct{ k, v numbers }

func (c *attendCase) String() string {
	a := &c.AttendJob
	s := fmt.Sprintf("%d rows of %d heads [%d, %d], %d of keys, types %d and %d, %s", a.Rows, a.Heads, a.KeyDim, a.ValueDim, a.KeyHeads, a.Type, a.QType, a.entry())
	for _, r := range a.Runs {
		s += fmt.Sprintf("; %d rows at %d, blocks of %d, turn %v", r.Rows, r.Begin, r.BlockRows, r.Turn != nil)
	}
	return s
}

func newAttendCase(tb testing.TB, r *rand.Rand, a AttendJob, odd bool) *attendCase {
	c := &attendCase{AttendJob: a}
	off := 0
	if odd {
		off = 1 + r.IntN(7)
	}
	normal := func() float64 { return r.NormFloat64() }
	c.Scale = float32(1 / math.Sqrt(float64(a.KeyDim)))
	c.q, c.Q = newNumbers(tb, a.QType, a.Rows*a.Heads*a.KeyDim, off, normal)
	c.out, c.Out = newNumbers(tb, a.QType, a.Rows*a.Heads*a.ValueDim, off, normal)
	c.Runs = slices.Clone(a.Runs)
	for i := range c.Runs {
		run := &c.Runs[i]
		tokens := run.Rows
		if run.BlockRows > 0 { // blocks in any order, some of them of others
			n := (run.FirstRow+run.Rows-1)/run.BlockRows + 1
			for _, b := range r.Perm(n + 2)[:n] {
				run.Blocks = append(run.Blocks, uint32(b))
			}
			tokens = (n + 2) * run.BlockRows
		}
		var p attendPool
		p.k, run.Keys = somePool(tb, r, a.Type, a.KeyHeads, a.KeyDim, tokens, run.BlockRows, off, normal)
		p.v, run.Values = somePool(tb, r, a.Type, a.KeyHeads, a.ValueDim, tokens, run.BlockRows, off, normal)
		c.pools = append(c.pools, p)
	}
	return c
}

// somePool has heads inside a token, or tokens inside a head.
func somePool(tb testing.TB, r *rand.Rand, t gpuipc.DType, heads, dim, tokens, block, off int, value func() float64) (numbers, AttendRows) {
	b, base := newNumbers(tb, t, tokens*heads*dim, off, value)
	size := int64(t.Size())
	x := AttendRows{Base: base, RowStride: int64(heads*dim) * size, HeadStride: int64(dim) * size}
	in := tokens
	if block > 0 {
		in = block
		x.BlockStride = int64(block*heads*dim) * size
	}
	if r.IntN(2) == 0 {
		x.RowStride, x.HeadStride = int64(dim)*size, int64(in*dim)*size
	}
	return b, x
}

// number is one of a row of a run, as the strides say.
func (x *AttendRows) number(b numbers, run *AttendRun, row, head, i int) float64 {
	off := int64(row) * x.RowStride
	if run.BlockRows > 0 {
		t := run.FirstRow + row
		off = int64(run.Blocks[t/run.BlockRows])*x.BlockStride + int64(t%run.BlockRows)*x.RowStride
	}
	off += int64(head) * x.HeadStride
	return b.at(int(off)/b.typ.Size() + i)
}

// turned is a query behind a run's turn.
func (c *attendCase) turned(row, head int, t *gpuipc.Rotation) []float64 {
	q := make([]float64, c.KeyDim)
	for i := range q {
		q[i] = c.q.at((row*c.Heads+head)*c.KeyDim + i)
	}
	if t == nil {
		return q
	}
	for i := range t.Dims / 2 {
		a, b := i, i+t.Dims/2
		if t.Interleaved {
			a, b = 2*i, 2*i+1
		}
		cos, sin := float64(t.Cos[i]), float64(t.Sin[i])
		q[a], q[b] = q[a]*cos+q[b]*sin, q[b]*cos-q[a]*sin
	}
	return q
}

// solve is softmax(q k^T) v in float64.
func (c *attendCase) solve() []float64 {
	var out []float64
	for row := range c.Rows {
		for head := range c.Heads {
			out = append(out, c.attended(row, head)...)
		}
	}
	return out
}

func (c *attendCase) attended(row, head int) []float64 {
	key := head / (c.Heads / c.KeyHeads)
	out, weight := make([]float64, c.ValueDim), 0.0
	for i := range c.Runs {
		run := &c.Runs[i]
		q := c.turned(row, head, run.Turn)
		for n := range max(0, min(run.Rows, c.Begin+row+1-run.Begin)) {
			s := 0.0
			for d, x := range q {
				s += x * run.Keys.number(c.pools[i].k, run, n, key, d)
			}
			w := math.Exp(s * float64(c.Scale))
			weight += w
			for d := range out {
				out[d] += w * run.Values.number(c.pools[i].v, run, n, key, d)
			}
		}
	}
	for d := range out {
		if weight > 0 {
			out[d] /= weight
		}
	}
	return out
}

func runAttends(tb testing.TB, e *emulation, cases ...*attendCase) {
	tb.Helper()
	var jobs []AttendJob
	for _, c := range cases {
		jobs = append(jobs, c.AttendJob)
	}
	n, err := AttendScratch(jobs)
	must(tb, err)
	launches, err := Attend(jobs, address(memory(tb, int(n), 0)))
	e.runAll(tb, launches, err)
	for _, c := range cases {
		limit := 1e-5
		switch c.QType {
		case kernel.F16:
			limit = 1e-3
		case kernel.BF16:
			limit = 8e-3
		}
		closeTo(tb, c, "attention", c.out, c.solve(), limit)
	}
}

func someTurn(r *rand.Rand, dims int) *gpuipc.Rotation {
	t := &gpuipc.Rotation{Dims: dims / 2 * 2, Interleaved: r.IntN(2) == 0}
	for range t.Dims / 2 {
		s, c := math.Sincos(r.Float64() * 100)
		t.Cos, t.Sin = append(t.Cos, float32(c)), append(t.Sin, float32(s))
	}
	return t
}

// someAttend is runs as a request has them: of others and turned, and at last its own.
func someAttend(r *rand.Rand, dk, dv, rows int) AttendJob {
	types := []gpuipc.DType{kernel.F32, kernel.F16, kernel.BF16}
	a := AttendJob{Rows: rows, KeyHeads: 1 + r.IntN(2), KeyDim: dk, ValueDim: dv, Type: types[r.IntN(3)], QType: types[r.IntN(3)]}
	a.Heads = a.KeyHeads * (1 + r.IntN(5))
	for range r.IntN(4) {
		n := 1 + r.IntN(150)
		run := AttendRun{Rows: n, Begin: a.Begin}
		if r.IntN(3) > 0 {
			run.Turn = someTurn(r, r.IntN(dk+1))
		}
		if r.IntN(3) > 0 {
			run.BlockRows, run.FirstRow = 1+r.IntN(20), r.IntN(40)
		}
		a.Runs = append(a.Runs, run)
		a.Begin += n
	}
	before := r.IntN(70)
	a.Runs = append(a.Runs, AttendRun{Rows: before + rows + r.IntN(5), Begin: a.Begin, BlockRows: 16})
	a.Begin += before
	if rows > 3 { // one that only the last rows see
		a.Runs = append(a.Runs, AttendRun{Rows: 5, Begin: a.Begin + rows - 2})
	}
	return a
}

func TestAttentionOverRunsWhereTheyLie(t *testing.T) {
	e, r := emulated(t), seeded(t)
	for _, size := range [][2]int{{8, 8}, {64, 128}, {128, 64}, {16, 24}, {1, 1}, {7, 30}, {80, 40}, {256, 256}} {
		var cases []*attendCase
		for _, rows := range []int{1, 1, 2, 8, 13} {
			cases = append(cases, newAttendCase(t, r, someAttend(r, size[0], size[1], rows), r.IntN(3) == 0))
		}
		runAttends(t, e, cases...)
	}
}

// A run that is longer than an item is cut, and its items put together again.
func TestAttentionOverALongRun(t *testing.T) {
	e, r := emulated(t), seeded(t)
	a := AttendJob{Rows: 3, KeyHeads: 1, Heads: 4, KeyDim: 16, ValueDim: 16, Type: kernel.BF16, QType: kernel.F32,
		Begin: 2197,
		Runs:  []AttendRun{{Rows: 1500, Turn: someTurn(r, 8)}, {Rows: 700, Begin: 1500, BlockRows: 16, FirstRow: 5}}}
	runAttends(t, e, newAttendCase(t, r, a, false))
}

// One copy of keys and values serves two requests at different places: what they get is what
// copies turned to these places give.
func TestOneCopyServesRequestsAtTwoPlaces(t *testing.T) {
	e, r := emulated(t), seeded(t)
	const rows, dim = 70, 32
	freq := []float64{1, 0.3, 0.05, 0.001}
	at := func(position int) *gpuipc.Rotation {
		t := &gpuipc.Rotation{Dims: 2 * len(freq)}
		for _, f := range freq {
			s, c := math.Sincos(float64(position) * f)
			t.Cos, t.Sin = append(t.Cos, float32(c)), append(t.Sin, float32(s))
		}
		return t
	}
	a := AttendJob{Rows: 1, KeyHeads: 1, Heads: 2, KeyDim: dim, ValueDim: dim, Type: kernel.F32, QType: kernel.F32, Begin: rows, Runs: []AttendRun{{Rows: rows}}}
	shared := newAttendCase(t, r, a, false)
	for _, start := range []int{0, 13, 4000} {
		one, two := *shared, newAttendCase(t, r, a, false)
		one.Runs = []AttendRun{shared.Runs[0]}
		one.Runs[0].Turn = at(start)
		copy(two.q.b, one.q.b)
		copy(two.pools[0].v.b, one.pools[0].v.b)
		launches, err := Rotate([]RotateJob{{Rows: rows, Heads: 1, Dim: dim, Type: kernel.F32, Src: one.Runs[0].Keys.Base, Turn: at(start), Dst: RotateTarget{Base: two.Runs[0].Keys.Base}}})
		e.runAll(t, launches, err)
		jobs := []AttendJob{one.AttendJob, two.AttendJob}
		n, err := AttendScratch(jobs)
		must(t, err)
		got := numbers{memory(t, 4*2*dim, 0), kernel.F32}
		jobs[0].Out = address(got.b)
		launches, err = Attend(jobs, address(memory(t, int(n), 0)))
		e.runAll(t, launches, err)
		closeTo(t, two, fmt.Sprintf("at %d", start), got, float64s(f32s(two.out.b)), 2e-5)
	}
}

func TestAttentionToNothingIsZero(t *testing.T) {
	e, r := emulated(t), seeded(t)
	a := AttendJob{Rows: 2, KeyHeads: 1, Heads: 1, KeyDim: 8, ValueDim: 8, Type: kernel.F16, QType: kernel.F32}
	b := a
	b.Runs = []AttendRun{{Rows: 3, Begin: 1}} // the first row sees nothing, the second one row
	runAttends(t, e, newAttendCase(t, r, a, false), newAttendCase(t, r, b, false))
}

func goodAttend() AttendJob {
	rows := AttendRows{Base: 0x10000, BlockStride: 4096, RowStride: 256, HeadStride: 128}
	return AttendJob{Rows: 2, Heads: 4, KeyHeads: 2, KeyDim: 64, ValueDim: 64, Type: kernel.BF16, QType: kernel.BF16, Scale: 0.125, Q: 0x1000, Out: 0x2000,
		Begin: 20,
		Runs:  []AttendRun{{Rows: 20, Keys: rows, Values: rows, Blocks: []uint32{3, 1}, BlockRows: 16, FirstRow: 4}}}
}

func TestAttentionRefusesWhatCannotRun(t *testing.T) {
	good := goodAttend()
	if l, err := Attend([]AttendJob{good}, 0x100000); err != nil || len(l) != 2 {
		t.Fatal(l, err)
	}
	for name, spoil := range map[string]func(a *AttendJob, r *AttendRun){
		"no heads":      func(a *AttendJob, r *AttendRun) { a.Heads = 0 },
		"uneven heads":  func(a *AttendJob, r *AttendRun) { a.Heads = 3 },
		"negative rows": func(a *AttendJob, r *AttendRun) { a.Rows = -1 },
		"many rows":     func(a *AttendJob, r *AttendRun) { a.Rows = 1 << 20 },
		"wide values":   func(a *AttendJob, r *AttendRun) { a.ValueDim = 1032 },
		"wide keys":     func(a *AttendJob, r *AttendRun) { a.KeyDim = 4096 },
		"no type":       func(a *AttendJob, r *AttendRun) { a.Type = 0 },
		"no query type": func(a *AttendJob, r *AttendRun) { a.QType = 0 },
		"no queries":    func(a *AttendJob, r *AttendRun) { a.Q = 0 },
		"odd output":    func(a *AttendJob, r *AttendRun) { a.Out = 0x2001 },
		"no scale":      func(a *AttendJob, r *AttendRun) { a.Scale = float32(math.NaN()) },
		"before all":    func(a *AttendJob, r *AttendRun) { r.Begin = -1 },
		"short table":   func(a *AttendJob, r *AttendRun) { r.Rows = 29 },
		"no table":      func(a *AttendJob, r *AttendRun) { r.BlockRows = 0 },
		"no keys":       func(a *AttendJob, r *AttendRun) { r.Keys.Base = 0 },
		"odd stride":    func(a *AttendJob, r *AttendRun) { r.Values.RowStride = 255 },
		"far keys":      func(a *AttendJob, r *AttendRun) { r.Keys.BlockStride = math.MaxInt64 / 2 &^ 1 },
		"half a turn": func(a *AttendJob, r *AttendRun) {
			r.Turn = &gpuipc.Rotation{Dims: 4, Cos: []float32{1}, Sin: []float32{1, 2}}
		},
		"wide turn": func(a *AttendJob, r *AttendRun) {
			r.Turn = &gpuipc.Rotation{Dims: 66, Cos: make([]float32, 33), Sin: make([]float32, 33)}
		},
	} {
		a := goodAttend()
		spoil(&a, &a.Runs[0])
		if _, err := Attend([]AttendJob{good, a}, 0x100000); !errors.Is(err, gpuipc.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Attend([]AttendJob{good}, 0); !errors.Is(err, gpuipc.ErrInvalid) {
		t.Error("without scratch memory:", err)
	}
	if l, err := Attend(nil, 0); err != nil || len(l) != 0 {
		t.Error("jobs out of nothing", l, err)
	}
}
