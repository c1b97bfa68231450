package gpucheck

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda/kernels"
	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// packedPart returns a packed part with one head per form, of random numbers whose magnitude is
// about sigma.
func (c *check) packedPart(forms []kernel.Form, typ gpuipc.DType, rows, cols int, sigma float64) []byte {
	b := make([]byte, kernel.PackedHeader(len(forms)))
	for i, f := range forms {
		b[i] = byte(f)
	}
	for _, f := range forms {
		end := len(b) + kernel.FormBytes(f, typ, rows, cols)
		switch f {
		case kernel.FormZero:
		case kernel.FormPlain:
			b = append(b, c.random(rows*cols, typ, sigma)...)
		case kernel.FormInt8, kernel.FormInt12, kernel.FormInt16:
			// The integers are random bits of the form's width, so their root mean square is
			// 0.58 of the largest integer.
			largest := math.Exp2(float64(f.Bits() - 1))
			b = append(b, c.random(1, kernel.F32, sigma)...)
			for range rows {
				scale := sigma * (0.5 + c.rng.Float64()) / (0.58 * largest)
				b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(scale)))
			}
			for range rows * ((cols*f.Bits() + 7) / 8) {
				b = append(b, byte(c.rng.Uint32()))
			}
		default:
			for range f.Rank() * (cols + rows) {
				b = append(b, byte(c.rng.Uint32()))
			}
			unit := sigma / (74 * 74 * math.Sqrt(float64(f.Rank())))
			for range f.Rank() {
				b = binary.LittleEndian.AppendUint32(b, math.Float32bits(kernel.FactorScale(float32(unit*c.rng.NormFloat64()))))
			}
		}
		b = append(b, make([]byte, end-len(b))...)
	}
	return b
}

// mix is the forms of a segment's heads, repeated cyclically.
type mix struct {
	name string
	t, s []kernel.Form
}

func inTurn(forms []kernel.Form, heads int) []kernel.Form {
	return slices.Repeat(forms, (heads+len(forms)-1)/len(forms))[:heads]
}

var (
	everyForm = []kernel.Form{kernel.FormInt8, kernel.FormPlain, kernel.FormInt12, kernel.FormZero, kernel.FormInt16}
	usualMix  = mix{"T in 8 bits, S in 8 and 12", []kernel.Form{kernel.FormInt8}, []kernel.Form{kernel.FormInt8, kernel.FormInt12}}
	allMixed  = mix{"every form", everyForm, []kernel.Form{kernel.FormInt12, kernel.FormInt16, rank(10), kernel.FormInt8, kernel.FormPlain, rank(32), kernel.FormZero}}
	// As in the trained models at a tolerance of 0.02: a third of the transitions are zero, and
	// half of the end-states have a low rank.
	trainedMix = mix{"a third without T, half of S of a low rank", []kernel.Form{kernel.FormInt8, kernel.FormInt8, kernel.FormZero}, []kernel.Form{kernel.FormInt8, rank(10)}}
)

func rank(n int) kernel.Form { return kernel.FormRank + kernel.Form(n-1) }

// agreePacked compares compositions of packed parts with compositions of the unpacked numbers in
// float64.
func (c *check) agreePacked() error {
	d := c.Sizes.Dim
	for _, p := range []struct {
		denseShape
		mix
		between bool // every second step uses plain numbers
	}{
		{denseShape{c.Sizes.Heads, d, d, 3, kernel.F16, kernel.F32}, usualMix, false},
		{denseShape{35, d, d, 3, kernel.F16, kernel.F32}, allMixed, true},
		{denseShape{c.Sizes.Heads, d, d, 3, kernel.F16, kernel.F32}, trainedMix, false},
		{denseShape{5, d, d / 2, 2, kernel.F32, kernel.BF16}, allMixed, false},
		{denseShape{5, 48, 40, 3, kernel.BF16, kernel.F16}, allMixed, false},
		{denseShape{5, 192, 64, 2, kernel.F16, kernel.F32}, allMixed, false},
		{denseShape{5, 37, 19, 3, kernel.F16, kernel.F32}, allMixed, true},
	} {
		worst, err := c.packed(p.denseShape, p.mix, p.between)
		if err != nil {
			return fmt.Errorf("packed %+v: %w", p, err)
		}
		name := fmt.Sprintf("compose packed, %d heads %dx%d, %s, T %s, S %s, %s%s: error", p.heads, p.dk, p.dv, plural(p.steps),
			typeName(p.denseShape.t), typeName(p.denseShape.s), p.name, either(p.between, ", plain steps between", ""))
		c.report.AtMost(name, worst, "relative", exactness)
	}
	for _, tr := range []gpuipc.Transition{kernel.Scalar, kernel.Diagonal} {
		c.report.Holds(fmt.Sprintf("compose %s, packed S: same bits as the CPU", transitionName(tr)), c.packedStates(tr))
	}
	return nil
}

// packed composes on the device and in float64 and returns the relative error.
func (c *check) packed(p denseShape, m mix, between bool) (float64, error) {
	state := p.heads * p.dk * p.dv
	stored := denseShape{p.heads, p.dk, p.dv, p.steps, kernel.F32, kernel.F32}
	a, err := c.arena(int64(p.steps*(4*p.heads*p.dk*p.dk+4*state+32*p.heads*(p.dk+64)) + 2*(4*state+512)))
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
	for i := range p.steps {
		plain := between && i%2 == 1
		sigma := 1 / math.Sqrt(float64(p.dk))
		tb, tn, err := c.part(m.t, plain, p.t, p.heads, p.dk, p.dk, sigma)
		if err != nil {
			return 0, err
		}
		sb, sn, err := c.part(m.s, plain, p.s, p.heads, p.dk, p.dv, 1)
		if err != nil {
			return 0, err
		}
		t, err := a.put(tb)
		if err != nil {
			return 0, err
		}
		s, err := a.put(sb)
		if err != nil {
			return 0, err
		}
		job.Steps = append(job.Steps, gpuipc.ComposeStep{T: t.ref(onGPU), TType: p.t, TPacked: !plain, S: s.ref(onGPU), SType: p.s, SPacked: !plain})
		want = denseStep(stored, want, tn, sn)
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

// part returns a part of plain or packed numbers, and the F32 numbers that it stands for.
func (c *check) part(forms []kernel.Form, plain bool, typ gpuipc.DType, heads, rows, cols int, sigma float64) (b, numbers []byte, err error) {
	if plain {
		b = c.random(heads*rows*cols, typ, sigma)
	} else {
		b = c.packedPart(inTurn(forms, heads), typ, rows, cols, sigma)
	}
	f := make([]float32, heads*rows*cols)
	if err := kernel.PartToF32(f, b, typ, !plain, [3]int{heads, rows, cols}); err != nil {
		return nil, nil, err
	}
	numbers = make([]byte, 4*len(f))
	kernel.FromF32(numbers, f, kernel.F32)
	return b, numbers, nil
}

// packedStates composes packed end-states with other kinds of transition on both sides.
func (c *check) packedStates(tr gpuipc.Transition) error {
	heads, dk, dv := 5, c.Sizes.Dim, c.Sizes.Dim/2
	n, factors := heads*dk*dv, heads
	if tr == kernel.Diagonal {
		factors *= dk
	}
	a, err := c.arena(int64(16*n + 8*factors + 8192))
	if err != nil {
		return err
	}
	defer a.close()
	t, err := a.put(c.random(factors, kernel.F32, 1))
	if err != nil {
		return err
	}
	s, err := a.put(c.packedPart(inTurn(everyForm, heads), kernel.F32, dk, dv, 1))
	if err != nil {
		return err
	}
	from, err := a.put(c.random(n, kernel.F32, 1))
	if err != nil {
		return err
	}
	var turn *gpuipc.Rotation
	if tr == kernel.Scalar {
		turn = c.turn(dk)
	}
	out := a.room(int64(4 * n))
	for _, at := range []side{onHost, onGPU} {
		job := gpuipc.ComposeJob{Transition: tr, Heads: heads, DK: dk, DV: dv, From: from.ref(at), Out: out.ref(at), Steps: []gpuipc.ComposeStep{
			{T: t.ref(at), TType: kernel.F32, S: s.ref(at), SType: kernel.F32, SPacked: true, Rotation: turn}}}
		if err := a.device(at).Compose(c.ctx, &job); err != nil {
			return err
		}
	}
	return out.sameBytes()
}

// packedSpeed times compositions of packed segments, alternating with compositions of plain
// segments of the same shapes and with copies of the bytes that are read and written.
func (c *check) packedSpeed(w *stopwatch) error {
	for _, x := range []struct {
		mix
		most float64 // largest permitted time, as a share of that of plain segments; 0 = no bound
	}{
		{usualMix, 1},
		{trainedMix, 1},
		{mix{"S of rank 10", []kernel.Form{kernel.FormInt8}, []kernel.Form{rank(10)}}, 0},
		{mix{"S of rank 32", []kernel.Form{kernel.FormInt8}, []kernel.Form{rank(32)}}, 0},
		{mix{"all in 12 bits", []kernel.Form{kernel.FormInt12}, []kernel.Form{kernel.FormInt12}}, 1.05},
		{mix{"half the heads without T", []kernel.Form{kernel.FormInt8, kernel.FormZero}, []kernel.Form{kernel.FormInt8, kernel.FormInt8, kernel.FormInt12, kernel.FormInt12}}, 0.5},
		// The cost of heads for which no smaller form is accurate enough.
		{mix{"T in 16 bits", []kernel.Form{kernel.FormInt16}, []kernel.Form{kernel.FormInt16}}, 0},
	} {
		if err := c.packedBesidePlain(w, x.mix, x.most); err != nil {
			return err
		}
	}
	return nil
}

func (c *check) packedBesidePlain(w *stopwatch, m mix, most float64) error {
	z := c.Sizes
	t, s := c.partBytes()
	segments, states := int64(z.Layers*z.Segments)*(t+s), int64(z.Layers)*2*s
	plain, err := w.alloc(segments + states)
	if err != nil {
		return err
	}
	if err := w.fill(plain, c.random(1<<20, kernel.F16, 0.05), segments+states); err != nil {
		return err
	}
	jobs := c.layers(uint64(plain), uint64(plain)+uint64(segments), 0, z.Segments)
	besides, err := kernels.Compose(jobs)
	if err != nil {
		return err
	}
	// One segment's parts, repeated.
	tPart := c.packedPart(inTurn(m.t, z.Heads), kernel.F16, z.Dim, z.Dim, 0.05)
	sPart := c.packedPart(inTurn(m.s, z.Heads), kernel.F32, z.Dim, z.Dim, 0.05)
	each := int64(len(tPart) + len(sPart))
	packed, err := w.alloc(each * int64(z.Layers*z.Segments))
	if err != nil {
		return err
	}
	if err := w.fill(packed, slices.Concat(tPart, sPart), each*int64(z.Layers*z.Segments)); err != nil {
		return err
	}
	for l := range jobs {
		for i := range jobs[l].Steps {
			at := uint64(packed) + uint64(each)*uint64(l*z.Segments+i)
			st := &jobs[l].Steps[i]
			st.T, st.TPacked, st.S, st.SPacked = at, int64(len(tPart)), at+uint64(len(tPart)), int64(len(sPart))
		}
	}
	launches, err := kernels.Compose(jobs)
	if err != nil {
		return err
	}
	for _, l := range [][]kernels.Launch{launches, besides} {
		if err := w.prepare(l); err != nil {
			return err
		}
	}
	bytes := each*int64(z.Layers*z.Segments) + states
	byDriver, byKernel, traffic, err := w.copies(bytes)
	if err != nil {
		return err
	}
	took, err := w.medians(z.Rounds, one(func() error { return w.launch(launches) }), one(func() error { return w.launch(besides) }), byDriver, byKernel)
	if err != nil {
		return err
	}
	name := fmt.Sprintf("compose packed, %d layers, %d heads %dx%d, %s, %s", z.Layers, z.Heads, z.Dim, z.Dim, plural(z.Segments), m.name)
	c.report.Share(name, float64(bytes)/took[0]/1e9, float64(traffic)/min(took[2], took[3])/1e9, "GB/s", 0)
	name += fmt.Sprintf(", %.2f of the bytes: time beside plain", float64(bytes)/float64(segments+states))
	c.report.Within(name, took[0]*1e6, took[1]*1e6, "us", most)
	return w.free()
}
