package cuda

import (
	"context"
	"fmt"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda/driver"
	"github.com/spliced-kv/spliced/gpuipc/cuda/kernels"
)

// The cost of a batch is a number of bytes. Work of the host is counted as the bytes that
// the device could move in the same time, which also bounds the tables. An angle costs the
// host 30 ns and takes 8 bytes of tables; a row in a block table takes at most 4 bytes.
const (
	angleBytes    = 256
	tableRowBytes = 128
	pieceRows     = 4 << 20
)

// Rotate copies and rotates the rows of one job.
func (d *device) Rotate(ctx context.Context, job *gpuipc.RotateJob) error {
	if err := d.rotate(ctx, []*gpuipc.RotateJob{job}); err != nil {
		return fmt.Errorf("cuda: %s of %d rows: %w", gpuipc.OpRotate, job.Rows, err)
	}
	return nil
}

// RotateAll runs independent jobs together. It checks each job as Rotate does, and the
// jobs' dense operands against each other. It does not check that the block tables of two
// jobs share no bytes; the caller must make sure of that.
func (d *device) RotateAll(ctx context.Context, jobs []gpuipc.RotateJob) error {
	all := make([]*gpuipc.RotateJob, len(jobs))
	for i := range jobs {
		all[i] = &jobs[i]
	}
	if err := d.rotate(ctx, all); err != nil {
		return fmt.Errorf("cuda: %s of %d jobs: %w", gpuipc.OpRotate, len(jobs), err)
	}
	return nil
}

func (d *device) rotate(ctx context.Context, jobs []*gpuipc.RotateJob) error {
	c := d.checker()
	defer c.letGo()
	var pieces []rotatePiece
	for i, job := range jobs {
		if err := c.Rotate(job); err != nil {
			return fmt.Errorf("job %d: %w", i, err)
		}
		if job.SrcPacked {
			return fmt.Errorf("job %d: packed rows: %w", i, gpuipc.ErrUnavailable)
		}
		base, err := tableBase(job)
		if err != nil {
			return fmt.Errorf("job %d: %w", i, err)
		}
		pieces = append(pieces, d.cutRotation(job, base)...)
	}
	if err := c.Disjoint(); err != nil {
		return err
	}
	return d.on(ctx, func(l *lane) error {
		cost := func(i int) int64 { return pieces[i].cost() }
		return l.batches(ctx, len(pieces), cost, func(first, end int) error {
			return l.batch(func(p *operands) ([]kernels.Launch, error) { return p.rotate(pieces[first:end]) })
		})
	})
}

// rotatePiece is a run of rows of a job.
type rotatePiece struct {
	job       *gpuipc.RotateJob
	base      driver.DevicePtr // address of block 0 of the block table
	row, rows int
}

// cutRotation cuts a job into pieces, so that the tables of each piece are bounded.
func (d *device) cutRotation(job *gpuipc.RotateJob, base driver.DevicePtr) []rotatePiece {
	step := pieceRows
	if p := job.PerRow; p != nil && p.Dims > 0 {
		step = max(1, min(step, d.limits.angles/(p.Dims/2)))
	}
	var out []rotatePiece
	for row := 0; row < job.Rows; row += step {
		out = append(out, rotatePiece{job, base, row, min(step, job.Rows-row)})
	}
	return out
}

// cost returns the bytes that the piece reads and writes, plus the bytes that stand for
// work of the host.
func (r *rotatePiece) cost() int64 {
	n := 2 * int64(r.rows) * rowBytes(r.job)
	if p := r.job.PerRow; p != nil {
		n += int64(r.rows) * int64(p.Dims/2) * angleBytes
	}
	if r.job.Dst.Region != nil {
		n += int64(r.rows) * tableRowBytes
	}
	return n
}

func rowBytes(j *gpuipc.RotateJob) int64 {
	return int64(j.Heads) * int64(j.Dim) * int64(j.Type.Size())
}

// tableBase returns the address of block 0 of a block table. All bytes that the job writes
// must be in one span of the region.
func tableBase(j *gpuipc.RotateJob) (driver.DevicePtr, error) {
	d := &j.Dst
	if d.Region == nil || j.Rows == 0 {
		return 0, nil
	}
	used := d.Blocks[d.FirstRow/d.BlockRows : (d.FirstRow+j.Rows-1)/d.BlockRows+1]
	low, high := used[0], used[0]
	for _, b := range used {
		low, high = min(low, b), max(high, b)
	}
	inBlock := min(d.BlockRows, d.FirstRow%d.BlockRows+j.Rows)
	begin := d.Base + int64(low)*d.BlockStride
	end := d.Base + int64(high)*d.BlockStride + int64(inBlock-1)*d.RowStride + int64(j.Heads-1)*d.HeadStride + int64(j.Dim*j.Type.Size())
	r := d.Region.(*region)
	s := &r.spans[r.spanOf(begin)]
	if r.spanOf(end-1) != r.spanOf(begin) {
		return 0, fmt.Errorf("a block table over several chunks that came as handles, [%d, %d): %w", begin, end, gpuipc.ErrInvalid)
	}
	return s.at + driver.DevicePtr(d.Base) - driver.DevicePtr(s.off), nil
}

func (p *operands) rotate(pieces []rotatePiece) ([]kernels.Launch, error) {
	args := make([]kernels.RotateJob, len(pieces))
	for i := range pieces {
		if err := p.rotatePiece(&args[i], &pieces[i]); err != nil {
			return nil, err
		}
	}
	return kernels.Rotate(args)
}

func (p *operands) rotatePiece(a *kernels.RotateJob, r *rotatePiece) (err error) {
	j := r.job
	*a = kernels.RotateJob{Rows: r.rows, Heads: j.Heads, Dim: j.Dim, Type: j.Type, Turn: j.Turn}
	if j.PerRow != nil {
		turn := *j.PerRow
		turn.Position += r.row
		a.PerRow = &turn
	}
	off, n := int64(r.row)*rowBytes(j), int64(r.rows)*rowBytes(j)
	if a.Src, err = p.read(j.Src.Slice(off, n)); err != nil {
		return err
	}
	if d := &j.Dst; d.Region != nil {
		a.Dst = kernels.RotateTarget{
			Base: uint64(r.base), Blocks: d.Blocks, BlockRows: d.BlockRows, FirstRow: d.FirstRow + r.row,
			BlockStride: d.BlockStride, RowStride: d.RowStride, HeadStride: d.HeadStride,
		}
		return nil
	}
	a.Dst.Base, err = p.write(j.Dst.Rows.Slice(off, n))
	return err
}
