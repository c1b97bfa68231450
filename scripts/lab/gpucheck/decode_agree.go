package gpucheck

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"unsafe"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda/driver"
	"github.com/spliced-kv/spliced/gpuipc/cuda/kernels"
	"github.com/spliced-kv/spliced/gpuipc/kernel"
	"github.com/spliced-kv/spliced/scripts/lab/refengine/enginekernel"
)

// decodeError is the permitted relative root mean square error of decoding kernels. For F32
// rows, the device adds numbers in another order than the CPU. For 16-bit types, rows and
// outputs are rounded.
func decodeError(typ gpuipc.DType) float64 {
	switch typ {
	case kernel.F16:
		return 1e-3
	case kernel.BF16:
		return 8e-3
	}
	return 1e-5
}

// agreeDecode launches the kernels with which an engine decodes, without the accelerator's
// interface. For decoding with rows next to a state, the reference is enginekernel.Buffer. For
// attention over runs of keys, the reference is computed in float64.
func (c *check) agreeDecode() (err error) {
	w, err := c.stopwatch()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	for _, typ := range []gpuipc.DType{kernel.F32, kernel.F16, kernel.BF16} {
		for _, perKey := range []bool{false, true} {
			if err := c.agreeBuffers(w, typ, perKey); err != nil {
				return err
			}
		}
		if err := c.agreeAttention(w, typ); err != nil {
			return err
		}
	}
	return nil
}

// put copies bytes to device memory that is valid until free.
func (w *stopwatch) put(b []byte) (uint64, error) {
	p, err := w.alloc(int64(max(16, len(b))))
	if err != nil || len(b) == 0 {
		return uint64(p), err
	}
	return uint64(p), w.upload(p, b)
}

// get reads n numbers.
func (w *stopwatch) get(at uint64, n int, typ gpuipc.DType) ([]float64, error) {
	b := make([]byte, n*typ.Size())
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&b[0])
	err := errors.Join(w.api.MemcpyDtoHAsync(unsafe.Pointer(&b[0]), driver.DevicePtr(at), int64(len(b)), w.stream), w.api.StreamSynchronize(w.stream))
	out := make([]float64, n)
	for i := range out {
		out[i] = element(b, i, typ)
	}
	return out, err
}

// run launches and waits.
func (w *stopwatch) run(launches []kernels.Launch) error {
	if err := w.prepare(launches); err != nil {
		return err
	}
	if err := w.launch(launches); err != nil {
		return err
	}
	return w.api.StreamSynchronize(w.stream)
}

// bufferShape is a job of agreeBuffers.
type bufferShape struct {
	what    string
	rows    int
	flush   bool
	parents []int32 // parent of each new row, as an index among the new rows; nil = each row follows the previous one
}

const (
	bufferPending  = 13
	bufferKeyHeads = 2
	bufferGroup    = 2 // value heads per key head
)

func (c *check) agreeBuffers(w *stopwatch, typ gpuipc.DType, perKey bool) error {
	for _, shape := range []bufferShape{
		{what: "one row", rows: 1}, {what: "five drafts", rows: 5}, {what: "a tree of drafts", rows: 6, parents: []int32{-1, 0, 0, 1, 1, 2}},
		{what: "three rows and a flush", rows: 3, flush: true},
	} {
		worst, err := c.buffer(w, typ, perKey, shape)
		name := fmt.Sprintf("rows beside a state, %s, %s decay, %s: error", typeName(typ), either(perKey, "diagonal", "scalar"), shape.what)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		c.report.AtMost(name, worst, "relative", decodeError(typ))
	}
	return nil
}

// bufferBytes is the input of one job, on the host.
type bufferBytes struct {
	from, k, u, g            []byte // the pending rows
	q, newK, v, newG, beta   []byte
	dim, heads, decays, rows int
	typ                      gpuipc.DType
	perKey                   bool
}

func (c *check) newBufferBytes(typ gpuipc.DType, perKey bool, rows int) *bufferBytes {
	d, heads := c.Sizes.Dim, bufferKeyHeads*bufferGroup
	b := &bufferBytes{dim: d, heads: heads, decays: 1, rows: rows, typ: typ, perKey: perKey}
	if perKey {
		b.decays = d
	}
	unit := 1 / math.Sqrt(float64(d))
	b.from = c.random(heads*d*d, kernel.F32, 1)
	b.k, b.u = c.random(bufferPending*bufferKeyHeads*d, typ, unit), c.random(bufferPending*heads*d, typ, 1)
	b.g, b.newG = c.shares(bufferPending*heads*b.decays, 0.8), c.shares(rows*heads*b.decays, 0.8)
	b.q, b.newK = c.random(rows*bufferKeyHeads*d, kernel.F32, unit), c.random(rows*bufferKeyHeads*d, kernel.F32, unit)
	b.v, b.beta = c.random(rows*heads*d, kernel.F32, 1), c.shares(rows*heads, 0)
	return b
}

// shares returns n random F32 numbers between the parameter least and one.
func (c *check) shares(n int, least float64) []byte {
	var b []byte
	for range n {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(least+(1-least)*c.rng.Float64())))
	}
	return b
}

// buffer runs one job on the device and on the CPU and returns the relative error.
func (c *check) buffer(w *stopwatch, typ gpuipc.DType, perKey bool, shape bufferShape) (worst float64, err error) {
	defer func() { err = errors.Join(err, w.free()) }()
	b := c.newBufferBytes(typ, perKey, shape.rows)
	a := kernels.BufferJob{Heads: b.heads, KeyHeads: bufferKeyHeads, DK: b.dim, DV: b.dim, Type: typ, PerKey: perKey, Delta: true,
		Capacity: bufferPending + shape.rows, Pending: bufferPending, New: kernels.BufferRows{N: shape.rows, Type: kernel.F32}}
	if shape.parents != nil {
		for i := range bufferPending {
			a.Parents = append(a.Parents, int32(i-1))
		}
		for _, p := range shape.parents {
			a.Parents = append(a.Parents, bufferPending+p)
		}
	}
	more := make([]byte, shape.rows*max(b.heads*b.dim*typ.Size(), 4*b.heads*b.decays))
	outputs := make([]byte, 4*shape.rows*b.heads*b.dim)
	for _, x := range []struct {
		to    *uint64
		bytes []byte
	}{
		{&a.From, b.from}, {&a.K, append(slices.Clone(b.k), more...)}, {&a.U, append(slices.Clone(b.u), more...)}, {&a.G, append(slices.Clone(b.g), more...)},
		{&a.New.Q, b.q}, {&a.New.K, b.newK}, {&a.New.V, b.v}, {&a.New.G, b.newG}, {&a.New.Beta, b.beta}, {&a.New.Outputs, outputs},
	} {
		if *x.to, err = w.put(x.bytes); err != nil {
			return 0, err
		}
	}
	if shape.flush {
		a.Out = a.From
	}
	launches, err := kernels.Buffer([]kernels.BufferJob{a})
	if err != nil {
		return 0, err
	}
	if err := w.run(launches); err != nil {
		return 0, err
	}
	wantOut, wantStates := b.onHost(shape)
	got, err := w.get(a.New.Outputs, len(wantOut), kernel.F32)
	if err != nil || !shape.flush {
		return relative(got, wantOut), err
	}
	states, err := w.get(a.Out, len(wantStates), kernel.F32)
	return max(relative(got, wantOut), relative(states, wantStates)), err
}

// onHost computes the same job on the CPU: it decodes each new row after its ancestors.
func (b *bufferBytes) onHost(shape bufferShape) (outputs, states []float64) {
	outputs = make([]float64, b.rows*b.heads*b.dim)
	for key := range bufferKeyHeads {
		for i := range b.rows {
			var path []int
			for p := i; p >= 0; {
				path = append(path, p)
				if p--; shape.parents != nil {
					p = int(shape.parents[path[len(path)-1]])
				}
			}
			slices.Reverse(path)
			out, after := b.decode(key, path, shape.flush && i == b.rows-1)
			last := out[(len(path)-1)*bufferGroup*b.dim:]
			for j, v := range last {
				outputs[(i*b.heads+key*bufferGroup)*b.dim+j] = float64(v)
			}
			if shape.flush && i == b.rows-1 {
				for _, v := range after {
					states = append(states, float64(v))
				}
			}
		}
	}
	return outputs, states
}

// decode returns a key head's outputs of some new rows, and its states.
func (b *bufferBytes) decode(key int, path []int, flush bool) (out, states []float32) {
	decay := kernel.Scalar
	if b.perKey {
		decay = kernel.Diagonal
	}
	size := b.typ.Size()
	h := enginekernel.NewBuffer(b.dim, b.dim, bufferGroup, bufferPending+len(path), b.typ, decay, true)
	h.N = bufferPending
	// part returns this key head's share of a row; bytes is the size of the share.
	part := func(all []byte, row, bytes int) []byte { return all[(row*bufferKeyHeads+key)*bytes:][:bytes] }
	for i := range bufferPending {
		copy(h.K[i*b.dim*size:], part(b.k, i, b.dim*size))
		copy(h.U[i*bufferGroup*b.dim*size:], part(b.u, i, bufferGroup*b.dim*size))
		copy(h.G[i*bufferGroup*b.decays:], float32s(part(b.g, i, 4*bufferGroup*b.decays)))
	}
	var in []enginekernel.Input
	for _, i := range path {
		in = append(in, enginekernel.Input{
			Q: float32s(part(b.q, i, 4*b.dim)), K: float32s(part(b.newK, i, 4*b.dim)), V: float32s(part(b.v, i, 4*bufferGroup*b.dim)),
			G: float32s(part(b.newG, i, 4*bufferGroup*b.decays)), Beta: float32s(part(b.beta, i, 4*bufferGroup)),
		})
	}
	n := bufferGroup * b.dim * b.dim
	states, out = float32s(b.from[4*key*n:][:4*n]), make([]float32, len(path)*bufferGroup*b.dim)
	h.Decode(states, in, out, flush, nil)
	return out, states
}

// float32s returns a copy.
func float32s(b []byte) []float32 {
	out := make([]float32, len(b)/4)
	for i := range out {
		out[i] = float32(element(b, i, kernel.F32))
	}
	return out
}

// attendBytes is the keys and values of the two runs of a request, on the host.
type attendBytes struct {
	job      kernels.AttendJob
	q        []byte
	k, v     []byte // [tokens, key heads, dim]
	keyDim   int
	valueDim int
}

const (
	attendKeyHeads = 2
	attendGroup    = 4
	attendBlock    = 16
	attendFar      = 1005 // number of rows in the run whose keys are not rotated to their positions
)

// agreeAttention checks attention for one decoded row and for several rows of a prompt. Each
// attends to two runs of keys. One run is in blocks, and its keys are not rotated to their
// positions; the other run belongs to the request alone.
func (c *check) agreeAttention(w *stopwatch, typ gpuipc.DType) error {
	for _, rows := range []int{1, 9} {
		worst, err := c.attend(w, typ, rows)
		name := fmt.Sprintf("attention over runs, %s, %s of queries: error", typeName(typ), either(rows == 1, "a row", "9 rows"))
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		c.report.AtMost(name, worst, "relative", decodeError(typ))
	}
	return nil
}

func (c *check) attend(w *stopwatch, typ gpuipc.DType, rows int) (worst float64, err error) {
	defer func() { err = errors.Join(err, w.free()) }()
	far, own := attendFar, 21+rows
	x := c.newAttendBytes(typ, rows, far, own)
	k, v := &x.job.Runs[0].Keys, &x.job.Runs[0].Values
	for _, p := range []struct {
		to    *uint64
		bytes []byte
	}{{&x.job.Q, x.q}, {&x.job.Out, make([]byte, rows*attendKeyHeads*attendGroup*x.valueDim*typ.Size())}, {&k.Base, x.k}, {&v.Base, x.v}} {
		if *p.to, err = w.put(p.bytes); err != nil {
			return 0, err
		}
	}
	x.job.Runs[1].Keys, x.job.Runs[1].Values = *k, *v
	n, err := kernels.AttendScratch([]kernels.AttendJob{x.job})
	if err != nil {
		return 0, err
	}
	scratch, err := w.alloc(n)
	if err != nil {
		return 0, err
	}
	launches, err := kernels.Attend([]kernels.AttendJob{x.job}, uint64(scratch))
	if err != nil {
		return 0, err
	}
	if err := w.run(launches); err != nil {
		return 0, err
	}
	got, err := w.get(x.job.Out, rows*x.job.Heads*x.valueDim, typ)
	return relative(got, x.onHost()), err
}

func (c *check) newAttendBytes(typ gpuipc.DType, rows, far, own int) *attendBytes {
	x := &attendBytes{keyDim: c.Sizes.Dim, valueDim: c.Sizes.Dim / 2}
	size := int64(typ.Size())
	x.job = kernels.AttendJob{Rows: rows, Heads: attendKeyHeads * attendGroup, KeyHeads: attendKeyHeads, KeyDim: x.keyDim, ValueDim: x.valueDim,
		Begin: far + own - rows, Type: typ, QType: typ, Scale: float32(1 / math.Sqrt(float64(x.keyDim)))}
	blocks := (far+attendBlock-1)/attendBlock + (own+attendBlock-1)/attendBlock
	table := make([]uint32, blocks)
	for i, b := range c.rng.Perm(blocks) {
		table[i] = uint32(b)
	}
	cut := (far + attendBlock - 1) / attendBlock
	place := func(dim int) kernels.AttendRows {
		token := int64(attendKeyHeads*dim) * size
		return kernels.AttendRows{BlockStride: attendBlock * token, RowStride: token, HeadStride: int64(dim) * size}
	}
	run := kernels.AttendRun{Rows: far, Blocks: table[:cut], BlockRows: attendBlock, Turn: c.turn(x.keyDim), Keys: place(x.keyDim), Values: place(x.valueDim)}
	x.job.Runs = []kernels.AttendRun{run, {Rows: own, Begin: far, Blocks: table[cut:], BlockRows: attendBlock}}
	x.q = c.random(rows*x.job.Heads*x.keyDim, typ, 1)
	x.k, x.v = c.random(blocks*attendBlock*attendKeyHeads*x.keyDim, typ, 1), c.random(blocks*attendBlock*attendKeyHeads*x.valueDim, typ, 1)
	return x
}

// onHost computes attention in float64, over keys rotated to their positions.
func (x *attendBytes) onHost() []float64 {
	var out []float64
	for row := range x.job.Rows {
		for head := range x.job.Heads {
			out = append(out, x.attended(row, head)...)
		}
	}
	return out
}

func (x *attendBytes) attended(row, head int) []float64 {
	j, key := &x.job, head/attendGroup
	out, weight := make([]float64, x.valueDim), 0.0
	for i := range j.Runs {
		run := &j.Runs[i]
		for n := range max(0, min(run.Rows, j.Begin+row+1-run.Begin)) {
			at := int(run.Blocks[n/attendBlock])*attendBlock + n%attendBlock
			k := make([]float64, x.keyDim)
			for d := range k {
				k[d] = element(x.k, (at*attendKeyHeads+key)*x.keyDim+d, j.Type)
			}
			turnBy(k, run.Turn)
			s := 0.0
			for d, v := range k {
				s += v * element(x.q, (row*j.Heads+head)*x.keyDim+d, j.QType)
			}
			f := math.Exp(s * float64(j.Scale))
			weight += f
			for d := range out {
				out[d] += f * element(x.v, (at*attendKeyHeads+key)*x.valueDim+d, j.Type)
			}
		}
	}
	for d := range out {
		out[d] /= weight
	}
	return out
}

// turnBy rotates a head in place; nil leaves it unchanged.
func turnBy(k []float64, t *gpuipc.Rotation) {
	if t == nil {
		return
	}
	for i := range t.Dims / 2 {
		a, b, cos, sin := k[i], k[i+t.Dims/2], float64(t.Cos[i]), float64(t.Sin[i])
		k[i], k[i+t.Dims/2] = a*cos-b*sin, b*cos+a*sin
	}
}
