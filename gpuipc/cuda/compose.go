package cuda

import (
	"context"
	"fmt"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda/kernels"
)

// Compose applies all steps of one job to the states of a layer. It needs one launch, or a
// few if the job has very many steps.
func (d *device) Compose(ctx context.Context, job *gpuipc.ComposeJob) error {
	if err := d.compose(ctx, []*gpuipc.ComposeJob{job}); err != nil {
		return fmt.Errorf("cuda: %s of %d heads over %d steps: %w", gpuipc.OpCompose, job.Heads, len(job.Steps), err)
	}
	return nil
}

// ComposeAll runs independent jobs in as few launches as their shapes allow. It returns
// ErrInvalid if one job writes what another reads or writes.
func (d *device) ComposeAll(ctx context.Context, jobs []gpuipc.ComposeJob) error {
	all := make([]*gpuipc.ComposeJob, len(jobs))
	for i := range jobs {
		all[i] = &jobs[i]
	}
	if err := d.compose(ctx, all); err != nil {
		return fmt.Errorf("cuda: %s of %d jobs: %w", gpuipc.OpCompose, len(jobs), err)
	}
	return nil
}

func (d *device) compose(ctx context.Context, jobs []*gpuipc.ComposeJob) error {
	c := d.checker()
	defer c.letGo()
	pieces := make([]composePiece, 0, len(jobs))
	for i, job := range jobs {
		if err := c.Compose(job); err != nil {
			return fmt.Errorf("job %d: %w", i, err)
		}
		pieces = d.cutComposition(pieces, job)
	}
	if err := c.Disjoint(); err != nil {
		return err
	}
	return d.on(ctx, func(l *lane) error {
		cost := func(i int) int64 { return pieces[i].cost }
		return l.batches(ctx, len(pieces), cost, func(first, end int) error {
			return l.batch(func(p *operands) ([]kernels.Launch, error) { return p.compose(pieces[first:end]) })
		})
	})
}

// stepBytes is added to the cost of each step, in bytes. It bounds the size of the tables
// that a launch passes, of which each step takes 48 bytes.
const stepBytes = 1024

// composePiece is a run of steps of a job.
type composePiece struct {
	job        *gpuipc.ComposeJob
	first, end int
	cost       int64 // bytes that the piece reads and writes, and stepBytes for each step
}

// cutComposition appends the pieces of a job. That is one piece, or several if the steps
// are too much for one batch. Each piece but the last leaves the state in Out for the next.
// A job without Out has no place for this state, so it is never cut.
func (d *device) cutComposition(pieces []composePiece, job *gpuipc.ComposeJob) []composePiece {
	state := job.From.Len() + job.Out.Len()
	p := composePiece{job: job, cost: state}
	for i := range job.Steps {
		in := &job.Steps[i]
		n := in.T.Len() + in.S.Len() + in.Before.Len() + stepBytes
		if in.Rotation != nil {
			n += int64(len(in.Rotation.Cos)) * angleBytes
		}
		if p.cost+n > d.limits.bytes && i > p.first && !job.Out.Absent() {
			p.end = i
			pieces = append(pieces, p)
			p = composePiece{job: job, first: i, cost: 2 * job.Out.Len()}
		}
		p.cost += n
	}
	p.end = len(job.Steps)
	return append(pieces, p)
}

// compose returns the launches of the pieces of one batch. A batch never has two pieces of
// the same job, because a job is cut only where the two pieces do not fit one batch.
func (p *operands) compose(pieces []composePiece) ([]kernels.Launch, error) {
	args := make([]kernels.ComposeJob, len(pieces))
	for i := range pieces {
		if err := p.composePiece(&args[i], &pieces[i]); err != nil {
			return nil, err
		}
	}
	return kernels.Compose(args)
}

func (p *operands) composePiece(a *kernels.ComposeJob, c *composePiece) (err error) {
	job := c.job
	*a = kernels.ComposeJob{Transition: job.Transition, Heads: job.Heads, DK: job.DK, DV: job.DV}
	from := job.From
	if c.first > 0 {
		from = job.Out
	}
	if a.From, a.Out, err = p.states(from, job.Out); err != nil {
		return err
	}
	a.Steps = make([]kernels.ComposeStep, c.end-c.first)
	for i := range a.Steps {
		in, to := &job.Steps[c.first+i], &a.Steps[i]
		to.TType, to.SType, to.Rotation = in.TType, in.SType, in.Rotation
		if in.TPacked {
			to.TPacked = in.T.Len()
		}
		if in.SPacked {
			to.SPacked = in.S.Len()
		}
		if to.T, err = p.read(in.T); err != nil {
			return err
		}
		if to.S, err = p.read(in.S); err != nil {
			return err
		}
		if to.Before, err = p.write(in.Before); err != nil {
			return err
		}
	}
	return nil
}
