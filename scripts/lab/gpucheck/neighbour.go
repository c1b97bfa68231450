package gpucheck

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda/kernels"
	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// someJob returns one layer over all segments, small for the device.
func (c *check) someJob() (*gpuipc.ComposeJob, *arena, error) {
	z := c.Sizes
	state := int64(z.Heads * z.Dim * z.Dim * 4)
	a, err := c.arena(int64(z.Segments+4) * 2 * state)
	if err != nil {
		return nil, nil, err
	}
	job := &gpuipc.ComposeJob{Transition: kernel.Dense, Heads: z.Heads, DK: z.Dim, DV: z.Dim}
	for range z.Segments {
		t, s := a.room(state/2), a.room(state)
		for _, x := range []tensor{t, s} {
			if err := c.gpu.Store(c.ctx, x.ref(onGPU), make([]byte, x.n)); err != nil {
				return nil, nil, errors.Join(err, a.close())
			}
		}
		job.Steps = append(job.Steps, gpuipc.ComposeStep{T: t.ref(onGPU), TType: kernel.F16, S: s.ref(onGPU), SType: kernel.F32})
	}
	job.Out = a.room(state).ref(onGPU)
	return job, a, nil
}

// neighbour measures how the daemon's work affects another process that keeps the same device
// busy. It measures the rate of that process alone, next to one compose request per millisecond,
// next to as many compose requests as possible, and next to continuous copies from host memory.
func (c *check) neighbour() (err error) {
	const name = "rate of a busy neighbour process"
	if len(c.Self) == 0 {
		c.report.Skip(name, errNoSecond.Error())
		return nil
	}
	p, err := c.start(&message{Role: roleNeighbour})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.end()) }()
	compose, a, err := c.someJob()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.close()) }()
	upload, detach, err := c.someUpload()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, detach()) }()
	request := func(ctx context.Context) error { return c.gpu.Compose(ctx, compose) }
	var alone float64
	for i, work := range []struct {
		name  string
		run   func(context.Context) error
		every time.Duration
		took  string // name of the row for the requests' times
	}{
		{", alone", nil, 0, ""},
		{", beside a compose request each ms", request, time.Millisecond, "compose request beside a busy neighbour process"},
		{", beside compose requests without a pause", request, 0, ""},
		{", beside copies from memory without a pause", upload, 0, ""},
	} {
		rate, took, err := c.rateBeside(p, work.run, work.every)
		if err != nil {
			return fmt.Errorf("%s%s: %w", name, work.name, err)
		}
		if i == 0 {
			alone = rate
			c.report.Add(Row{Name: name + work.name, Value: rate, Unit: "1/s", OK: rate > 0})
			continue
		}
		c.report.Share(name+work.name, rate, alone, "1/s", 0)
		if work.took != "" {
			c.latency(work.took, took)
		}
	}
	return nil
}

// latency adds rows with the times of requests next to the neighbour, by the host's clock. The
// rows have no bar: without MPS, a request must wait until the device has switched to this
// process.
func (c *check) latency(name string, took []float64) {
	slices.Sort(took)
	for _, q := range []struct {
		name string
		part float64
	}{{", p50", 0.5}, {", p99", 0.99}} {
		row := Row{Name: name + q.name, Unit: "us", OK: len(took) > 0}
		if len(took) > 0 {
			row.Value = took[int(q.part*float64(len(took)-1))] * 1e6
		}
		c.report.Add(row)
	}
}

// someUpload returns a copy from pinned memory, and a function that frees everything.
func (c *check) someUpload() (run func(context.Context) error, end func() error, err error) {
	n := max(gpuipc.ChunkBytes, c.Sizes.Copy/16)
	a, err := c.arena(n)
	if err != nil {
		return nil, nil, err
	}
	detach, err := c.gpu.AttachHost(a.regions[onHost])
	if err != nil {
		return nil, nil, errors.Join(err, a.close())
	}
	t := a.room(n)
	run = func(ctx context.Context) error { return c.gpu.Upload(ctx, t.ref(onGPU), t.ref(onHost), nil) }
	return run, func() error { return errors.Join(detach(), a.close()) }, nil
}

// rateBeside returns the neighbour's rate while this process calls work again and again; if work
// is nil, this process does nothing. The parameter every is the time between the starts of two
// calls; 0 = no pause. took has the seconds of each call that ended during the measurement.
func (c *check) rateBeside(p *peer, work func(context.Context) error, every time.Duration) (rate float64, took []float64, err error) {
	ctx, stop := context.WithCancel(c.ctx)
	ended := make(chan error, 1)
	go func() {
		var err error
		took, err = repeat(ctx, work, every)
		ended <- err
	}()
	err = p.send(&message{Role: roleNeighbour})
	var m *message
	if err == nil {
		m, err = p.receive(c.ctx)
	}
	stop()
	if err = errors.Join(err, <-ended); err != nil {
		return 0, nil, err
	}
	return m.Rate, took, nil
}

// repeat calls the function work again and again until ctx ends. It returns the seconds of each
// call except the call during which ctx ended.
func repeat(ctx context.Context, work func(context.Context) error, every time.Duration) (took []float64, err error) {
	if work == nil {
		return nil, nil
	}
	tick := time.NewTicker(max(every, time.Nanosecond))
	defer tick.Stop()
	for ctx.Err() == nil {
		start := time.Now()
		err := work(ctx)
		if err != nil && ctx.Err() == nil {
			return nil, fmt.Errorf("work beside the neighbour: %w", err)
		}
		if ctx.Err() == nil {
			took = append(took, time.Since(start).Seconds())
		}
		if every > 0 {
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	}
	return took, nil
}

// neighbourWindows is the number of measurements, each over one window. neighbourBatch is the
// number of launches that the neighbour keeps on its stream, so that the device always has work
// to do for it.
const (
	neighbourWindows = 4
	neighbourBatch   = 8
)

// busy is the neighbour process: it launches compose kernels continuously. On each message it
// counts launches for one window and replies with the rate.
func busy(ctx context.Context, p *peer, m *message) (err error) {
	c := &check{Options: Options{Library: m.Library, Device: m.Device, Sizes: m.Sizes}, ctx: ctx, rng: rand.New(rand.NewPCG(1, 1))}
	c.Sizes.Layers = min(c.Sizes.Layers, 4)
	w, err := c.stopwatch()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	t, s := c.partBytes()
	layers, segments := int64(c.Sizes.Layers), int64(c.Sizes.Segments)
	total := layers * (segments*(t+s) + 2*s)
	base, err := w.alloc(total)
	if err != nil {
		return err
	}
	if err := w.fill(base, make([]byte, 1<<20), total); err != nil {
		return err
	}
	launches, err := kernels.Compose(c.layers(uint64(base), uint64(base)+uint64(layers*segments*(t+s)), 0, c.Sizes.Segments))
	if err != nil {
		return err
	}
	if err := w.prepare(launches); err != nil {
		return err
	}
	for range neighbourWindows {
		if _, err := p.receive(ctx); err != nil {
			return err
		}
		n, start := 0, time.Now()
		for time.Since(start) < c.Sizes.Window {
			for range neighbourBatch {
				if err := w.launch(launches); err != nil {
					return err
				}
			}
			if err := w.api.StreamSynchronize(w.stream); err != nil {
				return err
			}
			n += neighbourBatch
		}
		if err := p.send(&message{Count: n, Rate: float64(n) / time.Since(start).Seconds()}); err != nil {
			return err
		}
	}
	return nil
}
