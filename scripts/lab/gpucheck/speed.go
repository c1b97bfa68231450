package gpucheck

import (
	"errors"
	"fmt"
	"math"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda/driver"
	"github.com/spliced-kv/spliced/gpuipc/cuda/kernels"
	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// The shape of the attention of a 35B-A3B hybrid model: number of attention layers, KV heads,
// and dimensions of a head.
const (
	attentionLayers = 10
	attentionHeads  = 2
	attentionDim    = 256
	attentionBlock  = 16 // tokens
)

// perSegment is the largest permitted cost of one more segment, in seconds and for kernels
// alone. The paper's end-to-end figure is 2.3 ms (HYPIC, Fig. 12 b).
const perSegment = 100e-6

// speed times kernels, alternating with plain copies of the same number of bytes. Inputs are
// larger than the L2 cache, so that a launch does not find bytes there that an earlier launch
// has read.
func (c *check) speed() error {
	return c.timedBeside(func(w *stopwatch) error {
		if err := c.plainCopies(w); err != nil {
			return err
		}
		slope, err := c.composeSpeed(w)
		if err != nil {
			return err
		}
		rotated, err := c.rotateSpeed(w)
		if err != nil {
			return err
		}
		c.report.AtMost("one more segment, compose and rotate of all layers", (slope+rotated)*1e6, "us", perSegment*1e6)
		return nil
	})
}

// otherSpeed times the kernels that speed leaves out.
func (c *check) otherSpeed() error {
	return c.timedBeside(func(w *stopwatch) error {
		for _, tr := range []gpuipc.Transition{kernel.Scalar, kernel.Diagonal} {
			if err := c.lightSpeed(w, tr); err != nil {
				return err
			}
		}
		return errors.Join(c.replaySpeed(w), c.digestSpeed(w))
	})
}

// timedBeside calls run with a stopwatch that has a pool for copies. It returns an error if the
// device has too little free memory.
func (c *check) timedBeside(run func(*stopwatch) error) (err error) {
	w, err := c.stopwatch()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	if err := c.enough(w); err != nil {
		return err
	}
	if err := w.openPool(c.Sizes.Copy, c.Sizes.Warm); err != nil {
		return err
	}
	return run(w)
}

// enough checks the free memory: a device that is nearly full has other work too.
func (c *check) enough(w *stopwatch) error {
	free, total, err := w.api.MemInfo()
	if err != nil {
		return err
	}
	t, s := c.partBytes()
	need := 2*c.Sizes.Copy + int64(c.Sizes.Layers)*(2*int64(c.Sizes.Segments)*(t+s)+mostTurns*2*s) // plain and packed segments
	if need > free {
		return fmt.Errorf("%d MiB are needed, %d of %d MiB are free: %w", need>>20, free>>20, total>>20, gpuipc.ErrFull)
	}
	return nil
}

// partBytes returns the sizes of T in fp16 and of S in fp32 of one layer.
func (c *check) partBytes() (t, s int64) {
	n := int64(c.Sizes.Heads * c.Sizes.Dim * c.Sizes.Dim)
	return 2 * n, 4 * n
}

// plainCopies reports the speed of the limits themselves.
func (c *check) plainCopies(w *stopwatch) error {
	byDriver, byKernel, traffic, err := w.copies(2 * c.Sizes.Copy)
	if err != nil {
		return err
	}
	t, err := w.medians(c.Sizes.Rounds, byDriver, byKernel)
	if err != nil {
		return err
	}
	for i, by := range []string{"the driver", "a kernel"} {
		name := fmt.Sprintf("plain copy of %.4g MiB by %s, read and written", float64(traffic)/2/(1<<20), by)
		c.report.Add(Row{Name: name, Value: float64(traffic) / t[i] / 1e9, Unit: "GB/s", OK: true})
	}
	return w.free()
}

// beside times a kernel that reads and writes n bytes in total, and adds a row with its bytes
// per second. The limit is the rate of plain copies. The rate of the kernel divided by the
// limit must be at least the parameter least.
func (c *check) beside(w *stopwatch, name string, n int64, variants [][]kernels.Launch, least float64) (float64, error) {
	return c.besideBound(w, name, n, variants, least, math.Inf(1))
}

// besideBound does what beside does, with bound as a second limit, in bytes per second. The
// lower of the two limits counts.
func (c *check) besideBound(w *stopwatch, name string, n int64, variants [][]kernels.Launch, least, bound float64) (float64, error) {
	x := &timed{}
	for _, launches := range variants {
		if err := w.prepare(launches); err != nil {
			return 0, err
		}
		x.variants = append(x.variants, func() error { return w.launch(launches) })
	}
	byDriver, byKernel, traffic, err := w.copies(n)
	if err != nil {
		return 0, err
	}
	t, err := w.medians(c.Sizes.Rounds, x, byDriver, byKernel)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	c.report.Share(name, float64(n)/t[0]/1e9, min(bound, float64(traffic)/min(t[1], t[2]))/1e9, "GB/s", least)
	return t[0], nil
}

// Dense compose has two limits: moving bytes, and the tensor cores. denseShare is the required
// share of the lower limit. The kernel splits each F32 number of a state into denseProducts
// 16-bit numbers for the tensor cores.
const (
	denseShare    = 0.6
	denseProducts = 2
)

// tensorPeak returns the peak operations per second of the tensor cores on 16-bit numbers with
// 32-bit sums. The figures are from NVIDIA's white papers; +Inf = unknown device.
func (w *stopwatch) tensorPeak() (float64, error) {
	var found [4]int
	for i, a := range []driver.Attribute{driver.CapabilityMajor, driver.CapabilityMinor, driver.Multiprocessors, driver.ClockKHz} {
		var err error
		if found[i], err = w.api.DeviceAttribute(w.device, a); err != nil {
			return 0, err
		}
	}
	// Operations per multiprocessor and clock cycle, by compute capability times 10. A multiply
	// and an add count as two.
	each, known := map[int]float64{80: 2048, 86: 512, 89: 1024, 90: 4096, 100: 8192, 103: 8192}[10*found[0]+found[1]]
	if !known || found[3] == 0 {
		return math.Inf(1), nil
	}
	return each * float64(found[2]) * float64(found[3]) * 1e3, nil
}

// lightSpeed times scalar or diagonal transitions of all layers and segments, which read
// little except S.
func (c *check) lightSpeed(w *stopwatch, tr gpuipc.Transition) error {
	z := c.Sizes
	_, s := c.partBytes()
	t := int64(4 * z.Heads)
	if tr == kernel.Diagonal {
		t *= int64(z.Dim)
	}
	t = (t + 255) / 256 * 256
	segments, states := int64(z.Layers*z.Segments)*(t+s), int64(z.Layers)*2*s
	base, err := w.alloc(segments + states)
	if err != nil {
		return err
	}
	if err := w.fill(base, c.random(1<<20, kernel.F32, 0.5), segments+states); err != nil {
		return err
	}
	var jobs []kernels.ComposeJob
	for l := range z.Layers {
		at := uint64(base) + uint64(segments+int64(2*l)*s)
		job := kernels.ComposeJob{Transition: tr, Heads: z.Heads, DK: z.Dim, DV: z.Dim, From: at, Out: at + uint64(s)}
		for i := range z.Segments {
			step := uint64(base) + uint64(int64(l*z.Segments+i)*(t+s))
			job.Steps = append(job.Steps, kernels.ComposeStep{T: step, S: step + uint64(t), TType: kernel.F32, SType: kernel.F32})
		}
		jobs = append(jobs, job)
	}
	launches, err := kernels.Compose(jobs)
	if err != nil {
		return err
	}
	name := fmt.Sprintf("compose %s, %d layers, %d heads %dx%d, %s", transitionName(tr), z.Layers, z.Heads, z.Dim, z.Dim, plural(z.Segments))
	_, err = c.beside(w, name, segments+states, [][]kernels.Launch{launches}, 0.85)
	return errors.Join(err, w.free())
}

// mostTurns bounds the variants of one kernel's inputs.
const mostTurns = 4

// composeSpeed times the composition of all linear layers over 1 to Sizes.Segments segments, and
// returns the seconds per additional segment.
func (c *check) composeSpeed(w *stopwatch) (float64, error) {
	z := c.Sizes
	t, s := c.partBytes()
	segments := int64(z.Layers) * int64(z.Segments) * (t + s)
	states := int64(z.Layers) * 2 * s
	base, err := w.alloc(segments + mostTurns*states)
	if err != nil {
		return 0, err
	}
	if err := w.fill(base, c.random(1<<20, kernel.F16, 0.05), segments+mostTurns*states); err != nil {
		return 0, err
	}
	peak, err := w.tensorPeak()
	if err != nil {
		return 0, err
	}
	var counts, seconds []float64
	for n := 1; n <= z.Segments; n *= 2 {
		bytes := int64(z.Layers) * (int64(n)*(t+s) + 2*s)
		turns, err := w.turnsPast(bytes, min(mostTurns, z.Segments/n))
		if err != nil {
			return 0, err
		}
		variants := make([][]kernels.Launch, turns)
		for i := range variants {
			jobs := c.layers(uint64(base), uint64(base)+uint64(segments+int64(i)*states), i*n, n)
			if variants[i], err = kernels.Compose(jobs); err != nil {
				return 0, err
			}
		}
		least := 0.0
		if 2*n > z.Segments {
			least = denseShare
		}
		name := fmt.Sprintf("compose dense, %d layers, %d heads %dx%d, %s", z.Layers, z.Heads, z.Dim, z.Dim, plural(n))
		products := denseProducts * 2 * float64(z.Layers*n*z.Heads) * float64(z.Dim*z.Dim*z.Dim)
		took, err := c.besideBound(w, name, bytes, variants, least, float64(bytes)*peak/products)
		if err != nil {
			return 0, err
		}
		c.report.Add(Row{Name: name + ": time", Value: took * 1e6, Unit: "us", OK: true})
		counts, seconds = append(counts, float64(n)), append(seconds, took)
	}
	per := slope(counts, seconds)
	c.report.AtMost("compose, one more segment", per*1e6, "us", perSegment*1e6)
	return per, w.free()
}

// layers returns one compose job per layer, over n segments starting at segment first. memory
// has the layout [layer][segment]{T, S}, and states [layer]{state before, state after}.
func (c *check) layers(memory, states uint64, first, n int) []kernels.ComposeJob {
	z := c.Sizes
	t, s := c.partBytes()
	jobs := make([]kernels.ComposeJob, z.Layers)
	for l := range jobs {
		at := states + uint64(int64(l)*2*s)
		jobs[l] = kernels.ComposeJob{Transition: kernel.Dense, Heads: z.Heads, DK: z.Dim, DV: z.Dim, From: at, Out: at + uint64(s)}
		for i := first; i < first+n; i++ {
			step := memory + uint64(int64(l*z.Segments+i)*(t+s))
			jobs[l].Steps = append(jobs[l].Steps, kernels.ComposeStep{T: step, S: step + uint64(t), TType: kernel.F16, SType: kernel.F32})
		}
	}
	return jobs
}

// slope returns the slope of the least squares line.
func slope(x, y []float64) float64 {
	var mx, my, a, b float64
	for i := range x {
		mx, my = mx+x[i]/float64(len(x)), my+y[i]/float64(len(x))
	}
	for i := range x {
		a, b = a+(x[i]-mx)*(y[i]-my), b+(x[i]-mx)*(x[i]-mx)
	}
	return a / b
}

// rotateSpeed times the kernel that copies keys and values of all attention layers and segments
// into blocks and rotates the keys. It returns the seconds per segment.
func (c *check) rotateSpeed(w *stopwatch) (float64, error) {
	z := c.Sizes
	const token = attentionHeads * attentionDim * 2
	rows := int64(z.Rows) * token
	blocks := (z.Rows + attentionBlock - 1) / attentionBlock
	total := rows * 2 * attentionLayers * int64(z.Segments)
	from, err := w.alloc(total)
	if err != nil {
		return 0, err
	}
	layer := int64(z.Segments*blocks) * attentionBlock * token
	to, err := w.alloc(layer * 2 * attentionLayers)
	if err != nil {
		return 0, err
	}
	if err := w.fill(from, c.random(1<<20, kernel.BF16, 1), total); err != nil {
		return 0, err
	}
	table := make([]uint32, 0, z.Segments*blocks)
	for _, b := range c.rng.Perm(z.Segments * blocks) {
		table = append(table, uint32(b))
	}
	var jobs []kernels.RotateJob
	for l := range 2 * attentionLayers {
		for s := range z.Segments {
			job := kernels.RotateJob{Rows: z.Rows, Heads: attentionHeads, Dim: attentionDim, Type: kernel.BF16,
				Src: uint64(from) + uint64(rows)*uint64(l*z.Segments+s),
				Dst: kernels.RotateTarget{Base: uint64(to) + uint64(layer)*uint64(l), Blocks: table[s*blocks : (s+1)*blocks], BlockRows: attentionBlock,
					BlockStride: attentionBlock * token, RowStride: token, HeadStride: attentionDim * 2}}
			if l%2 == 0 {
				job.Turn = c.sameTurn(attentionDim / 4)
			}
			jobs = append(jobs, job)
		}
	}
	launches, err := kernels.Rotate(jobs)
	if err != nil {
		return 0, err
	}
	name := fmt.Sprintf("rotate into blocks, %d layers, %d segments of %d tokens", attentionLayers, z.Segments, z.Rows)
	took, err := c.beside(w, name, 2*total, [][]kernels.Launch{launches}, 0.85)
	if err != nil {
		return 0, err
	}
	return took / float64(z.Segments), w.free()
}

// replaySpeed rebuilds the states of all layers from a buffer of 16 tokens.
func (c *check) replaySpeed(w *stopwatch) error {
	z := c.Sizes
	const rows = 16
	state := int64(z.Heads * z.Dim * z.Dim * 4)
	buffer := int64(rows * 4 * (z.Heads + z.Heads/2*z.Dim + z.Heads*z.Dim))
	total := int64(z.Layers) * (2*state + buffer)
	turns, err := w.turnsPast(total, mostTurns)
	if err != nil {
		return err
	}
	base, err := w.alloc(total * int64(turns))
	if err != nil {
		return err
	}
	if err := w.fill(base, c.random(1<<18, kernel.F32, 0.5), total*int64(turns)); err != nil {
		return err
	}
	variants := make([][]kernels.Launch, turns)
	for i := range variants {
		var jobs []kernels.ReplayJob
		for l := range z.Layers {
			at := uint64(base) + uint64(int64(i)*total+int64(l)*(2*state+buffer))
			decay := at + uint64(2*state)
			k := decay + uint64(rows*4*z.Heads)
			jobs = append(jobs, kernels.ReplayJob{Heads: z.Heads, KeyHeads: z.Heads / 2, DK: z.Dim, DV: z.Dim, Rows: rows,
				From: at, Out: at + uint64(state), Decay: decay, K: k, U: k + uint64(rows*4*z.Heads/2*z.Dim)})
		}
		if variants[i], err = kernels.Replay(jobs); err != nil {
			return err
		}
	}
	_, err = c.beside(w, fmt.Sprintf("replay of %d tokens, %d layers", rows, z.Layers), total, variants, 0)
	return errors.Join(err, w.free())
}

func (c *check) digestSpeed(w *stopwatch) error {
	n := c.Sizes.Copy / 2
	src, err := w.alloc(n)
	if err != nil {
		return err
	}
	if err := w.fill(src, c.random(1<<18, kernel.F32, 1), n); err != nil {
		return err
	}
	out, err := w.alloc(int64(8 * gpuipc.Chunks(n)))
	if err != nil {
		return err
	}
	launches, err := kernels.Digests([]kernels.DigestJob{{Src: uint64(src), Bytes: n, Out: uint64(out)}})
	if err != nil {
		return err
	}
	_, err = c.beside(w, "digests", n, [][]kernels.Launch{launches}, 0)
	return errors.Join(err, w.free())
}
