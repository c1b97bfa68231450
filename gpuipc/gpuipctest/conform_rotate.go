package gpuipctest

import (
	"bytes"
	"math"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// randomRotate returns a job without a destination, and the bytes of its source rows.
func (r *rig) randomRotate() (*gpuipc.RotateJob, []byte) {
	r.Helper()
	j := &gpuipc.RotateJob{
		Rows: r.rng.IntN(60), Heads: 1 + r.rng.IntN(4), Dim: 1 + r.rng.IntN(40),
		Type: []gpuipc.DType{kernel.F32, kernel.F16, kernel.BF16}[r.rng.IntN(3)],
	}
	n := j.Rows * j.Heads * j.Dim
	j.Src, _ = r.tensor(n, j.Type, 1)
	if j.Turn = r.rotation(j.Dim); j.Turn == nil && r.rng.IntN(2) == 0 {
		p := &gpuipc.RowRotation{Dims: 2 * r.rng.IntN(j.Dim/2+1), Interleaved: r.rng.IntN(2) == 0, Position: r.rng.IntN(1 << 17)}
		for i := range p.Dims / 2 {
			p.InvFreq = append(p.InvFreq, math.Pow(10000, -2*float64(i)/float64(p.Dims)))
		}
		j.PerRow = p
	}
	return j, r.bytes(j.Src)
}

// turnOf returns the rotation of one row. It has no dimensions if the row is only copied.
func turnOf(j *gpuipc.RotateJob, row int) gpuipc.Rotation {
	switch {
	case j.Turn != nil:
		return *j.Turn
	case j.PerRow != nil:
		t := gpuipc.Rotation{Dims: j.PerRow.Dims, Interleaved: j.PerRow.Interleaved}
		for _, f := range j.PerRow.InvFreq {
			sin, cos := math.Sincos(float64(j.PerRow.Position+row) * f)
			t.Cos, t.Sin = append(t.Cos, float32(cos)), append(t.Sin, float32(sin))
		}
		return t
	}
	return gpuipc.Rotation{}
}

// roundings has twice the relative rounding error of each type.
var roundings = map[gpuipc.DType]float64{kernel.F32: 1e-6, kernel.F16: 1.0 / 1024, kernel.BF16: 1.0 / 128}

// checkHead checks one head of one row on the device against its source. Then it makes the
// bytes on the device the expected contents of the head.
func (r *rig) checkHead(j *gpuipc.RotateJob, row int, src []byte, at gpuipc.Ref) {
	r.Helper()
	got := r.bytesOnDevice(at)
	turn := turnOf(j, row)
	edge := turn.Dims * j.Type.Size()
	if !bytes.Equal(got[edge:], src[edge:]) {
		r.Fatalf("row %d: dimensions past %d were not moved unchanged", row, turn.Dims)
	}
	in, out := make([]float32, j.Dim), make([]float32, j.Dim)
	kernel.ToF32(in, src, j.Type)
	kernel.ToF32(out, got, j.Type)
	for i := range turn.Dims / 2 {
		a, b := pairOf(i, turn.Dims, turn.Interleaved)
		x, y, cos, sin := float64(in[a]), float64(in[b]), float64(turn.Cos[i]), float64(turn.Sin[i])
		bound := roundings[j.Type] * (math.Abs(x) + math.Abs(y) + 1e-3)
		if dx, dy := math.Abs(float64(out[a])-(x*cos-y*sin)), math.Abs(float64(out[b])-(y*cos+x*sin)); !(dx <= bound && dy <= bound) {
			r.Fatalf("row %d, pair %d of type %d: (%v, %v) turned to (%v, %v)", row, i, j.Type, x, y, out[a], out[b])
		}
	}
	r.expect(at, got)
}

// bytesOnDevice returns the bytes of an object from r.after, a copy of the region.
func (r *rig) bytesOnDevice(ref gpuipc.Ref) []byte {
	var out []byte
	for _, e := range ref.Extents {
		out = append(out, r.after[e.Off:e.Off+e.Len]...)
	}
	return out
}

// checkRows checks all that a job wrote. It reads r.after, a copy of the region.
func (r *rig) checkRows(j *gpuipc.RotateJob, src []byte) {
	r.Helper()
	n, d := j.Dim*j.Type.Size(), &j.Dst
	for row := range j.Rows {
		for head := range j.Heads {
			var at gpuipc.Ref
			if to := d.FirstRow + row; d.Region != nil {
				at = r.at(d.Base+int64(d.Blocks[to/d.BlockRows])*d.BlockStride+
					int64(to%d.BlockRows)*d.RowStride+int64(head)*d.HeadStride, int64(n))
			} else {
				at = d.Rows.Slice(int64(row*j.Heads+head)*int64(n), int64(n))
			}
			r.checkHead(j, row, src[(row*j.Heads+head)*n:][:n], at)
		}
	}
}

// runRotate runs a job. It checks all that the job wrote, and that nothing else changed.
func (r *rig) runRotate(j *gpuipc.RotateJob, src []byte) {
	r.Helper()
	if err := r.dev.Rotate(r.Context(), j); err != nil {
		r.Fatalf("%+v: %v", j.Dst, err)
	}
	r.after = r.get(r.whole())
	r.checkRows(j, src)
	r.check("rotate")
}

func testRotateRows(r *rig) {
	r.fresh(1 << 18)
	for range r.rounds(200) {
		r.next = 0
		j, src := r.randomRotate()
		j.Dst.Rows = r.object(int64(len(src)), j.Type.Size())
		r.runRotate(j, src)
	}
}

// randomTable places a block table after all objects so far. Its three axes are in one of
// the orders that engines use, with gaps.
func (r *rig) randomTable(j *gpuipc.RotateJob) {
	d := &j.Dst
	elem := int64(j.Type.Size())
	d.Region = r.region
	d.BlockRows = 1 + r.rng.IntN(20)
	d.FirstRow = r.rng.IntN(50)
	need := (d.FirstRow+j.Rows)/d.BlockRows + 1
	blocks := need + r.rng.IntN(3)
	for _, b := range r.rng.Perm(blocks)[:need] {
		d.Blocks = append(d.Blocks, uint32(b))
	}
	if r.rng.IntN(2) == 0 { // consecutive, as in a fresh pool
		for i := range d.Blocks {
			d.Blocks[i] = uint32(i)
		}
	}
	d.Base = (r.next+elem-1)/elem*elem + elem*r.rng.Int64N(9)
	type axis struct {
		count  int
		stride *int64
	}
	block, line, head := axis{blocks, &d.BlockStride}, axis{d.BlockRows, &d.RowStride}, axis{j.Heads, &d.HeadStride}
	orders := [][]axis{{head, line, block}, {line, head, block}, {line, block, head}} // innermost first
	span := elem * int64(j.Dim)
	for _, a := range orders[r.rng.IntN(len(orders))] {
		*a.stride = span + elem*int64(r.rng.IntN(3)*r.rng.IntN(2))
		span = *a.stride * int64(a.count)
	}
}

func testRotateTable(r *rig) {
	r.fresh(1 << 20)
	for range r.rounds(300) {
		r.next = 0
		j, src := r.randomRotate()
		r.randomTable(j)
		r.runRotate(j, src)
	}
}

func testBadRotate(r *rig) {
	r.fresh(1 << 16)
	size := r.region.Bytes()
	good := func() *gpuipc.RotateJob {
		r.next = 0
		j := &gpuipc.RotateJob{Rows: 10, Heads: 2, Dim: 8, Type: kernel.F16}
		j.Src, _ = r.tensor(160, kernel.F16, 1)
		j.Turn = &gpuipc.Rotation{Dims: 4, Cos: make([]float32, 2), Sin: make([]float32, 2)}
		j.Dst = gpuipc.Scatter{Region: r.region, Base: 4096, Blocks: []uint32{3, 1, 0, 2}, BlockRows: 4, FirstRow: 3,
			BlockStride: 128, RowStride: 32, HeadStride: 16}
		return j
	}
	j := good()
	r.runRotate(j, r.bytes(j.Src))
	for name, spoil := range map[string]func(j *gpuipc.RotateJob){
		"negative rows":     func(j *gpuipc.RotateJob) { j.Rows = -1 },
		"no heads":          func(j *gpuipc.RotateJob) { j.Heads = 0 },
		"huge dim":          func(j *gpuipc.RotateJob) { j.Dim = math.MaxInt / 2 },
		"unknown type":      func(j *gpuipc.RotateJob) { j.Type = 0 },
		"short source":      func(j *gpuipc.RotateJob) { j.Src = j.Src.Slice(0, 318) },
		"misaligned source": func(j *gpuipc.RotateJob) { j.Src = r.at(1, 320) },
		"two turns":         func(j *gpuipc.RotateJob) { j.PerRow = &gpuipc.RowRotation{} },
		"odd dims":          func(j *gpuipc.RotateJob) { j.Turn.Dims = 3 },
		"wide dims": func(j *gpuipc.RotateJob) {
			j.Turn = &gpuipc.Rotation{Dims: 10, Cos: make([]float32, 5), Sin: make([]float32, 5)}
		},
		"few sines":               func(j *gpuipc.RotateJob) { j.Turn.Sin = j.Turn.Sin[:1] },
		"few frequencies":         func(j *gpuipc.RotateJob) { j.Turn, j.PerRow = nil, &gpuipc.RowRotation{Dims: 4} },
		"no destination":          func(j *gpuipc.RotateJob) { j.Dst = gpuipc.Scatter{} },
		"two destinations":        func(j *gpuipc.RotateJob) { j.Dst.Rows = r.at(8192, 320) },
		"foreign destination":     func(j *gpuipc.RotateJob) { j.Dst.Region = &foreignRegion{r.region} },
		"no rows in a block":      func(j *gpuipc.RotateJob) { j.Dst.BlockRows = 0 },
		"negative first row":      func(j *gpuipc.RotateJob) { j.Dst.FirstRow = -1 },
		"table too short":         func(j *gpuipc.RotateJob) { j.Dst.FirstRow = 7 },
		"first row wraps":         func(j *gpuipc.RotateJob) { j.Dst.FirstRow = math.MaxInt - 4 },
		"last block outside":      func(j *gpuipc.RotateJob) { j.Dst.Blocks[3] = uint32(size/128 - 31) },
		"block wraps":             func(j *gpuipc.RotateJob) { j.Dst.Blocks[2] = math.MaxUint32; j.Dst.BlockStride = math.MaxInt64 - 1 },
		"negative base":           func(j *gpuipc.RotateJob) { j.Dst.Base = -2 },
		"base outside":            func(j *gpuipc.RotateJob) { j.Dst.Base = math.MaxInt64 - 1 },
		"misaligned base":         func(j *gpuipc.RotateJob) { j.Dst.Base++ },
		"misaligned stride":       func(j *gpuipc.RotateJob) { j.Dst.RowStride++ },
		"negative stride":         func(j *gpuipc.RotateJob) { j.Dst.HeadStride = -16 },
		"huge head stride":        func(j *gpuipc.RotateJob) { j.Dst.HeadStride = math.MaxInt64 - 1 },
		"heads overlap":           func(j *gpuipc.RotateJob) { j.Dst.HeadStride = 14 },
		"rows overlap":            func(j *gpuipc.RotateJob) { j.Dst.RowStride = 30 },
		"blocks overlap":          func(j *gpuipc.RotateJob) { j.Dst.BlockStride = 126 },
		"block named twice":       func(j *gpuipc.RotateJob) { j.Dst.Blocks[3] = 1 },
		"table over the source":   func(j *gpuipc.RotateJob) { j.Dst.Base = j.Src.Extents[0].Off },
		"rows too short":          func(j *gpuipc.RotateJob) { j.Dst = gpuipc.Scatter{Rows: r.at(8192, 318)} },
		"rows misaligned":         func(j *gpuipc.RotateJob) { j.Dst = gpuipc.Scatter{Rows: r.at(8193, 320)} },
		"rows over the source":    func(j *gpuipc.RotateJob) { j.Dst = gpuipc.Scatter{Rows: j.Src} },
		"rows outside the region": func(j *gpuipc.RotateJob) { j.Dst = gpuipc.Scatter{Rows: r.at(size-318, 320)} },
		"strides all zero":        func(j *gpuipc.RotateJob) { j.Dst.BlockStride, j.Dst.RowStride, j.Dst.HeadStride = 0, 0, 0 },
		"one block, rows overlap": func(j *gpuipc.RotateJob) { j.Dst.BlockRows, j.Dst.FirstRow, j.Dst.RowStride = 64, 0, 30 },
	} {
		j := good()
		spoil(j)
		r.refuses(name, r.dev.Rotate(r.Context(), j))
	}
}
