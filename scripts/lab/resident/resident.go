// Package resident measures how an engine uses a daemon with GPU memory. A temporary daemon
// shares the memory; this process is the engine. It publishes a segment in host memory, has it
// copied to the GPU, leases it there repeatedly, and lets the daemon compose it. It compares all
// results with the published data and with the CPU.
package resident

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spliced-kv/spliced/api/child"
	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/scripts/lab/gpucheck"
)

// Options configures the check.
type Options struct {
	Daemon  string // path of spliced; empty = child.Find
	Library string // of the driver
	Device  string // UUID; empty = the first
	Seed    uint64
	Sizes   gpucheck.Sizes
	// Python, PythonPath and Scripts are as in gpucheck.Options.
	Python, PythonPath, Scripts string
	Model                       string // directory of a small model
}

// Part returns the check as a part that runs together with the parts of package gpucheck.
func Part(o Options) gpucheck.Part {
	return gpucheck.Part{Name: "a daemon with memory of the GPU", Limit: 10 * time.Second, Run: func(ctx context.Context, r *gpucheck.Report) error {
		b, err := open(ctx, o)
		if err != nil {
			return err
		}
		return errors.Join(b.measure(ctx, r), b.close())
	}}
}

// acquireBar is the largest permitted p50 of an acquire of a segment on the GPU, in
// microseconds.
const acquireBar = 40

// patience bounds a request that copies or computes.
const patience = 20 * time.Second

// bench is a daemon, a client of it and the client's device.
type bench struct {
	Options
	daemon *child.Daemon
	device gpuipc.Accelerator
	client *connector.Client
	model  *connector.Model
	segment
}

func open(ctx context.Context, o Options) (b *bench, err error) {
	b = &bench{Options: o}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close())
		}
	}()
	p, err := modelOf(o.Sizes)
	if err != nil {
		return b, err
	}
	b.segment = newSegment(p, o.Sizes.Rows, o.Seed)
	room := fmt.Sprint(max(64<<20, int64(segments(o.Sizes)+2)*b.layout.Bytes))
	states := fmt.Sprint(max(16<<20, 4*p.StatesLayout(profile.AllLayers, 0).Bytes)) // for a client's slots and the inputs of plans
	b.daemon, err = child.Start(ctx, child.Options{Binary: o.Daemon, Args: []string{"-arena", room, "-private", "16MiB",
		"-hbm-public", room, "-hbm-private", "16MiB", "-hbm-client", states, "-slots", states, "-hbm-library", o.Library, "-hbm-device", o.Device, "-hbm-timeout", patience.String()}})
	if err != nil {
		return b, err
	}
	if b.device, err = cuda.Open(cuda.Options{Library: o.Library, Device: o.Device}); err != nil {
		return b, err
	}
	b.client, err = connector.Open(connector.Options{Socket: b.daemon.Socket, Name: "splicectl gpu-check", Device: b.device,
		Timeouts: connector.Timeouts{Lookup: patience, Transfer: patience, Attach: patience}})
	if err != nil {
		return b, err
	}
	if err := b.client.WaitAttached(ctx); err != nil {
		return b, err
	}
	if b.model, err = b.client.Register(p, connector.Binding{Connector: "splicectl gpu-check"}); err != nil {
		return b, err
	}
	return b, b.model.WaitReady(ctx)
}

// close closes everything that open has started. It closes the client before the device, because
// the client maps memory with the device.
func (b *bench) close() error {
	var errs []error
	if b.client != nil {
		errs = append(errs, b.client.Close())
	}
	if b.device != nil {
		errs = append(errs, b.device.Close())
	}
	if b.daemon != nil {
		errs = append(errs, b.daemon.Stop())
	}
	return errors.Join(errs...)
}

func (b *bench) measure(ctx context.Context, r *gpucheck.Report) error {
	if b.client.Kernels() == nil {
		return b.notShared(ctx)
	}
	key, err := b.publish(ctx, b.segment)
	if err != nil {
		return err
	}
	start := time.Now()
	lease, err := b.acquire(ctx, key, patience)
	if err != nil {
		return err
	}
	b.key = key
	name := fmt.Sprintf("first acquire of a segment of %.1f MiB, with its copy to the GPU", float64(b.layout.Bytes)/(1<<20))
	r.Add(gpucheck.Row{Name: name, Value: microseconds(start), Unit: "us", OK: true})
	r.Holds("a segment on the GPU has the published bytes", b.same(ctx, lease))
	r.Holds("compose by the daemon over a segment on the GPU: as in memory", b.composed(ctx, lease))
	lease.Release()
	return errors.Join(b.copies(ctx, r), b.acquires(ctx, r))
}

// publish stores a segment in memory.
func (b *bench) publish(ctx context.Context, s segment) (key profile.SegmentKey, err error) {
	stored, err := b.model.Put(ctx, &connector.PutQuery{Spec: s.spec, Tokens: s.tokens, Source: connector.Source{Parts: s.parts}})
	if err == nil && !stored.Published {
		err = errors.New("the segment was not published")
	}
	if err != nil {
		return key, err
	}
	key, ok := b.model.SegmentKey(s.spec, s.tokens)
	if !ok {
		return key, errors.New("no salt of the tenant")
	}
	return key, nil
}

// copies times the first acquire of each of some further segments, which copies the segment to
// the GPU. The daemon's streams and kernels exist by then.
func (b *bench) copies(ctx context.Context, r *gpucheck.Report) error {
	var samples []float64
	for i := range segments(b.Sizes) {
		key, err := b.publish(ctx, newSegment(b.profile, b.Sizes.Rows, b.Seed+1+uint64(i)))
		if err != nil {
			return fmt.Errorf("segment %d: %w", i+1, err)
		}
		start := time.Now()
		lease, err := b.acquire(ctx, key, patience)
		if err != nil {
			return fmt.Errorf("segment %d: %w", i+1, err)
		}
		samples = append(samples, microseconds(start))
		lease.Release()
	}
	p50 := quantile(samples, 0.5)
	r.Add(gpucheck.Row{Name: "acquire of a further segment, with its copy to the GPU, p50", Value: p50, Unit: "us", OK: true})
	r.Add(gpucheck.Row{Name: "the same as bytes a second", Value: float64(b.layout.Bytes) / p50 / 1e3, Unit: "GB/s", OK: true})
	return nil
}

// notShared returns the daemon's reason for not sharing GPU memory.
func (b *bench) notShared(ctx context.Context) error {
	status, err := b.daemon.API().Status(ctx)
	if err != nil {
		return err
	}
	for _, check := range status.Checks {
		if check.Name == "hbm" && check.Detail != "" {
			return fmt.Errorf("the daemon shares no memory of the GPU: %s", check.Detail)
		}
	}
	return errors.New("the daemon's memory of the GPU could not be mapped here")
}

func (b *bench) acquire(ctx context.Context, key profile.SegmentKey, wait time.Duration) (*connector.DeviceLease, error) {
	rows, err := b.model.AcquireDevice(ctx, []profile.SegmentKey{key}, connector.AcquireOptions{Wait: wait})
	if err != nil {
		return nil, err
	}
	return rows[0].Lease, rows[0].Err
}

// acquires times acquires of a segment that is on the GPU. The release is not included.
func (b *bench) acquires(ctx context.Context, r *gpucheck.Report) error {
	const warm = 20
	samples := make([]float64, 0, b.Sizes.Requests)
	for i := range b.Sizes.Requests + warm {
		start := time.Now()
		lease, err := b.acquire(ctx, b.key, 0)
		took := microseconds(start)
		if err != nil {
			return fmt.Errorf("acquire %d of what is on the GPU: %w", i, err)
		}
		lease.Release()
		if i >= warm {
			samples = append(samples, took)
		}
	}
	r.AtMost(fmt.Sprintf("acquire of a segment of %.4g MiB on the GPU, p50", float64(b.layout.Bytes)/(1<<20)), quantile(samples, 0.5), "us", acquireBar)
	r.Add(gpucheck.Row{Name: "acquire of a segment on the GPU, p99", Value: quantile(samples, 0.99), Unit: "us", OK: true})
	return nil
}

func microseconds(since time.Time) float64 { return float64(time.Since(since).Nanoseconds()) / 1e3 }
