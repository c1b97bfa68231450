package gpucheck

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda"
)

// someJob is one layer over all segments, small beside the device.
func (c *check) someJob() (*gpuipc.ComposeJob, *arena, error) {
	z := c.Sizes
	state := int64(z.Heads * z.Dim * z.Dim * 4)
	a, err := c.arena(int64(z.Segments+4) * 2 * state)
	if err != nil {
		return nil, nil, err
	}
	job := &gpuipc.ComposeJob{Transition: dense, Heads: z.Heads, DK: z.Dim, DV: z.Dim}
	for range z.Segments {
		t, s := a.room(state/2), a.room(state)
		for _, x := range []tensor{t, s} {
			if err := c.gpu.Store(c.ctx, x.ref(onGPU), make([]byte, x.n)); err != nil {
				return nil, nil, errors.Join(err, a.close())
			}
		}
		job.Steps = append(job.Steps, gpuipc.ComposeStep{T: t.ref(onGPU), TType: half16, S: s.ref(onGPU), SType: float32s})
	}
	job.Out = a.room(state).ref(onGPU)
	return job, a, nil
}

// neighbour asks what the daemon's kernels cost a process that keeps the same
// device busy: its rate alone, beside one compose request a millisecond, and
// beside as many as there can be.
func (c *check) neighbour() (err error) {
	const name = "rate of a busy neighbour process"
	if len(c.Self) == 0 {
		c.report.skip(name, errNoSecond.Error())
		return nil
	}
	p, err := c.start(&message{Role: roleNeighbour})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.end()) }()
	rates := make([]float64, 0, 3)
	for _, every := range []time.Duration{-1, time.Millisecond, 0} {
		rate, err := c.rateBeside(p, every)
		if err != nil {
			return err
		}
		rates = append(rates, rate)
	}
	c.report.add(Row{Name: name + ", alone", Value: rates[0], Unit: "1/s", OK: rates[0] > 0})
	for i, what := range []string{", beside a compose request each ms", ", beside requests without a pause"} {
		c.report.share(name+what, rates[i+1], rates[0], "1/s", 0)
	}
	return nil
}

// rateBeside has the neighbour count while this process makes a request every so
// often; below zero it makes none.
func (c *check) rateBeside(p *peer, every time.Duration) (float64, error) {
	job, a, err := c.someJob()
	if err != nil {
		return 0, err
	}
	ctx, stop := context.WithCancel(c.ctx)
	ended := make(chan error, 1)
	go func() { ended <- c.repeat(ctx, job, every) }()
	err = p.send(&message{Role: roleNeighbour})
	var m *message
	if err == nil {
		m, err = p.receive(c.ctx)
	}
	stop()
	if err = errors.Join(err, <-ended, a.close()); err != nil {
		return 0, err
	}
	return m.Rate, nil
}

func (c *check) repeat(ctx context.Context, job *gpuipc.ComposeJob, every time.Duration) error {
	if every < 0 {
		return nil
	}
	tick := time.NewTicker(max(every, time.Nanosecond))
	defer tick.Stop()
	for ctx.Err() == nil {
		if err := c.gpu.Compose(ctx, job); err != nil && ctx.Err() == nil {
			return fmt.Errorf("compose beside the neighbour: %w", err)
		}
		if every > 0 {
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	}
	return nil
}

// busy composes without a pause, and counts for one window whenever it is asked.
func busy(ctx context.Context, p *peer, m *message) (err error) {
	c := &check{Options: Options{Library: m.Library, Device: m.Device, Sizes: m.Sizes}, ctx: ctx, rng: rand.New(rand.NewPCG(1, 1))}
	if c.host, err = gpuipc.NewHost(gpuipc.HostOptions{}); err != nil {
		return err
	}
	if c.gpu, err = cuda.Open(cuda.Options{Library: m.Library, Device: m.Device}); err != nil {
		return err
	}
	job, a, err := c.someJob()
	if err != nil {
		return err
	}
	for range 3 {
		if _, err := p.receive(ctx); err != nil {
			return err
		}
		n, start := 0, time.Now()
		for time.Since(start) < m.Sizes.Window {
			if err := c.gpu.Compose(ctx, job); err != nil {
				return err
			}
			n++
		}
		if err := p.send(&message{Count: n, Rate: float64(n) / time.Since(start).Seconds()}); err != nil {
			return err
		}
	}
	return errors.Join(a.close(), c.gpu.Close(), c.host.Close())
}
