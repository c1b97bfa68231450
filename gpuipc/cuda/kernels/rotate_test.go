package kernels

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// rotateCase is one job, and the same with the host's memory.
type rotateCase struct {
	RotateJob
	src, got, want []byte
}

func (c *rotateCase) String() string {
	turn := "copied"
	switch {
	case c.Turn != nil:
		turn = fmt.Sprintf("%d turned alike, interleaved %v", c.Turn.Dims, c.Turn.Interleaved)
	case c.PerRow != nil:
		turn = fmt.Sprintf("%d turned by position %d on, interleaved %v", c.PerRow.Dims, c.PerRow.Position, c.PerRow.Interleaved)
	}
	d := &c.Dst
	return fmt.Sprintf("%d rows of [%d, %d] type %d, %s, from %d to %d behind 16, %d tokens a block, first %d of %v, strides %d, %d, %d",
		c.Rows, c.Heads, c.Dim, c.Type, turn, c.Src%16, d.Base%16, d.BlockRows, d.FirstRow, d.Blocks, d.BlockStride, d.RowStride, d.HeadStride)
}

// elements fills b with numbers of every kind, NaN, infinities and subnormals among them.
func elements(r *rand.Rand, b []byte, t gpuipc.DType) {
	values := make([]float32, len(b)/t.Size())
	for i := range values {
		values[i] = float32(r.NormFloat64())
	}
	kernel.FromF32(b, values, t)
	for range (len(values) + 39) / 40 {
		randomBytes(r, b[r.IntN(len(values))*t.Size():][:t.Size()])
	}
}

type rotateShape struct {
	rows, heads, dim, dims int
	t                      gpuipc.DType
	interleaved, perRow    bool
	srcOff, dstOff         int
}

// newRotateCase lays the job out, densely or into blocks whose strides nest in any order.
func newRotateCase(tb testing.TB, r *rand.Rand, s rotateShape, order int) *rotateCase {
	size := s.t.Size()
	c := &rotateCase{RotateJob: RotateJob{Rows: s.rows, Heads: s.heads, Dim: s.dim, Type: s.t}}
	c.src = memory(tb, s.rows*s.heads*s.dim*size, s.srcOff*size)
	elements(r, c.src, s.t)
	if s.dims > 0 && s.perRow {
		c.PerRow = &gpuipc.RowRotation{Dims: s.dims, Interleaved: s.interleaved, Position: r.IntN(1 << 20), InvFreq: make([]float64, s.dims/2)}
		for i := range c.PerRow.InvFreq {
			c.PerRow.InvFreq[i] = math.Pow(1e6, -2*float64(i)/float64(s.dims))
		}
	} else if s.dims > 0 {
		c.Turn = &gpuipc.Rotation{Dims: s.dims, Interleaved: s.interleaved}
		for range s.dims / 2 {
			sin, cos := math.Sincos(r.Float64() * 1000)
			c.Turn.Cos, c.Turn.Sin = append(c.Turn.Cos, float32(cos)), append(c.Turn.Sin, float32(sin))
		}
	}
	n := len(c.src)
	if order >= 0 {
		n = c.blocks(r, order)
	}
	c.got = memory(tb, n, s.dstOff*size)
	randomBytes(r, c.got)
	c.want = bytes.Clone(c.got)
	c.Src, c.Dst.Base = address(c.src), address(c.got)
	return c
}

// blocks makes a block table of a few spare blocks, and tells the size of its memory.
func (c *rotateCase) blocks(r *rand.Rand, order int) int {
	d, size := &c.Dst, int64(c.Type.Size())
	d.BlockRows = 1 + r.IntN(20)
	d.FirstRow = r.IntN(3 * d.BlockRows)
	count := (d.FirstRow+c.Rows-1)/d.BlockRows + 1 + r.IntN(2)
	all := int64(count + r.IntN(4))
	for _, b := range r.Perm(int(all))[:count] {
		d.Blocks = append(d.Blocks, uint32(b))
	}
	pad := func(n int64) int64 { return n + size*int64(r.IntN(2)*r.IntN(12)) }
	head, tokens, heads := int64(c.Dim)*size, int64(d.BlockRows), int64(c.Heads)
	switch order {
	case 0: // [block, token, head]
		d.HeadStride = pad(head)
		d.RowStride = pad(heads * d.HeadStride)
		d.BlockStride = pad(tokens * d.RowStride)
		return int(all * d.BlockStride)
	case 1: // [block, head, token]
		d.RowStride = pad(head)
		d.HeadStride = pad(tokens * d.RowStride)
		d.BlockStride = pad(heads * d.HeadStride)
		return int(all * d.BlockStride)
	default: // [head, block, token]
		d.RowStride = pad(head)
		d.BlockStride = pad(tokens * d.RowStride)
		d.HeadStride = pad(all * d.BlockStride)
		return int(heads * d.HeadStride)
	}
}

// offset is where row r, head h goes.
func (c *rotateCase) offset(r, h int) int {
	d := &c.Dst
	if d.BlockRows == 0 {
		return (r*c.Heads + h) * c.Dim * c.Type.Size()
	}
	t := d.FirstRow + r
	return int(int64(d.Blocks[t/d.BlockRows])*d.BlockStride + int64(t%d.BlockRows)*d.RowStride + int64(h)*d.HeadStride)
}

// onHost does the job head by head with the host's kernel.
func (c *rotateCase) onHost() {
	head := c.Dim * c.Type.Size()
	for r := range c.Rows {
		var turn kernel.Turn
		if t := c.Turn; t != nil {
			turn = kernel.Turn{Dims: t.Dims, Interleaved: t.Interleaved, Cos: t.Cos, Sin: t.Sin}
		} else if p := c.PerRow; p != nil {
			turn = kernel.Turn{Dims: p.Dims, Interleaved: p.Interleaved}
			for _, f := range p.InvFreq {
				sin, cos := math.Sincos(float64(p.Position+r) * f)
				turn.Cos, turn.Sin = append(turn.Cos, float32(cos)), append(turn.Sin, float32(sin))
			}
		}
		for h := range c.Heads {
			kernel.RotateRows(c.want[c.offset(r, h):][:head], head, head, c.src[(r*c.Heads+h)*head:][:head], c.Type, 1, 1, c.Dim, turn)
		}
	}
}

// verify holds the whole destination to the host's, byte by byte, but a NaN that turned to any
// NaN.
func (c *rotateCase) verify(tb testing.TB) {
	tb.Helper()
	c.onHost()
	dims := 0
	if c.Turn != nil {
		dims = c.Turn.Dims
	} else if c.PerRow != nil {
		dims = c.PerRow.Dims
	}
	size := c.Type.Size()
	for r := range c.Rows {
		for h := range c.Heads {
			at := c.offset(r, h)
			for d := range dims {
				g, w := c.got[at+d*size:][:size], c.want[at+d*size:][:size]
				if isNaN(g, c.Type) && isNaN(w, c.Type) {
					copy(g, w)
				}
			}
		}
	}
	for i := range c.got {
		if c.got[i] != c.want[i] {
			tb.Fatalf("%v: byte %d is %#x, want %#x", c, i, c.got[i], c.want[i])
		}
	}
}

func isNaN(b []byte, t gpuipc.DType) bool {
	v := make([]float32, 1)
	kernel.ToF32(v, b, t)
	return v[0] != v[0]
}

func runRotations(tb testing.TB, e *emulation, cases ...*rotateCase) {
	tb.Helper()
	var jobs []RotateJob
	for _, c := range cases {
		jobs = append(jobs, c.RotateJob)
	}
	launches, err := Rotate(jobs)
	if len(launches) > 1 {
		tb.Fatalf("%d launches", len(launches))
	}
	e.runAll(tb, launches, err)
	for _, c := range cases {
		c.verify(tb)
	}
}

// Shapes of models: dimensions of a head, and how many of them turn.
var rotateDims = [][2]int{{128, 128}, {256, 64}, {64, 64}, {1, 0}, {2, 2}, {7, 6}, {40, 30}, {96, 34}, {80, 80}, {576, 64}, {33, 0}, {128, 0}, {192, 96}}

func TestRotateHasTheBitsOfTheHost(t *testing.T) {
	e, r := emulated(t), seeded(t)
	for _, dt := range []gpuipc.DType{kernel.F32, kernel.F16, kernel.BF16} {
		for _, d := range rotateDims {
			for _, interleaved := range []bool{false, true} {
				for _, perRow := range []bool{false, true} {
					var cases []*rotateCase
					for _, off := range [][2]int{{0, 0}, {1, 0}, {0, 1}, {2, 4}} {
						s := rotateShape{rows: 1 + r.IntN(40), heads: 1 + r.IntN(5), dim: d[0], dims: d[1], t: dt,
							interleaved: interleaved, perRow: perRow, srcOff: off[0], dstOff: off[1]}
						cases = append(cases, newRotateCase(t, r, s, r.IntN(4)-1))
					}
					runRotations(t, e, cases...)
				}
			}
		}
	}
}

// Rows by the thousand, and rows wider than a block: every thread goes round.
func TestRotateOfManyRows(t *testing.T) {
	e, r := emulated(t), seeded(t)
	for _, s := range []rotateShape{
		{rows: 3000, heads: 2, dim: 128, dims: 64, t: kernel.BF16},
		{rows: 1500, heads: 1, dim: 64, dims: 64, t: kernel.F16, interleaved: true, perRow: true},
		{rows: 70, heads: 16, dim: 256, dims: 256, t: kernel.F32},
		{rows: 33, heads: 40, dim: 128, t: kernel.BF16},
		{rows: 5, heads: 70, dim: 33, dims: 8, t: kernel.F16},
		{rows: 1, heads: 1, dim: 1, t: kernel.BF16},
	} {
		runRotations(t, e, newRotateCase(t, r, s, -1), newRotateCase(t, r, s, 0))
	}
}

// Blocks are shared by the jobs of a launch, so with many jobs each goes round more often.
func TestRotateOfManyJobs(t *testing.T) {
	e, r := emulated(t), seeded(t)
	var cases []*rotateCase
	for i := range 80 {
		s := rotateShape{rows: 100 * (i % 3), heads: 1, dim: 32, dims: 32 * (i % 2), t: kernel.BF16}
		cases = append(cases, newRotateCase(t, r, s, -1))
	}
	runRotations(t, e, cases...)
}

func TestRotateOfFewBlocks(t *testing.T) {
	e, r := emulated(t), seeded(t)
	c := newRotateCase(t, r, rotateShape{rows: 1000, heads: 3, dim: 128, dims: 64, t: kernel.BF16}, 0)
	launches, err := Rotate([]RotateJob{c.RotateJob})
	for i := range launches {
		const turnedBlocks, copiedBlocks = 108 + 16, 108 + 36 // in the job's row of the tables
		launches[i].Grid[0] = 3
		binary.LittleEndian.PutUint32(launches[i].Tables[turnedBlocks:], 2)
		binary.LittleEndian.PutUint32(launches[i].Tables[copiedBlocks:], 1)
	}
	e.runAll(t, launches, err)
	c.verify(t)
}

// Layers share positions and block tables: the tables hold them once.
func TestRotateSharesTables(t *testing.T) {
	p := gpuipc.RowRotation{Dims: 4, Position: 7, InvFreq: []float64{1, 0.1}}
	job := RotateJob{Rows: 100, Heads: 1, Dim: 4, Type: kernel.F32, Src: 1 << 20, PerRow: &p,
		Dst: RotateTarget{Base: 1 << 30, Blocks: make([]uint32, 50), BlockRows: 4, BlockStride: 64, RowStride: 16, HeadStride: 16}}
	jobs := make([]RotateJob, 48)
	for i := range jobs {
		jobs[i] = job
		same := p
		same.InvFreq = slices.Clone(p.InvFreq)
		jobs[i].PerRow, jobs[i].Dst.Blocks = &same, slices.Clone(job.Dst.Blocks)
	}
	launches, err := Rotate(jobs)
	if err != nil || len(launches) != 1 {
		t.Fatal(len(launches), err)
	}
	if got, want := len(launches[0].Tables), len(jobs)*rotateRowBytes+100*2*8+25*4; got != want+12 && got != want {
		t.Errorf("tables of %d bytes, want %d", got, want)
	}
	other := p
	other.Position++
	jobs[1].PerRow = &other
	more, err := Rotate(jobs)
	if err != nil || len(more[0].Tables) <= len(launches[0].Tables) {
		t.Errorf("another position shares the table: %d bytes, %v", len(more[0].Tables), err)
	}
}

// Jobs with the same positions for another number of rows need a table of their own.
func TestRotateOfTheSamePositions(t *testing.T) {
	e, r := emulated(t), seeded(t)
	var cases []*rotateCase
	for _, rows := range []int{20, 7, 20, 33} {
		c := newRotateCase(t, r, rotateShape{rows: rows, heads: 2, dim: 64, dims: 32, t: kernel.BF16, perRow: true}, -1)
		c.PerRow.Position = 5
		cases = append(cases, c)
	}
	runRotations(t, e, cases...)
}

func TestRotateOfNothingIsNoLaunch(t *testing.T) {
	launches, err := Rotate([]RotateJob{{Heads: 1, Dim: 2, Type: kernel.F32}})
	if err != nil || len(launches) != 0 {
		t.Error(len(launches), err)
	}
}

func TestRotateRefusesWhatCannotRun(t *testing.T) {
	good := func() RotateJob {
		return RotateJob{Rows: 3, Heads: 2, Dim: 8, Type: kernel.BF16, Src: 1 << 16,
			Turn: &gpuipc.Rotation{Dims: 4, Cos: make([]float32, 2), Sin: make([]float32, 2)},
			Dst:  RotateTarget{Base: 1 << 20, Blocks: []uint32{3, 1}, BlockRows: 2, FirstRow: 1, BlockStride: 64, RowStride: 32, HeadStride: 16}}
	}
	if _, err := Rotate([]RotateJob{good()}); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(a *RotateJob){
		"negative rows":      func(a *RotateJob) { a.Rows = -1 },
		"no heads":           func(a *RotateJob) { a.Heads = 0 },
		"too wide":           func(a *RotateJob) { a.Heads, a.Dim = 1<<20, 1<<20 },
		"no type":            func(a *RotateJob) { a.Type = 9 },
		"odd dims":           func(a *RotateJob) { a.Turn.Dims = 3 },
		"dims past the head": func(a *RotateJob) { a.Turn.Dims, a.Turn.Cos, a.Turn.Sin = 10, make([]float32, 5), make([]float32, 5) },
		"few sines":          func(a *RotateJob) { a.Turn.Sin = a.Turn.Sin[1:] },
		"two turns":          func(a *RotateJob) { a.PerRow = &gpuipc.RowRotation{} },
		"few frequencies":    func(a *RotateJob) { a.Turn, a.PerRow = nil, &gpuipc.RowRotation{Dims: 4} },
		"no source":          func(a *RotateJob) { a.Src = 0 },
		"odd source":         func(a *RotateJob) { a.Src++ },
		"no destination":     func(a *RotateJob) { a.Dst.Base = 0 },
		"odd stride":         func(a *RotateJob) { a.Dst.RowStride++ },
		"negative stride":    func(a *RotateJob) { a.Dst.HeadStride = -16 },
		"short table":        func(a *RotateJob) { a.Rows = 4 },
		"first negative":     func(a *RotateJob) { a.Dst.FirstRow = -1 },
		"first huge":         func(a *RotateJob) { a.Dst.FirstRow = math.MaxInt },
		"dense with blocks":  func(a *RotateJob) { a.Dst.BlockRows = 0 },
		"negative block":     func(a *RotateJob) { a.Dst.BlockRows = -2 },
		"past all addresses": func(a *RotateJob) { a.Dst.BlockStride = 1 << 62 },
		"source past them":   func(a *RotateJob) { a.Src = 1<<63 - 16 },
		"too many cosines": func(a *RotateJob) {
			*a = RotateJob{Rows: 1 << 20, Heads: 1, Dim: 64, Type: kernel.F32, Src: 64, Dst: RotateTarget{Base: 64},
				PerRow: &gpuipc.RowRotation{Dims: 64, InvFreq: make([]float64, 32)}}
		},
	} {
		a := good()
		spoil(&a)
		if _, err := Rotate([]RotateJob{good(), a}); !errors.Is(err, gpuipc.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The struct in rotate.cu and row agree in size; a field more on one side would show here.
func TestRotateRowsAreWhole(t *testing.T) {
	j, err := planRotate(&RotateJob{Rows: 1, Heads: 1, Dim: 2, Type: kernel.F32, Src: 16, Dst: RotateTarget{Base: 16}})
	must(t, err)
	if n := len(j.row(0, 0)); n != rotateRowBytes {
		t.Errorf("%d bytes, want %d", n, rotateRowBytes)
	}
	if got := binary.LittleEndian.Uint32(j.row(0, 0)[72:]); got != 1 {
		t.Errorf("rows are %d", got)
	}
}
