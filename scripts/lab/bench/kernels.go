package bench

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"runtime"
	"time"

	"github.com/spliced-kv/spliced/gpuipc/kernel"
	"github.com/spliced-kv/spliced/scripts/lab/bench/baseline"
	"github.com/spliced-kv/spliced/scripts/lab/bench/machine"
)

// The dense job composes one segment into one layer of 32 value heads of 128 by 128, with T in
// fp16 and S in fp32: 2*32*128^3 operations over 7.2 MB.
const (
	denseHeads = 32
	denseDim   = 128
	denseFlops = 2 * denseHeads * denseDim * denseDim * denseDim
)

// denseJob holds the operands of one layer's compose.
type denseJob struct {
	state []float32
	steps [][]kernel.Step // per head
	sc    *kernel.Scratch
}

func newDenseJob() *denseJob {
	const n = denseDim * denseDim
	r := rand.New(rand.NewPCG(1, 2))
	j := &denseJob{state: make([]float32, denseHeads*n), sc: new(kernel.Scratch)}
	values := make([]float32, n)
	fill := func(scale float32) {
		for i := range values {
			values[i] = scale * (r.Float32() - 0.5)
		}
	}
	for range denseHeads {
		t, s := make([]byte, 2*n), make([]byte, 4*n)
		fill(0.1) // a contraction, so that states stay finite over any number of rounds
		kernel.FromF32(t, values, kernel.F16)
		fill(1)
		kernel.FromF32(s, values, kernel.F32)
		j.steps = append(j.steps, []kernel.Step{{T: t, TType: kernel.F16, S: s, SType: kernel.F32}})
	}
	return j
}

func (j *denseJob) run() {
	const n = denseDim * denseDim
	for h, steps := range j.steps {
		kernel.Compose(kernel.Dense, denseDim, denseDim, j.state[h*n:(h+1)*n], steps, j.sc)
	}
}

// composeRows measures the dense compose on one core against the multiply-add peak, and then
// against OpenBLAS if it is installed. The two comparisons are separate, because each of two
// alternating processes finds cold caches. Every figure is the CPU time of its thread, as in
// scripts/openblas.
func composeRows(_ context.Context, s *session) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	j := newDenseJob()
	ours := func() ([]float64, error) {
		return denseBest(func() (float64, error) { return machine.ThreadSeconds(j.run) })
	}
	sample, err := alternate(s.rounds(60), ours,
		func() ([]float64, error) { return []float64{kernel.PeakFMA(time.Millisecond)}, nil })
	if err != nil {
		return err
	}
	s.add(row("compose_dense_f16", "GFLOP/s", median(sample[0]), median(sample[1]), bar{ratioAtLeast: 0.78}))

	blas, missing := baseline.StartOpenBLAS()
	if missing != "" {
		s.skip("compose_dense_vs_openblas", missing)
		return nil
	}
	sample, err = alternate(s.rounds(60), ours, func() ([]float64, error) { return denseBest(blas.Round) })
	if err := errors.Join(err, blas.Stop()); err != nil {
		return err
	}
	s.add(row("compose_dense_vs_openblas", "ratio", median(sample[0])/median(sample[1]), 0, bar{atLeast: 1}))
	return nil
}

// denseRounds is the number of passes of one round. Only the fastest pass counts: on shared
// cores the other passes measure the load of other programs. PeakFMA does the same.
const denseRounds = 8

// denseBest returns the GFLOP/s of the fastest of denseRounds passes.
func denseBest(pass func() (float64, error)) ([]float64, error) {
	best := math.Inf(1)
	for range denseRounds {
		seconds, err := pass()
		if err != nil {
			return nil, err
		}
		best = min(best, seconds)
	}
	return []float64{denseFlops / best / 1e9}, nil
}

// Rotated rows have two key heads of 256 with 64 rotary dimensions in NeoX order, as in
// Qwen3-Next.
const (
	rotateHeads  = 2
	rotateDim    = 256
	rotateDims   = 64
	rotateRowLen = rotateHeads * rotateDim * 2
)

// rotateRows compares a rotation fused with a copy with a plain copy of the same rows, once for
// rows that fit in a cache and once for many more.
func rotateRows(_ context.Context, s *session) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	turn := kernel.Turn{Dims: rotateDims, Cos: make([]float32, rotateDims/2), Sin: make([]float32, rotateDims/2)}
	for i := range turn.Cos {
		sin, cos := math.Sincos(1000 * math.Pow(1e7, -2*float64(i)/rotateDims))
		turn.Cos[i], turn.Sin[i] = float32(cos), float32(sin)
	}
	for _, size := range []struct {
		name           string
		bytes          int64
		passes, rounds int
	}{{"rotate_bf16_1MiB", 1 << 20, 40, 51}, {"rotate_bf16_128MiB", 128 << 20, 1, 21}} {
		src, dst, plain := filled(size.bytes), filled(size.bytes), filled(size.bytes)
		sample, err := alternate(s.rounds(size.rounds),
			rate(size.passes, size.bytes, func() error {
				kernel.RotateRows(dst, rotateRowLen, rotateDim*2, src, kernel.BF16,
					int(size.bytes/rotateRowLen), rotateHeads, rotateDim, turn)
				return nil
			}),
			rate(size.passes, size.bytes, func() error { copy(plain, src); return nil }),
		)
		if err != nil {
			return err
		}
		s.add(row(size.name, "GB/s", median(sample[0]), median(sample[1]), bar{ratioAtLeast: 0.95}))
	}
	return nil
}

// filled returns memory with bf16 numbers from 0.5 to 2. With numbers near zero, a benchmark
// would measure the processor's handling of subnormals.
func filled(n int64) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = 0x3f
		if i%2 == 0 {
			b[i] = byte(i * 7)
		}
	}
	return b
}
