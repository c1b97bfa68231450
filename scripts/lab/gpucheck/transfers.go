package gpucheck

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// transfers compares copies between a pinned host region and the device, as the daemon makes
// them, with plain driver copies of the same pinned memory.
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
	t, err := a.put(c.random(int(n/4), kernel.F32, 1))
	if err != nil {
		return err
	}
	w, err := c.stopwatch()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	rawUp, rawDown, unpin, err := c.rawCopies(w, a.regions[onHost], n)
	if err != nil {
		return err
	}
	defer unpin()
	digests := make([]uint64, gpuipc.Chunks(n))
	paged := [2]gpuipc.Ref{t.paged(onHost), t.paged(onGPU)}
	times, err := c.walls(rawUp, rawDown,
		func() error { return c.gpu.Upload(c.ctx, t.ref(onGPU), t.ref(onHost), nil) },
		func() error { return c.gpu.Upload(c.ctx, t.ref(onGPU), t.ref(onHost), digests) },
		func() error { return c.gpu.Download(c.ctx, t.ref(onHost), t.ref(onGPU), nil) },
		func() error { return c.gpu.Upload(c.ctx, paged[onGPU], paged[onHost], nil) },
		func() error { return c.gpu.Upload(c.ctx, paged[onGPU], paged[onHost], digests) })
	if err != nil {
		return err
	}
	for i, d := range []struct {
		name  string
		least float64
		limit float64
	}{{"upload", 0.9, times[0]}, {"upload, verified on the device", 0, times[0]}, {"download", 0, times[1]},
		{fmt.Sprintf("upload in extents of %d KiB", pageBytes>>10), 0, times[0]},
		{fmt.Sprintf("upload in extents of %d KiB, verified on the device", pageBytes>>10), 0, times[0]}} {
		name := fmt.Sprintf("%s, %d MiB, beside a raw pinned copy", d.name, n>>20)
		c.report.Share(name, float64(n)/times[2+i]/1e9, float64(n)/d.limit/1e9, "GB/s", d.least)
	}
	return t.sameBytes()
}

// pageBytes is the default page size of the daemon's memory on GPUs. An object without
// contiguous pages has extents of this size.
const pageBytes = 64 << 10

// paged returns the tensor as pages in shuffled order, the same on both sides.
func (t tensor) paged(s side) gpuipc.Ref {
	out := gpuipc.Ref{Region: t.a.regions[s]}
	for first := range int64(2) {
		for off := first * pageBytes; off < t.n; off += 2 * pageBytes {
			out.Extents = append(out.Extents, gpuipc.Extent{Off: t.off + off, Len: min(pageBytes, t.n-off)})
		}
	}
	return out
}

// walls runs each function of the list all once in every round, after one warm-up round, and
// returns its median time in seconds by the host's clock.
func (c *check) walls(all ...func() error) ([]float64, error) {
	times := make([][]float64, len(all))
	for round := range c.Sizes.Rounds + 1 {
		for i, f := range all {
			start := time.Now()
			if err := f(); err != nil {
				return nil, fmt.Errorf("copy %d of %d: %w", i+1, len(all), err)
			}
			if round > 0 {
				times[i] = append(times[i], time.Since(start).Seconds())
			}
		}
	}
	out := make([]float64, len(all))
	for i := range times {
		out[i] = median(times[i])
	}
	return out, nil
}

// rawCopies returns two functions that copy n bytes between pinned memory of r and the device,
// one per direction, with the driver alone. Each waits until its copy has ended.
func (c *check) rawCopies(w *stopwatch, r gpuipc.Region, n int64) (up, down func() error, unpin func(), err error) {
	p, err := w.alloc(n)
	if err != nil {
		return nil, nil, nil, err
	}
	views, unpin, err := c.host.Pin(gpuipc.Ref{Region: r, Extents: []gpuipc.Extent{{Off: n, Len: n}}}, true)
	if err != nil {
		return nil, nil, nil, err
	}
	host := unsafe.Pointer(&views[0][0])
	up = func() error {
		return errors.Join(w.current(), w.api.MemcpyHtoDAsync(p, host, n, w.stream), w.api.StreamSynchronize(w.stream))
	}
	down = func() error {
		return errors.Join(w.current(), w.api.MemcpyDtoHAsync(host, p, n, w.stream), w.api.StreamSynchronize(w.stream))
	}
	return up, down, unpin, nil
}

// overhead measures how much longer a request through the accelerator takes than its kernel. The
// request has one layer and one segment, so that the kernel is short.
func (c *check) overhead() (err error) {
	z := c.Sizes
	z.Layers, z.Segments = 1, 1
	state := int64(z.Heads * z.Dim * z.Dim * 4)
	a, err := c.arena(8 * state)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.close()) }()
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
	job := gpuipc.ComposeJob{Transition: kernel.Dense, Heads: z.Heads, DK: z.Dim, DV: z.Dim, Out: out.ref(onGPU),
		Steps: []gpuipc.ComposeStep{{T: t.ref(onGPU), TType: kernel.F16, S: s.ref(onGPU), SType: kernel.F32}}}
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
	c.report.AtMost("compose request beside its kernel, idle GPU, p50", (median(whole)-alone)*1e6, "us", 30)
	return nil
}
