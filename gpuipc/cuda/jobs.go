package cuda

import (
	"context"

	"github.com/spliced-kv/spliced/gpuipc/cuda/kernels"
)

// limits bounds the work that is sent to the device between two checks of the context.
type limits struct {
	bytes  int64 // bytes that kernels read and write
	angles int   // angles that the host computes for rows with positions
}

// defaultLimits allow 1 GiB of memory traffic, which takes 0.5 ms at 2 TB/s, and as many
// angles as the host computes in 30 ms. The jobs of all layers should share one table of
// positions, so that its angles are computed only once.
var defaultLimits = limits{bytes: 1 << 30, angles: 1 << 20}

// batch calls build, which resolves the operands of the jobs, and launches the kernels that
// build returns. Then batch copies each result from scratch memory to its place, if that
// place has several addresses.
func (l *lane) batch(build func(p *operands) ([]kernels.Launch, error)) error {
	p := &operands{lane: l}
	launches, err := build(p)
	if err != nil {
		return err
	}
	if err := l.launch(launches); err != nil {
		return err
	}
	return p.scatter()
}

// batches runs jobs in order, in batches that are as large as limits.bytes allows. The
// number of jobs is count. The function run executes the jobs [first, end) as one batch.
// The function cost returns the bytes that a job reads and writes. The context is checked
// between two batches.
func (l *lane) batches(ctx context.Context, count int, cost func(i int) int64, run func(first, end int) error) error {
	for first := 0; first < count; {
		if first > 0 {
			if err := l.drain(); err != nil {
				return err
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			l.scratch.reset(l)
		}
		end, sum := first, int64(0)
		for end < count && (end == first || sum+cost(end) <= l.dev.limits.bytes) {
			sum += cost(end)
			end++
		}
		if err := run(first, end); err != nil {
			return err
		}
		first = end
	}
	return nil
}
