package gpucheck

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"github.com/spliced-kv/spliced/gpuipc"
)

// transfers compares copies between a pinned host region and the device, as promotions make them,
// with raw pinned copies of the same memory.
func (c *check) transfers() (err error) {
	n := c.Sizes.Copy / 4 / gpuipc.ChunkBytes * gpuipc.ChunkBytes
	n = max(n, gpuipc.ChunkBytes)
	a, err := c.arena(2 * n)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.close()) }()
	detach, err := c.gpu.AttachHost(a.regions[onHost])
	if err != nil {
		return fmt.Errorf("pin a host region of %d bytes: %w", 2*n, err)
	}
	defer func() { err = errors.Join(err, detach()) }()
	t, err := a.put(c.random(int(n/4), float32s, 1))
	if err != nil {
		return err
	}
	raw, err := c.rawCopies(a.regions[onHost], n)
	if err != nil {
		return err
	}
	digests := make([]uint64, gpuipc.Chunks(n))
	for i, d := range []struct {
		name  string
		least float64
		run   func() error
	}{
		{"upload, verified on the device", 0, func() error { return c.gpu.Upload(c.ctx, t.ref(onGPU), t.ref(onHost), digests) }},
		{"upload", 0.9, func() error { return c.gpu.Upload(c.ctx, t.ref(onGPU), t.ref(onHost), nil) }},
		{"download", 0, func() error { return c.gpu.Download(c.ctx, t.ref(onHost), t.ref(onGPU), nil) }},
	} {
		took, err := c.wall(d.run)
		if err != nil {
			return fmt.Errorf("%s: %w", d.name, err)
		}
		limit := raw[0]
		if i == 2 {
			limit = raw[1]
		}
		c.report.share(fmt.Sprintf("%s of %d MiB, against a raw pinned copy", d.name, n>>20), float64(n)/took/1e9, float64(n)/limit/1e9, "GB/s", d.least)
	}
	return t.sameBytes()
}

// wall is the median of rounds, after one to warm up.
func (c *check) wall(f func() error) (float64, error) {
	var times []float64
	for round := range c.Sizes.Rounds + 1 {
		start := time.Now()
		if err := f(); err != nil {
			return 0, err
		}
		if round > 0 {
			times = append(times, time.Since(start).Seconds())
		}
	}
	return median(times), nil
}

// rawCopies times one driver copy each way over memory that is pinned already, in wall time.
func (c *check) rawCopies(r gpuipc.Region, n int64) (t [2]float64, err error) {
	views, unpin, err := c.host.Pin(gpuipc.Ref{Region: r, Extents: []gpuipc.Extent{{Off: n, Len: n}}}, true)
	if err != nil {
		return t, err
	}
	defer unpin()
	w, err := c.stopwatch()
	if err != nil {
		return t, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	p, err := w.alloc(n)
	if err != nil {
		return t, err
	}
	host := unsafe.Pointer(&views[0][0])
	for i, enqueue := range []func() error{
		func() error { return w.api.MemcpyHtoDAsync(p, host, n, w.stream) },
		func() error { return w.api.MemcpyDtoHAsync(host, p, n, w.stream) },
	} {
		if t[i], err = c.wall(func() error { return errors.Join(enqueue(), w.api.StreamSynchronize(w.stream)) }); err != nil {
			return t, err
		}
	}
	return t, nil
}

// overhead is what a request through the accelerator costs beside its kernel: one layer, one
// segment, so that the kernel itself is short.
func (c *check) overhead() error {
	z := c.Sizes
	z.Layers, z.Segments = 1, 1
	state := int64(z.Heads * z.Dim * z.Dim * 4)
	a, err := c.arena(8 * state)
	if err != nil {
		return err
	}
	defer a.close()
	zero := make([]byte, state)
	t, err := a.put(zero[:state/2])
	if err != nil {
		return err
	}
	s, err := a.put(zero)
	if err != nil {
		return err
	}
	out := a.room(state)
	job := gpuipc.ComposeJob{Transition: dense, Heads: z.Heads, DK: z.Dim, DV: z.Dim, Out: out.ref(onGPU),
		Steps: []gpuipc.ComposeStep{{T: t.ref(onGPU), TType: half16, S: s.ref(onGPU), SType: float32s}}}
	var whole []float64
	for range z.Requests {
		start := time.Now()
		if err := c.gpu.Compose(c.ctx, &job); err != nil {
			return err
		}
		whole = append(whole, time.Since(start).Seconds())
	}
	alone, err := c.kernelAlone(z)
	if err != nil {
		return err
	}
	c.report.atMost("compose request beside its kernel, p50", (median(whole)-alone)*1e6, "us", 30)
	return nil
}
