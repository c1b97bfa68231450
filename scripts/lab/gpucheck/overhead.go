package gpucheck

import (
	"errors"

	"github.com/spliced-kv/spliced/gpuipc/cuda/kernels"
	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// kernelAlone returns the seconds of the kernel of a request, timed on the device without the
// host. As in a repeated request, the inputs are in the L2 cache.
func (c *check) kernelAlone(z Sizes) (alone float64, err error) {
	w, err := c.stopwatch()
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	t, s := int64(z.Heads*z.Dim*z.Dim*2), int64(z.Heads*z.Dim*z.Dim*4)
	if err := w.openPool(z.Copy, z.Warm/4); err != nil {
		return 0, err
	}
	base, err := w.alloc(t + 2*s)
	if err != nil {
		return 0, err
	}
	if err := w.fill(base, make([]byte, 1<<16), t+2*s); err != nil {
		return 0, err
	}
	launches, err := kernels.Compose([]kernels.ComposeJob{{Transition: kernel.Dense, Heads: z.Heads, DK: z.Dim, DV: z.Dim, Out: uint64(base),
		Steps: []kernels.ComposeStep{{T: uint64(base) + uint64(s), S: uint64(base) + uint64(s+t), TType: kernel.F16, SType: kernel.F32}}}})
	if err != nil {
		return 0, err
	}
	if err := w.prepare(launches); err != nil {
		return 0, err
	}
	m, err := w.medians(z.Rounds, one(func() error { return w.launch(launches) }))
	if err != nil {
		return 0, err
	}
	return m[0], nil
}
