package plan

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Device is a gpuipc.Device on which plans run.
type Device struct {
	gpuipc.Device
	Place tier.Place
	// Batch, for an accelerator, starts the jobs of a plan together, in as few launches
	// as possible; nil runs each job when it is created.
	Batch gpuipc.Accelerator
	// Failed is called with every error before it is returned; nil = no listener.
	Failed func(error)

	composed, rotated, assembled, replayed atomic.Uint64
}

// check wraps an error of the device in an error of package tier.
func (d *Device) check(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	if d.Failed != nil {
		d.Failed(err)
	}
	return tier.DeviceError(fmt.Sprintf(format, args...), err)
}

// Copy copies bytes without keeping their digests.
func (d *Device) Copy(ctx context.Context, to, from gpuipc.Ref) error {
	digests := make([]uint64, gpuipc.Chunks(from.Len()))
	return d.check(d.CopyDigests(ctx, to, from, digests), "copy states")
}

// jobs are the device jobs of a plan.
//
// Invariant: no job of a plan writes bytes that another job of the same plan reads or
// writes. The only bytes that a job both reads and writes are a layer's state that it
// advances in place.
type jobs struct {
	on       *Device
	composes []gpuipc.ComposeJob
	rotates  []gpuipc.RotateJob
}

func (j *jobs) compose(ctx context.Context, layer int, job *gpuipc.ComposeJob) error {
	if j.on.Batch != nil {
		j.composes = append(j.composes, *job)
		return nil
	}
	return j.on.check(j.on.Compose(ctx, job), "compose layer %d", layer)
}

func (j *jobs) rotate(ctx context.Context, layer int, job *gpuipc.RotateJob) error {
	if j.on.Batch != nil {
		j.rotates = append(j.rotates, *job)
		return nil
	}
	return j.on.check(j.on.Rotate(ctx, job), "rotate layer %d", layer)
}

// finish runs the jobs that were not run yet, and returns when all jobs have ended.
func (j *jobs) finish(ctx context.Context) error {
	if len(j.composes) > 0 {
		err := j.on.check(j.on.Batch.ComposeAll(ctx, j.composes), "compose %d layers", len(j.composes))
		if err != nil {
			return err
		}
	}
	if len(j.rotates) > 0 {
		return j.on.check(j.on.Batch.RotateAll(ctx, j.rotates), "rotate %d parts", len(j.rotates))
	}
	return nil
}
