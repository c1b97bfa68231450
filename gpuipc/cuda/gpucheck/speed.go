package gpucheck

import (
	"errors"
	"fmt"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda/driver"
	"github.com/spliced-kv/spliced/gpuipc/cuda/kernels"
	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// The shape of a 35B-A3B hybrid's attention: layers with keys and values, KV heads, their width.
const (
	attentionLayers = 10
	attentionHeads  = 2
	attentionDim    = 256
	attentionBlock  = 16 // tokens
)

// perSegment is the most that one more segment may cost, kernels alone; the paper's end-to-end
// figure is 2.3 ms (HYPIC, Fig. 12 b).
const perSegment = 100e-6

// speed times kernels beside a plain copy of as many bytes, in turn. Inputs are larger than
// caches: those of one launch are not in the L2 when the next one begins.
func (c *check) speed() (err error) {
	w, err := c.stopwatch()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	slope, err := c.composeSpeed(w)
	if err != nil {
		return err
	}
	rotated, err := c.rotateSpeed(w)
	if err != nil {
		return err
	}
	c.report.atMost("one more segment, compose and rotate of all layers", (slope+rotated)*1e6, "us", perSegment*1e6)
	if err := c.replaySpeed(w); err != nil {
		return err
	}
	return c.digestSpeed(w)
}

// copying moves as much memory as a kernel that touches n bytes: it reads n/2 and writes n/2.
func (w *stopwatch) copying(n int64) (func() error, error) {
	from, err := w.alloc(n/2 + 16)
	if err != nil {
		return nil, err
	}
	to, err := w.alloc(n/2 + 16)
	return func() error { return w.api.MemcpyDtoDAsync(to, from, n/2, w.stream) }, err
}

// beside times a kernel that touches n bytes against a copy and reports bytes per second.
func (c *check) beside(w *stopwatch, name string, n int64, launches []kernels.Launch, least float64) (float64, error) {
	if err := w.prepare(launches); err != nil {
		return 0, err
	}
	plain, err := w.copying(n)
	if err != nil {
		return 0, err
	}
	t, err := w.medians(c.Sizes.Rounds, func() error { return w.launch(launches) }, plain)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	c.report.share(name, float64(n)/t[0]/1e9, float64(n)/t[1]/1e9, "GB/s", least)
	return t[0], nil
}

// composeSpeed times all linear layers over growing numbers of segments and gives the seconds
// that one more costs.
func (c *check) composeSpeed(w *stopwatch) (float64, error) {
	z := c.Sizes
	t, s := int64(z.Heads*z.Dim*z.Dim*2), int64(z.Heads*z.Dim*z.Dim*4)
	base, err := w.alloc(int64(z.Layers) * (int64(z.Segments)*(t+s) + 2*s))
	if err != nil {
		return 0, err
	}
	if err := w.fill(base, c.random(1<<20, kernel.F16, 0.05), int64(z.Layers)*(int64(z.Segments)*(t+s)+2*s)); err != nil {
		return 0, err
	}
	var counts, seconds []float64
	for n := 1; n <= z.Segments; n *= 2 {
		launches, err := kernels.Compose(c.layers(base, n, t, s))
		if err != nil {
			return 0, err
		}
		bytes := int64(z.Layers) * (int64(n)*(t+s) + 2*s)
		least := 0.0
		if 2*n > z.Segments {
			least = 0.85
		}
		name := fmt.Sprintf("compose dense, %d layers, %d heads %dx%d, %d segments", z.Layers, z.Heads, z.Dim, z.Dim, n)
		took, err := c.beside(w, name, bytes, launches, least)
		if err != nil {
			return 0, err
		}
		c.report.add(Row{Name: name + ": time", Value: took * 1e6, Unit: "us", OK: true})
		counts, seconds = append(counts, float64(n)), append(seconds, took)
	}
	per := slope(counts, seconds)
	c.report.atMost("compose, one more segment", per*1e6, "us", perSegment*1e6)
	return per, w.free()
}

// layers lays out [layer][segment]{T, S}, then the states before and behind.
func (c *check) layers(base driver.DevicePtr, n int, t, s int64) []kernels.ComposeArgs {
	z := c.Sizes
	jobs := make([]kernels.ComposeArgs, z.Layers)
	for l := range jobs {
		at := uint64(base) + uint64(int64(l)*(int64(z.Segments)*(t+s)+2*s))
		jobs[l] = kernels.ComposeArgs{Transition: kernel.Dense, Heads: z.Heads, DK: z.Dim, DV: z.Dim, From: at, Out: at + uint64(s)}
		at += uint64(2 * s)
		for i := range n {
			step := at + uint64(int64(i)*(t+s))
			jobs[l].Steps = append(jobs[l].Steps, kernels.ComposeStep{T: step, S: step + uint64(t), TType: kernel.F16, SType: kernel.F32})
		}
	}
	return jobs
}

// slope is that of the least squares line.
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

// rotateSpeed scatters the keys and values of all attention layers and segments, keys turned, and
// gives the seconds for one segment.
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
	var jobs []kernels.RotateArgs
	for l := range 2 * attentionLayers {
		for s := range z.Segments {
			job := kernels.RotateArgs{Rows: z.Rows, Heads: attentionHeads, Dim: attentionDim, Type: kernel.BF16,
				Src: uint64(from) + uint64(rows)*uint64(l*z.Segments+s),
				Dst: kernels.RotateTarget{Base: uint64(to) + uint64(layer)*uint64(l), Blocks: table[s*blocks : (s+1)*blocks], BlockTokens: attentionBlock,
					BlockStride: attentionBlock * token, TokenStride: token, HeadStride: attentionDim * 2}}
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
	took, err := c.beside(w, name, 2*total, launches, 0.85)
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
	base, err := w.alloc(total)
	if err != nil {
		return err
	}
	if err := w.fill(base, c.random(1<<18, kernel.F32, 0.5), total); err != nil {
		return err
	}
	var jobs []kernels.ReplayArgs
	for l := range z.Layers {
		at := uint64(base) + uint64(int64(l)*(2*state+buffer))
		decay := at + uint64(2*state)
		k := decay + uint64(rows*4*z.Heads)
		jobs = append(jobs, kernels.ReplayArgs{Heads: z.Heads, KeyHeads: z.Heads / 2, DK: z.Dim, DV: z.Dim, Rows: rows,
			From: at, Out: at + uint64(state), Decay: decay, K: k, U: k + uint64(rows*4*z.Heads/2*z.Dim)})
	}
	launches, err := kernels.Replay(jobs)
	if err != nil {
		return err
	}
	_, err = c.beside(w, fmt.Sprintf("replay of %d tokens, %d layers", rows, z.Layers), total, launches, 0)
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
	launches, err := kernels.Digests([]kernels.DigestArgs{{Src: uint64(src), Bytes: n, Out: uint64(out)}})
	if err != nil {
		return err
	}
	_, err = c.beside(w, "digests", n, launches, 0)
	return errors.Join(err, w.free())
}
