package cuda

import (
	"context"
	"fmt"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda/kernels"
)

// Replay applies the rows of one job to the states of a layer, in one launch.
func (d *device) Replay(ctx context.Context, job *gpuipc.ReplayJob) error {
	c := d.checker()
	defer c.letGo()
	err := c.Replay(job)
	if err == nil {
		err = c.Disjoint()
	}
	if err == nil {
		err = d.on(ctx, func(l *lane) error {
			return l.batch(func(p *operands) ([]kernels.Launch, error) { return p.replay(job) })
		})
	}
	if err != nil {
		return fmt.Errorf("cuda: %s of %d heads over %d rows: %w", gpuipc.OpReplay, job.Heads, job.Rows, err)
	}
	return nil
}

func (p *operands) replay(job *gpuipc.ReplayJob) ([]kernels.Launch, error) {
	a := kernels.ReplayJob{Heads: job.Heads, KeyHeads: job.KeyHeads, DK: job.DK, DV: job.DV, Rows: job.Rows, PerKey: job.PerKey}
	var err error
	if a.From, a.Out, err = p.states(job.From, job.Out); err != nil {
		return nil, err
	}
	for _, in := range []struct {
		ref gpuipc.Ref
		to  *uint64
	}{{job.Decay, &a.Decay}, {job.K, &a.K}, {job.U, &a.U}} {
		if *in.to, err = p.read(in.ref); err != nil {
			return nil, err
		}
	}
	return kernels.Replay([]kernels.ReplayJob{a})
}

// states returns the addresses of the states before and after a job. They are the same if
// the job works in place.
func (p *operands) states(from, out gpuipc.Ref) (in, to uint64, err error) {
	if !out.Absent() && out.Equal(from) {
		in, err = p.update(out)
		return in, in, err
	}
	if in, err = p.read(from); err != nil {
		return 0, 0, err
	}
	to, err = p.write(out)
	return in, to, err
}
