package kernels

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// numbers is a tensor of any type in device memory.
type numbers struct {
	b   []byte
	typ gpuipc.DType
}

func newNumbers(tb testing.TB, typ gpuipc.DType, n, odd int, value func() float64) (numbers, uint64) {
	x := numbers{memory(tb, n*typ.Size(), odd*typ.Size()), typ}
	for i := range n {
		x.put(i, value())
	}
	return x, address(x.b)
}

func (x numbers) at(i int) float64 {
	var f [1]float32
	kernel.ToF32(f[:], x.b[i*x.typ.Size():][:x.typ.Size()], x.typ)
	return float64(f[0])
}

func (x numbers) put(i int, v float64) {
	kernel.FromF32(x.b[i*x.typ.Size():][:x.typ.Size()], []float32{float32(v)}, x.typ)
}

// rounded is what the type keeps of v.
func rounded(v float64, typ gpuipc.DType) float64 {
	x := numbers{make([]byte, 4), typ}
	x.put(0, v)
	return x.at(0)
}

// tolerance is of a result with numbers of a type in it, relative to the largest.
func tolerance(types ...gpuipc.DType) float64 {
	worst := 1e-5
	for _, t := range types {
		switch t {
		case kernel.F16:
			worst = max(worst, 2e-3)
		case kernel.BF16:
			worst = max(worst, 1.6e-2)
		}
	}
	return worst
}

// bufferCase is one job, its memory and what has to be in it.
type bufferCase struct {
	BufferJob
	from, out, k, u, g                 numbers
	q, newK, v, newG, beta, e, outputs numbers
}

func (c *bufferCase) String() string {
	a := &c.BufferJob
	return fmt.Sprintf("%d heads of [%d, %d], %d of keys, types %d and %d, per key %v, delta %v, %d and %d rows, from %v, flush %v, E %v, parents %v",
		a.Heads, a.DK, a.DV, a.KeyHeads, a.Type, a.New.Type, a.PerKey, a.Delta, a.Pending, a.New.N, a.From != 0, a.Out != 0, a.New.E != 0, a.Parents)
}

func newBufferCase(tb testing.TB, r *rand.Rand, a BufferJob, from, flush, odd bool) *bufferCase {
	c := &bufferCase{BufferJob: a}
	off := 0
	if odd {
		off = 1 + r.IntN(3)
	}
	normal := func(scale float64) func() float64 { return func() float64 { return scale * r.NormFloat64() } }
	unit := normal(1 / math.Sqrt(float64(a.DK)))
	decay := func() float64 { return 0.8 + 0.2*r.Float64() }
	in, decays := &c.New, a.Heads*a.decays()
	c.k, c.K = newNumbers(tb, a.Type, a.Capacity*a.KeyHeads*a.DK, off, unit)
	c.u, c.U = newNumbers(tb, a.Type, a.Capacity*a.Heads*a.DV, off, normal(1))
	c.g, c.G = newNumbers(tb, kernel.F32, a.Capacity*decays, off, decay)
	c.q, in.Q = newNumbers(tb, in.Type, in.N*a.KeyHeads*a.DK, off, unit)
	c.newK, in.K = newNumbers(tb, in.Type, in.N*a.KeyHeads*a.DK, off, unit)
	c.v, in.V = newNumbers(tb, in.Type, in.N*a.Heads*a.DV, off, normal(1))
	c.newG, in.G = newNumbers(tb, kernel.F32, in.N*decays, off, decay)
	c.beta, in.Beta = newNumbers(tb, kernel.F32, in.N*a.Heads, off, r.Float64)
	if in.E != 0 {
		c.e, in.E = newNumbers(tb, in.Type, in.N*a.Heads*a.DK, off, unit)
	}
	c.outputs, in.Outputs = newNumbers(tb, in.Type, in.N*a.Heads*a.DV, off, normal(1))
	if from {
		c.from, c.From = newNumbers(tb, kernel.F32, a.Heads*a.DK*a.DV, off, normal(1))
	}
	switch {
	case flush && from && r.IntN(2) == 0:
		c.out, c.Out = c.from, c.From
	case flush:
		c.out, c.Out = newNumbers(tb, kernel.F32, a.Heads*a.DK*a.DV, off, normal(1))
	}
	return c
}

// wanted is a case's result in float64.
type wanted struct{ outputs, u, k, state []float64 }

// solve goes from the states over each new row's ancestors, one by one (KVBuffer Eq. 11 and 12).
func (c *bufferCase) solve() *wanted {
	a := &c.BufferJob
	w := &wanted{u: make([]float64, c.rows()*a.Heads*a.DV), k: make([]float64, c.rows()*a.KeyHeads*a.DK)}
	for i := range w.k {
		if old := a.Pending * a.KeyHeads * a.DK; i >= old {
			w.k[i] = rounded(c.newK.at(i-old), a.Type)
		} else {
			w.k[i] = c.k.at(i)
		}
	}
	for i := range a.Pending * a.Heads * a.DV {
		w.u[i] = c.u.at(i)
	}
	for i := range a.New.N {
		for h := range a.Heads {
			w.outputs = append(w.outputs, c.newRow(w, i, h)...)
		}
	}
	for h := range a.Heads {
		w.state = append(w.state, c.reach(w, h, c.lineage(c.rows()))...)
	}
	return w
}

// lineage is the last of some rows and its ancestors.
func (c *bufferCase) lineage(rows int) []int {
	if rows == 0 {
		return nil
	}
	return append(c.path(rows-1), rows-1)
}

// path is the ancestors of a row, oldest first.
func (c *bufferCase) path(row int) []int {
	if row == 0 {
		return nil
	}
	p := row - 1
	if c.Parents != nil {
		p = int(c.Parents[row])
	}
	if p < 0 {
		return nil
	}
	return append(c.path(p), p)
}

func (c *bufferCase) decay(row, h, d int) float64 {
	i := h
	if c.PerKey {
		i = h*c.DK + d
	}
	if row < c.Pending {
		return c.g.at(row*c.Heads*c.decays() + i)
	}
	return c.newG.at((row-c.Pending)*c.Heads*c.decays() + i)
}

// reach is a head's state behind some rows.
func (c *bufferCase) reach(w *wanted, h int, path []int) []float64 {
	s := make([]float64, c.DK*c.DV)
	for i := range s {
		if c.From != 0 {
			s[i] = c.from.at(h*len(s) + i)
		}
	}
	key := h / (c.Heads / c.KeyHeads)
	for _, row := range path {
		for d := range c.DK {
			for j := range c.DV {
				s[d*c.DV+j] = c.decay(row, h, d)*s[d*c.DV+j] + w.k[(row*c.KeyHeads+key)*c.DK+d]*w.u[(row*c.Heads+h)*c.DV+j]
			}
		}
	}
	return s
}

// newRow is an output; the row's delta value goes to w, as the buffer keeps it.
func (c *bufferCase) newRow(w *wanted, i, h int) []float64 {
	row, key := c.Pending+i, h/(c.Heads/c.KeyHeads)
	s, out := c.reach(w, h, c.path(row)), make([]float64, c.DV)
	for j := range c.DV {
		taken, qk := 0.0, 0.0
		for d := range c.DK {
			at := (i*c.KeyHeads+key)*c.DK + d
			q, k := c.q.at(at), c.newK.at(at)
			e := k
			if c.New.E != 0 {
				e = c.e.at((i*c.Heads+h)*c.DK + d)
			}
			v := c.decay(row, h, d) * s[d*c.DV+j]
			taken, out[j], qk = taken+e*v, out[j]+q*v, qk+q*k
		}
		if !c.Delta {
			taken = 0
		}
		u := c.beta.at(i*c.Heads+h) * (c.v.at((i*c.Heads+h)*c.DV+j) - taken)
		out[j] += qk * u
		w.u[(row*c.Heads+h)*c.DV+j] = rounded(u, c.Type)
	}
	return out
}

// closeTo compares relative to the largest number, or to a tenth where a few of them cancel.
func closeTo(tb testing.TB, c fmt.Stringer, what string, got numbers, want []float64, tolerance float64) {
	tb.Helper()
	largest := 0.1
	for _, v := range want {
		largest = max(largest, math.Abs(v))
	}
	for i, v := range want {
		if g := got.at(i); !(math.Abs(g-v) <= tolerance*largest) {
			tb.Fatalf("%v: %s, number %d is %v, want %v to %g of %v", c, what, i, g, v, tolerance, largest)
		}
	}
}

func runBuffers(tb testing.TB, e *emulation, cases ...*bufferCase) {
	tb.Helper()
	var jobs []BufferJob
	var want []*wanted
	for _, c := range cases {
		jobs = append(jobs, c.BufferJob)
		want = append(want, c.solve())
	}
	launches, err := Buffer(jobs)
	e.runAll(tb, launches, err)
	for i, c := range cases {
		w, limit := want[i], tolerance(c.Type)
		closeTo(tb, c, "outputs", c.outputs, w.outputs, max(limit, tolerance(c.New.Type)))
		if c.Out != 0 {
			closeTo(tb, c, "states", c.out, w.state, limit)
			continue
		}
		closeTo(tb, c, "delta values", c.u, w.u, limit)
		closeTo(tb, c, "keys", c.k, w.k, 0)
		for row := c.Pending; row < c.rows(); row++ {
			n := 4 * c.Heads * c.decays()
			if string(c.g.b[row*n:][:n]) != string(c.newG.b[(row-c.Pending)*n:][:n]) {
				tb.Fatalf("%v: decays of row %d", c, row)
			}
		}
	}
}

// someBuffer is a random shape with as many rows.
func someBuffer(r *rand.Rand, dk, dv, pending, rows int) BufferJob {
	types := []gpuipc.DType{kernel.F32, kernel.F16, kernel.BF16}
	a := BufferJob{KeyHeads: 1 + r.IntN(2), DK: dk, DV: dv, Type: types[r.IntN(3)], PerKey: r.IntN(2) == 0, Delta: r.IntN(3) > 0,
		Pending: pending, Capacity: pending + rows + r.IntN(3)}
	a.Heads = a.KeyHeads * (1 + r.IntN(2))
	a.New.N, a.New.Type = rows, types[r.IntN(3)]
	if r.IntN(4) == 0 {
		a.New.E = 1
	}
	return a
}

func TestBufferDecodesAndFlushes(t *testing.T) {
	e, r := emulated(t), seeded(t)
	for _, size := range [][2]int{{1, 1}, {4, 32}, {5, 3}, {16, 36}, {33, 64}, {64, 8}, {30, 70}, {72, 40}} {
		for _, pending := range []int{0, 1, 5, 16, 17, 40} {
			var cases []*bufferCase
			for i := range 8 {
				rows := []int{0, 1, 2, 4, 5, 8, 1, 11}[i]
				a := someBuffer(r, size[0], size[1], pending, rows)
				cases = append(cases, newBufferCase(t, r, a, r.IntN(3) > 0, rows == 0 || r.IntN(2) == 0, r.IntN(2) == 0))
			}
			runBuffers(t, e, cases...)
		}
	}
}

func TestBufferOfALargeState(t *testing.T) {
	e, r := emulated(t), seeded(t)
	for _, rows := range []int{1, 5} {
		a := BufferJob{KeyHeads: 1, Heads: 2, DK: 256, DV: 128, Type: kernel.BF16, Delta: true, Pending: 15, Capacity: 32, New: BufferRows{N: rows, Type: kernel.BF16}}
		runBuffers(t, e, newBufferCase(t, r, a, true, rows == 1, false))
	}
}

func TestBufferOfATree(t *testing.T) {
	e, r := emulated(t), seeded(t)
	for range 25 {
		pending, rows := r.IntN(20), 1+r.IntN(12)
		a := someBuffer(r, 1+r.IntN(40), 1+r.IntN(40), pending, rows)
		for i := range pending + rows {
			p := int32(i) - 1
			if i > pending/2 && r.IntN(2) == 0 { // drafts branch, and beams before them
				p = int32(r.IntN(i+1)) - 1
			}
			a.Parents = append(a.Parents, p)
		}
		runBuffers(t, e, newBufferCase(t, r, a, r.IntN(3) > 0, r.IntN(3) == 0, r.IntN(2) == 0))
	}
}

func float64s(v []float32) []float64 {
	out := make([]float64, len(v))
	for i, x := range v {
		out[i] = float64(x)
	}
	return out
}

// What a block has of shared memory is summed up in two languages.
func TestBufferSharedMemoryIsAllUsed(t *testing.T) {
	e, r := emulated(t), seeded(t)
	a := BufferJob{KeyHeads: 1, Heads: 1, DK: 12, DV: 8, Type: kernel.F32, Delta: true, Pending: 3, Capacity: 16, New: BufferRows{N: 4, Type: kernel.F32}}
	c := newBufferCase(t, r, a, true, false, false)
	launches, err := Buffer([]BufferJob{c.BufferJob})
	if err != nil || len(launches) != 1 {
		t.Fatal(launches, err)
	}
	l := launches[0]
	l.Shared -= 4
	args := append([]byte(nil), l.Args...)
	tables := memory(t, len(l.Tables), 0)
	copy(tables, l.Tables)
	binary.LittleEndian.PutUint64(args, address(tables))
	if e.launch(l.Name, &l.Grid, &l.Block, l.Shared, &args[0], uint64(len(args))) == 0 {
		t.Error("a kernel ran with less shared memory than it has a layout for")
	}
}

func goodBuffer() BufferJob {
	return BufferJob{Heads: 4, KeyHeads: 2, DK: 8, DV: 8, Type: kernel.BF16, Delta: true, Capacity: 8, Pending: 3, K: 0x1000, U: 0x2000, G: 0x3000, From: 0x4000,
		New: BufferRows{N: 2, Type: kernel.F32, Q: 0x5000, K: 0x6000, V: 0x7000, G: 0x8000, Beta: 0x9000, Outputs: 0xa000}}
}

func TestBufferRefusesWhatCannotRun(t *testing.T) {
	good := goodBuffer()
	if _, err := Buffer([]BufferJob{good}); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(a *BufferJob){
		"no heads":       func(a *BufferJob) { a.Heads = 0 },
		"uneven heads":   func(a *BufferJob) { a.KeyHeads = 3 },
		"no keys":        func(a *BufferJob) { a.DK = 0 },
		"large keys":     func(a *BufferJob) { a.DK = 4096 },
		"no type":        func(a *BufferJob) { a.Type = 0 },
		"full":           func(a *BufferJob) { a.Pending = 7 },
		"negative":       func(a *BufferJob) { a.Pending = -1 },
		"many":           func(a *BufferJob) { a.New.N = math.MaxInt },
		"no decays":      func(a *BufferJob) { a.G = 0 },
		"odd rows":       func(a *BufferJob) { a.K++ },
		"odd states":     func(a *BufferJob) { a.From = 2 },
		"odd input":      func(a *BufferJob) { a.New.V += 2 },
		"no outputs":     func(a *BufferJob) { a.New.Outputs = 0 },
		"no input type":  func(a *BufferJob) { a.New.Type = 9 },
		"few parents":    func(a *BufferJob) { a.Parents = []int32{-1} },
		"its own parent": func(a *BufferJob) { a.Parents = []int32{-1, 0, 1, 3, 2} },
	} {
		a := good
		spoil(&a)
		if _, err := Buffer([]BufferJob{good, a}); !errors.Is(err, gpuipc.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if l, err := Buffer(nil); err != nil || len(l) != 0 {
		t.Error("jobs out of nothing", l, err)
	}
}
