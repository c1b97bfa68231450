package gpuipctest

import (
	"encoding/binary"
	"math"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// numbers returns n random numbers with a standard deviation of scale, rounded to dt, and
// their bytes.
func (r *rig) numbers(n int, dt gpuipc.DType, scale float64) ([]byte, []float32) {
	f := make([]float32, n)
	for i := range f {
		f[i] = float32(scale * r.rng.NormFloat64())
	}
	b := make([]byte, n*dt.Size())
	kernel.FromF32(b, f, dt)
	kernel.ToF32(f, b, dt)
	return b, f
}

// tensor stores random numbers in a new object.
func (r *rig) tensor(n int, dt gpuipc.DType, scale float64) (gpuipc.Ref, []float32) {
	r.Helper()
	b, f := r.numbers(n, dt, scale)
	ref := r.object(int64(len(b)), dt.Size())
	r.put(ref, b)
	return ref, f
}

// part is like tensor, but packs one in three parts at random. For a packed part it returns
// the numbers that the packed bytes stand for.
func (r *rig) part(dt gpuipc.DType, scale float64, limit kernel.Limit, heads, rows, cols int) (ref gpuipc.Ref, packed bool, f []float32) {
	r.Helper()
	b, f := r.numbers(heads*rows*cols, dt, scale)
	if packed = r.rng.IntN(3) == 0; packed {
		// out has room for more than the packed part, because zeros may follow a part.
		out := make([]byte, kernel.PackedHeader(heads)+heads*kernel.FormBytes(kernel.FormPlain, dt, rows, cols)+64*r.rng.IntN(2))
		var p kernel.Packer
		n, _ := p.Pack(out, b, dt, heads, rows, cols, limit)
		b = out[:n+(len(out)-n)*r.rng.IntN(2)]
		clear(b[n:])
		if err := kernel.PartToF32(f, b, dt, true, [3]int{heads, rows, cols}); err != nil {
			r.Fatal(err)
		}
	}
	ref = r.object(int64(len(b)), dt.Size())
	r.put(ref, b)
	return ref, packed, f
}

// limit returns a tolerance that some heads meet, for each form.
func (r *rig) limit() float64 { return []float64{1, 0.03, 0.002, 0.0001, 1e-9}[r.rng.IntN(5)] }

// composeCase is a job, and the same in plain numbers.
type composeCase struct {
	job   gpuipc.ComposeJob
	from  []float32
	steps []plainStep
}

type plainStep struct{ t, s []float32 }

// randomCompose returns a job with odd sizes, all element types and packed parts. Some
// steps lack T and S, and some store the state in their field Before.
func (r *rig) randomCompose() *composeCase {
	r.Helper()
	dts := []gpuipc.DType{kernel.F32, kernel.F16, kernel.BF16}
	c := &composeCase{}
	j := &c.job
	j.Transition = []gpuipc.Transition{kernel.Scalar, kernel.Diagonal, kernel.Dense}[r.rng.IntN(3)]
	j.Heads, j.DK, j.DV = 1+r.rng.IntN(9), 1+r.rng.IntN(24), 1+r.rng.IntN(24)
	n := j.Heads * j.DK * j.DV
	if r.rng.IntN(4) > 0 {
		j.From, c.from = r.tensor(n, kernel.F32, 1)
	} else {
		c.from = make([]float32, n)
	}
	for range r.rng.IntN(6) {
		st := gpuipc.ComposeStep{TType: dts[r.rng.IntN(3)], SType: dts[r.rng.IntN(3)]}
		var p plainStep
		if r.rng.IntN(3) > 0 {
			st.Before = r.object(int64(n)*4, 4)
		}
		if r.rng.IntN(5) > 0 {
			switch j.Transition {
			case kernel.Scalar:
				st.TType = kernel.F32
				st.T, p.t = r.tensor(j.Heads, st.TType, 1)
				st.Rotation = r.rotation(j.DK)
			case kernel.Diagonal:
				st.T, p.t = r.tensor(j.Heads*j.DK, st.TType, 1)
			default:
				st.T, st.TPacked, p.t = r.part(st.TType, 1/math.Sqrt(float64(j.DK)), kernel.Limit{Absolute: r.limit()}, j.Heads, j.DK, j.DK)
			}
			st.S, st.SPacked, p.s = r.part(st.SType, 1, kernel.Limit{Relative: r.limit()}, j.Heads, j.DK, j.DV)
		}
		j.Steps = append(j.Steps, st)
		c.steps = append(c.steps, p)
	}
	if r.rng.IntN(5) > 0 {
		j.Out = r.object(int64(n)*4, 4)
	}
	return c
}

// rotation returns a random rotation, or nil half of the time.
func (r *rig) rotation(dim int) *gpuipc.Rotation {
	if r.rng.IntN(2) == 0 {
		return nil
	}
	rot := &gpuipc.Rotation{Dims: 2 * r.rng.IntN(dim/2+1), Interleaved: r.rng.IntN(2) == 0}
	for range rot.Dims / 2 {
		sin, cos := math.Sincos(r.rng.Float64() * 7)
		rot.Cos = append(rot.Cos, float32(cos))
		rot.Sin = append(rot.Sin, float32(sin))
	}
	return rot
}

// pairOf returns the two dimensions that rotate together as pair i, if dims dimensions
// rotate.
func pairOf(i, dims int, interleaved bool) (int, int) {
	if interleaved {
		return 2 * i, 2*i + 1
	}
	return i, i + dims/2
}

// The method want returns the state before each step and after the last step, computed in
// float64.
func (c *composeCase) want() [][]float64 {
	j := &c.job
	state := make([]float64, len(c.from))
	for i, v := range c.from {
		state[i] = float64(v)
	}
	states := [][]float64{state}
	for i := range j.Steps {
		if c.steps[i].s != nil {
			state = c.apply(state, i)
		}
		states = append(states, state)
	}
	return states
}

func (c *composeCase) apply(state []float64, i int) []float64 {
	j, p := &c.job, &c.steps[i]
	next := make([]float64, len(state))
	for k, v := range p.s {
		next[k] = float64(v)
	}
	at := func(head, row, col int) int { return (head*j.DK+row)*j.DV + col }
	for head := range j.Heads {
		for col := range j.DV {
			if rot := j.Steps[i].Rotation; rot != nil {
				for k := range rot.Dims / 2 {
					a, b := pairOf(k, rot.Dims, rot.Interleaved)
					x, y := next[at(head, a, col)], next[at(head, b, col)]
					cos, sin := float64(rot.Cos[k]), float64(rot.Sin[k])
					next[at(head, a, col)], next[at(head, b, col)] = x*cos-y*sin, y*cos+x*sin
				}
			}
			for row := range j.DK {
				switch j.Transition {
				case kernel.Scalar:
					next[at(head, row, col)] += float64(p.t[head]) * state[at(head, row, col)]
				case kernel.Diagonal:
					next[at(head, row, col)] += float64(p.t[head*j.DK+row]) * state[at(head, row, col)]
				default:
					for k := range j.DK {
						next[at(head, row, col)] += float64(p.t[(head*j.DK+row)*j.DK+k]) * state[at(head, k, col)]
					}
				}
			}
		}
	}
	return next
}

// The method near checks an F32 output against the numbers in want. Then it makes the
// output the expected contents.
func (r *rig) near(what string, ref gpuipc.Ref, want []float64) {
	r.Helper()
	b := r.get(ref)
	largest := 1.0
	for _, v := range want {
		largest = max(largest, math.Abs(v))
	}
	for i, v := range want {
		got := float64(math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:])))
		if !(math.Abs(got-v) <= 1e-5*largest) {
			r.Fatalf("%s: number %d is %v, want %v", what, i, got, v)
		}
	}
	r.expect(ref, b)
}

func (r *rig) runCompose(c *composeCase) {
	r.Helper()
	if err := r.dev.Compose(r.Context(), &c.job); err != nil {
		r.Fatal(err)
	}
	r.composed(c)
	r.check("compose")
}

// composed checks all that a job wrote.
func (r *rig) composed(c *composeCase) {
	r.Helper()
	states := c.want()
	for i := range c.job.Steps {
		if b := c.job.Steps[i].Before; !b.Absent() {
			r.near("before a step", b, states[i])
		}
	}
	if !c.job.Out.Absent() {
		r.near("out", c.job.Out, states[len(states)-1])
	}
}

func testCompose(r *rig) {
	r.fresh(1 << 20)
	for range r.rounds(200) {
		r.next = 0
		r.runCompose(r.randomCompose())
	}
}

func testComposeInPlace(r *rig) {
	r.fresh(1 << 20)
	for range r.rounds(50) {
		r.next = 0
		c := r.randomCompose()
		if c.job.From.Absent() {
			continue
		}
		c.job.Out = c.job.From
		r.runCompose(c)
	}
}

func testBadCompose(r *rig) {
	r.fresh(1 << 20)
	good := func() *gpuipc.ComposeJob {
		r.next = 0
		j := &gpuipc.ComposeJob{Transition: kernel.Scalar, Heads: 2, DK: 4, DV: 6}
		j.From, _ = r.tensor(48, kernel.F32, 1)
		st := gpuipc.ComposeStep{TType: kernel.F32, SType: kernel.F16, Before: r.object(192, 4)}
		st.T, _ = r.tensor(2, kernel.F32, 1)
		st.S, _ = r.tensor(48, kernel.F16, 1)
		st.Rotation = &gpuipc.Rotation{Dims: 2, Cos: []float32{1}, Sin: []float32{0}}
		j.Steps = []gpuipc.ComposeStep{st}
		j.Out = r.object(192, 4)
		return j
	}
	if err := r.dev.Compose(r.Context(), good()); err != nil {
		r.Fatal(err)
	}
	copy(r.expected, r.get(r.whole()))
	size := r.region.Bytes()
	for name, spoil := range map[string]func(j *gpuipc.ComposeJob){
		"no heads":           func(j *gpuipc.ComposeJob) { j.Heads = 0 },
		"negative dk":        func(j *gpuipc.ComposeJob) { j.DK = -4 },
		"huge dv":            func(j *gpuipc.ComposeJob) { j.DV = math.MaxInt },
		"unknown transition": func(j *gpuipc.ComposeJob) { j.Transition = 9 },
		"short from":         func(j *gpuipc.ComposeJob) { j.From = j.From.Slice(0, 188) },
		"long out":           func(j *gpuipc.ComposeJob) { j.Out = r.at(size-196, 196) },
		"out past the end":   func(j *gpuipc.ComposeJob) { j.Out = r.at(size-188, 192) },
		"misaligned out":     func(j *gpuipc.ComposeJob) { j.Out = r.at(size-194, 192) },
		"misaligned half":    func(j *gpuipc.ComposeJob) { j.Steps[0].S = r.at(size-97, 96) },
		"T without S":        func(j *gpuipc.ComposeJob) { j.Steps[0].S = gpuipc.Ref{} },
		"S without T":        func(j *gpuipc.ComposeJob) { j.Steps[0].T = gpuipc.Ref{} },
		"short T":            func(j *gpuipc.ComposeJob) { j.Steps[0].T = j.Steps[0].T.Slice(0, 4) },
		"scalar T in F16":    func(j *gpuipc.ComposeJob) { j.Steps[0].TType = kernel.F16; j.Steps[0].T = r.at(size-4, 4) },
		"unknown S type":     func(j *gpuipc.ComposeJob) { j.Steps[0].SType = 9 },
		"short S":            func(j *gpuipc.ComposeJob) { j.Steps[0].S = j.Steps[0].S.Slice(0, 94) },
		"short packed S":     func(j *gpuipc.ComposeJob) { j.Steps[0].SPacked, j.Steps[0].S = true, j.Steps[0].S.Slice(0, 63) },
		"packed scalar T":    func(j *gpuipc.ComposeJob) { j.Steps[0].TPacked, j.Steps[0].T = true, r.at(size-128, 128) },
		"short before":       func(j *gpuipc.ComposeJob) { j.Steps[0].Before = j.Steps[0].Before.Slice(4, 188) },
		"odd rotation":       func(j *gpuipc.ComposeJob) { j.Steps[0].Rotation.Dims = 1 },
		"wide rotation": func(j *gpuipc.ComposeJob) {
			j.Steps[0].Rotation = &gpuipc.Rotation{Dims: 6, Cos: make([]float32, 3), Sin: make([]float32, 3)}
		},
		"few cosines":           func(j *gpuipc.ComposeJob) { j.Steps[0].Rotation.Cos = nil },
		"rotation of diagonals": func(j *gpuipc.ComposeJob) { j.Transition = kernel.Diagonal; j.Steps[0].T = r.at(size-32, 32) },
		"out partly over from":  func(j *gpuipc.ComposeJob) { j.From = r.at(size-256, 192); j.Out = r.at(size-252, 192) },
		"out over S":            func(j *gpuipc.ComposeJob) { j.Out = r.at(size-192, 192); j.Steps[0].S = r.at(size-96, 96) },
		"before over out":       func(j *gpuipc.ComposeJob) { j.Steps[0].Before = j.Out },
		"two befores":           func(j *gpuipc.ComposeJob) { j.Steps = append(j.Steps, gpuipc.ComposeStep{Before: j.Steps[0].Before}) },
	} {
		j := good()
		spoil(j)
		r.refuses(name, r.dev.Compose(r.Context(), j))
	}
}
