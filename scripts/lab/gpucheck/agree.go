package gpucheck

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// exactness is the largest permitted error of compositions with T in 16 bits and S in float32:
// the root mean square error against float64, relative to the result.
const exactness = 1e-6

// agreement compares kernels of one kind on the device with the CPU, on the same random
// inputs.
type agreement struct {
	name string
	run  func() error
}

func (c *check) agreements() []agreement {
	return []agreement{
		{"dense compose in float64", c.agreeDense}, {"packed compose", c.agreePacked}, {"scalar and diagonal compose", c.agreeLight},
		{"rotate", c.agreeRotate}, {"replay", c.agreeReplay}, {"digests", c.agreeDigests},
		{"decoding", c.agreeDecode},
	}
}

// denseShape is one dense composition.
type denseShape struct {
	heads, dk, dv, steps int
	t, s                 gpuipc.DType
}

func (c *check) agreeDense() error {
	d := c.Sizes.Dim
	for _, shape := range []denseShape{
		{c.Sizes.Heads, d, d, c.Sizes.Segments, kernel.F16, kernel.F32},
		{2, d, d, 3, kernel.BF16, kernel.F32},
		{2, d, d, 3, kernel.F32, kernel.F32},
		{2, d, d / 2, 2, kernel.F16, kernel.F16},
		{1, 48, 40, 3, kernel.F16, kernel.F32},
	} {
		worst, err := c.dense(shape)
		if err != nil {
			return fmt.Errorf("dense %+v: %w", shape, err)
		}
		name := fmt.Sprintf("compose dense, %d heads %dx%d, %s, T %s, S %s: error", shape.heads, shape.dk, shape.dv, plural(shape.steps), typeName(shape.t), typeName(shape.s))
		c.report.AtMost(name, worst, "relative", exactness)
	}
	return nil
}

// dense composes on the device and in float64 and returns the relative error.
func (c *check) dense(p denseShape) (float64, error) {
	state := p.heads * p.dk * p.dv
	tBytes, sBytes := p.heads*p.dk*p.dk*p.t.Size(), state*p.s.Size()
	a, err := c.arena(int64((tBytes+sBytes+512)*p.steps + 2*(4*state+512)))
	if err != nil {
		return 0, err
	}
	defer a.close()
	from := c.random(state, kernel.F32, 1)
	want := make([]float64, state)
	for i := range want {
		want[i] = element(from, i, kernel.F32)
	}
	start, err := a.put(from)
	if err != nil {
		return 0, err
	}
	job := gpuipc.ComposeJob{Transition: kernel.Dense, Heads: p.heads, DK: p.dk, DV: p.dv, From: start.ref(onGPU)}
	for range p.steps {
		// Transitions have a norm of about one, so that errors neither grow nor vanish.
		tb, sb := c.random(p.heads*p.dk*p.dk, p.t, 1/math.Sqrt(float64(p.dk))), c.random(state, p.s, 1)
		t, err := a.put(tb)
		if err != nil {
			return 0, err
		}
		s, err := a.put(sb)
		if err != nil {
			return 0, err
		}
		job.Steps = append(job.Steps, gpuipc.ComposeStep{T: t.ref(onGPU), TType: p.t, S: s.ref(onGPU), SType: p.s})
		want = denseStep(p, want, tb, sb)
	}
	out := a.room(int64(4 * state))
	job.Out = out.ref(onGPU)
	if err := c.gpu.Compose(c.ctx, &job); err != nil {
		return 0, err
	}
	b, err := out.load(onGPU)
	if err != nil {
		return 0, err
	}
	got := make([]float64, state)
	for i := range got {
		got[i] = element(b, i, kernel.F32)
	}
	return relative(got, want), nil
}

// denseStep returns T*state + S for each head (HYPIC Eq. 6), in float64.
func denseStep(p denseShape, state []float64, t, s []byte) []float64 {
	out := make([]float64, len(state))
	for h := range p.heads {
		for i := range p.dk {
			row := out[(h*p.dk+i)*p.dv:][:p.dv]
			for k := range p.dk {
				f := element(t, (h*p.dk+i)*p.dk+k, p.t)
				for j, x := range state[(h*p.dk+k)*p.dv:][:p.dv] {
					row[j] += f * x
				}
			}
			for j := range row {
				row[j] += element(s, (h*p.dk+i)*p.dv+j, p.s)
			}
		}
	}
	return out
}

// agreeLight compares scalar and diagonal transitions with the CPU's results bit for bit.
func (c *check) agreeLight() error {
	for _, tr := range []gpuipc.Transition{kernel.Scalar, kernel.Diagonal} {
		for _, rotated := range []bool{false, true} {
			if rotated && tr != kernel.Scalar {
				continue
			}
			err := c.light(tr, rotated)
			c.report.Holds(fmt.Sprintf("compose %s%s: same bits as the CPU", transitionName(tr), either(rotated, " with a turn", "")), err)
		}
	}
	return nil
}

func (c *check) light(tr gpuipc.Transition, rotated bool) error {
	heads, dk, dv, steps := c.Sizes.Heads, c.Sizes.Dim, c.Sizes.Dim, 3
	n, tn := heads*dk*dv, heads
	if tr == kernel.Diagonal {
		tn *= dk
	}
	a, err := c.arena(int64((steps+2)*(4*n+4*tn+1024) + steps*(4*n+1024)))
	if err != nil {
		return err
	}
	defer a.close()
	var ts, ss, before []tensor
	for range steps {
		t, err := a.put(c.random(tn, kernel.F32, 1))
		if err != nil {
			return err
		}
		s, err := a.put(c.random(n, kernel.F32, 1))
		if err != nil {
			return err
		}
		ts, ss, before = append(ts, t), append(ss, s), append(before, a.room(int64(4*n)))
	}
	out := a.room(int64(4 * n))
	var turn *gpuipc.Rotation
	if rotated {
		turn = c.turn(dk)
	}
	for _, at := range []side{onHost, onGPU} {
		job := gpuipc.ComposeJob{Transition: tr, Heads: heads, DK: dk, DV: dv, Out: out.ref(at)}
		for i := range steps {
			job.Steps = append(job.Steps, gpuipc.ComposeStep{T: ts[i].ref(at), TType: kernel.F32, S: ss[i].ref(at), SType: kernel.F32, Before: before[i].ref(at), Rotation: turn})
		}
		if err := a.device(at).Compose(c.ctx, &job); err != nil {
			return err
		}
	}
	for _, t := range append(before, out) {
		if err := t.sameBytes(); err != nil {
			return err
		}
	}
	return nil
}

func (c *check) turn(dim int) *gpuipc.Rotation {
	r := &gpuipc.Rotation{Dims: dim / 2 / 2 * 2}
	for range r.Dims / 2 {
		sin, cos := math.Sincos(c.rng.Float64() * 2 * math.Pi)
		r.Cos, r.Sin = append(r.Cos, float32(cos)), append(r.Sin, float32(sin))
	}
	return r
}

// agreeRotate scatters rotated rows into a block table and compares the blocks.
func (c *check) agreeRotate() error {
	for _, typ := range []gpuipc.DType{kernel.BF16, kernel.F16, kernel.F32} {
		for _, perRow := range []bool{false, true} {
			err := c.rotate(typ, perRow)
			c.report.Holds(fmt.Sprintf("rotate %s into blocks, %s: same bits as the CPU", typeName(typ), either(perRow, "an angle for each row", "one angle")), err)
		}
	}
	return nil
}

func (c *check) rotate(typ gpuipc.DType, perRow bool) error {
	const heads, block = 2, 16
	dim, rows := 128, c.Sizes.Rows+5
	token := int64(heads * dim * typ.Size())
	first := 3
	blocks := c.rng.Perm((first+rows)/block + 4)
	table := make([]uint32, (first+rows+block-1)/block)
	for i := range table {
		table[i] = uint32(blocks[i])
	}
	a, err := c.arena(int64(rows)*token + int64(len(blocks)+1)*block*token + 4096)
	if err != nil {
		return err
	}
	defer a.close()
	src, err := a.put(c.random(rows*heads*dim, typ, 1))
	if err != nil {
		return err
	}
	dst, err := a.put(make([]byte, int64(len(blocks))*block*token))
	if err != nil {
		return err
	}
	for _, at := range []side{onHost, onGPU} {
		job := gpuipc.RotateJob{Rows: rows, Heads: heads, Dim: dim, Type: typ, Src: src.ref(at), Dst: gpuipc.Scatter{
			Region: a.regions[at], Base: dst.off, Blocks: table, BlockRows: block, FirstRow: first,
			BlockStride: block * token, RowStride: token, HeadStride: int64(dim * typ.Size()),
		}}
		if perRow {
			job.PerRow = &gpuipc.RowRotation{Dims: dim / 2, Position: 777, InvFreq: frequencies(dim / 4)}
		} else {
			job.Turn = c.sameTurn(dim)
		}
		if err := a.device(at).Rotate(c.ctx, &job); err != nil {
			return err
		}
	}
	return dst.sameBytes()
}

// sameTurn returns a rotation that is the same at every call of one check.
func (c *check) sameTurn(dim int) *gpuipc.Rotation {
	r := &gpuipc.Rotation{Dims: dim}
	for i := range dim / 2 {
		sin, cos := math.Sincos(float64(c.Seed%1000+1) * math.Pow(10000, -2*float64(i)/float64(dim)))
		r.Cos, r.Sin = append(r.Cos, float32(cos)), append(r.Sin, float32(sin))
	}
	return r
}

func frequencies(n int) []float64 {
	f := make([]float64, n)
	for i := range f {
		f[i] = math.Pow(10000, -float64(i)/float64(n))
	}
	return f
}

func (c *check) agreeReplay() error {
	heads, keyHeads, dim, rows := 4, 2, c.Sizes.Dim, 37
	a, err := c.arena(int64(8*(heads*dim*dim)) + int64(rows*4*(heads+keyHeads*dim+heads*dim)) + 8192)
	if err != nil {
		return err
	}
	defer a.close()
	decay := make([]byte, 0, 4*rows*heads)
	for range rows * heads {
		decay = binary.LittleEndian.AppendUint32(decay, math.Float32bits(float32(0.9+0.1*c.rng.Float64())))
	}
	var in [4]tensor
	for i, b := range [][]byte{decay, c.random(rows*keyHeads*dim, kernel.F32, 0.1), c.random(rows*heads*dim, kernel.F32, 1), c.random(heads*dim*dim, kernel.F32, 1)} {
		if in[i], err = a.put(b); err != nil {
			return err
		}
	}
	out := a.room(int64(4 * heads * dim * dim))
	for _, at := range []side{onHost, onGPU} {
		job := gpuipc.ReplayJob{Heads: heads, KeyHeads: keyHeads, DK: dim, DV: dim, Rows: rows,
			Decay: in[0].ref(at), K: in[1].ref(at), U: in[2].ref(at), From: in[3].ref(at), Out: out.ref(at)}
		if err := a.device(at).Replay(c.ctx, &job); err != nil {
			return err
		}
	}
	c.report.Holds("replay of a buffer: same bits as the CPU", out.sameBytes())
	return nil
}

// agreeDigests compares digests of lengths around every branch of the hash.
func (c *check) agreeDigests() error {
	lengths := []int{1, 3, 4, 8, 9, 16, 17, 128, 129, 240, 241, 1024, 1025, 65537, gpuipc.ChunkBytes, gpuipc.ChunkBytes + 1, 2*gpuipc.ChunkBytes - 7}
	a, err := c.arena(8 * gpuipc.ChunkBytes)
	if err != nil {
		return err
	}
	defer a.close()
	for _, n := range lengths {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(c.rng.Uint32())
		}
		t, err := a.put(b)
		if err != nil {
			return err
		}
		got := make([]uint64, gpuipc.Chunks(int64(n)))
		if err := c.gpu.Digests(c.ctx, t.ref(onGPU), got); err != nil {
			return err
		}
		for i := range got {
			if want := gpuipc.DigestBytes(b[i*gpuipc.ChunkBytes : min(n, (i+1)*gpuipc.ChunkBytes)]); got[i] != want {
				return fmt.Errorf("digest of chunk %d of %d bytes: %x, the CPU says %x", i, n, got[i], want)
			}
		}
	}
	c.report.Holds(fmt.Sprintf("digests of %d lengths: same as the CPU", len(lengths)), nil)
	return nil
}
