package cuda

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda/driver"
	"github.com/spliced-kv/spliced/gpuipc/cuda/kernels"
	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// BenchmarkComposeOverhead compares a request to compose with what its kernel
// takes from its start to its end on the stream, on the fake driver. The kernels
// run on the processor there, so the jobs are small; the difference, which is
// checks, tables, launch and waiting, does not depend on that.
func BenchmarkComposeOverhead(b *testing.B) {
	for _, shape := range []struct {
		name         string
		transition   gpuipc.Transition
		heads, steps int
	}{
		{"scalar/steps=1", kernel.Scalar, 2, 1},
		{"scalar/steps=8", kernel.Scalar, 2, 8},
		{"diagonal/steps=8", kernel.Diagonal, 2, 8},
		{"dense/steps=2", kernel.Dense, 1, 2},
	} {
		b.Run(shape.name, func(b *testing.B) {
			d, _ := openFake(b, Options{})
			job := benchJob(b, d, shape.transition, shape.heads, shape.steps)
			if err := d.Compose(b.Context(), job); err != nil { // the first compiles
				b.Fatal(err)
			}
			var requests, alone []time.Duration
			for b.Loop() { // in turn, so that both see the same machine
				start := time.Now()
				must(b, d.Compose(b.Context(), job))
				requests = append(requests, time.Since(start))
				alone = append(alone, kernelTime(b, d, job))
			}
			slices.Sort(requests)
			slices.Sort(alone)
			request, own := requests[len(requests)/2], alone[len(alone)/2]
			b.ReportMetric(0, "ns/op") // of both together
			b.ReportMetric(micros(request), "request-p50-us")
			b.ReportMetric(micros(own), "kernel-p50-us")
			b.ReportMetric(micros(request-own), "overhead-p50-us")
		})
	}
}

func micros(t time.Duration) float64 { return float64(t.Nanoseconds()) / 1000 }

// benchJob is one layer of 16 by 16 states, all operands in one region.
func benchJob(b *testing.B, d *device, tr gpuipc.Transition, heads, steps int) *gpuipc.ComposeJob {
	const dk, dv = 16, 16
	r := newRegion(b, d, gpuipc.RegionSpec{Bytes: 1 << 20})
	rng := rand.New(rand.NewPCG(1, 2))
	next := int64(0)
	tensor := func(n int, dt gpuipc.DType) gpuipc.Ref {
		f := make([]float32, n)
		for i := range f {
			f[i] = float32(rng.NormFloat64() / 4)
		}
		raw := make([]byte, n*dt.Size())
		kernel.FromF32(raw, f, dt)
		ref := at(r, next, int64(len(raw)))
		next = (next + int64(len(raw)) + 255) / 256 * 256
		must(b, d.Store(b.Context(), ref, raw))
		return ref
	}
	job := &gpuipc.ComposeJob{Transition: tr, Heads: heads, DK: dk, DV: dv, From: tensor(heads*dk*dv, kernel.F32), Out: tensor(heads*dk*dv, kernel.F32)}
	for range steps {
		st := gpuipc.ComposeStep{TType: kernel.F16, SType: kernel.F32, S: tensor(heads*dk*dv, kernel.F32)}
		switch tr {
		case kernel.Scalar:
			st.TType = kernel.F32
			st.T = tensor(heads, kernel.F32)
		case kernel.Diagonal:
			st.T = tensor(heads*dk, kernel.F16)
		default:
			st.T = tensor(heads*dk*dk, kernel.F16)
		}
		job.Steps = append(job.Steps, st)
	}
	return job
}

// kernelTime is what the kernel of a job takes, by events around it on a stream
// where nothing else waits.
func kernelTime(b *testing.B, d *device, job *gpuipc.ComposeJob) (took time.Duration) {
	err := d.on(b.Context(), func(l *lane) error {
		var events [2]driver.Event
		for i := range events {
			var err error
			if events[i], err = d.api.EventCreate(0); err != nil {
				return err
			}
			defer func() { _ = d.api.EventDestroy(events[i]) }()
		}
		p := &operands{lane: l}
		launches, err := p.compose([]composePiece{{job: job, end: len(job.Steps)}})
		if err != nil {
			return err
		}
		took, err = l.timed(events, launches)
		return err
	})
	must(b, err)
	return took
}

// timed has the events stand directly around the kernels. They queue up behind
// something long, so that no time between them is the host's.
func (l *lane) timed(events [2]driver.Event, launches []kernels.Launch) (time.Duration, error) {
	if err := l.place(launches); err != nil {
		return 0, err
	}
	if err := l.drain(); err != nil {
		return 0, err
	}
	const long = 4 << 20
	room, err := l.scratch.take(l, long)
	if err != nil {
		return 0, err
	}
	api := l.dev.api
	l.busy = true
	if err := api.MemsetD8Async(room, 0, long, l.stream); err != nil {
		return 0, err
	}
	if err := api.EventRecord(events[0], l.stream); err != nil {
		return 0, err
	}
	for i := range launches {
		if err := l.start(&launches[i]); err != nil {
			return 0, err
		}
	}
	if err := api.EventRecord(events[1], l.stream); err != nil {
		return 0, err
	}
	if err := l.drain(); err != nil {
		return 0, err
	}
	ms, err := api.EventElapsed(events[0], events[1])
	return time.Duration(float64(ms) * float64(time.Millisecond)), err
}
