package cuda

import (
	"context"

	"github.com/spliced-kv/spliced/gpuipc/cuda/kernels"
)

// limits bound the work sent to the device between two checks of the context.
type limits struct {
	bytes  int64 // that kernels touch
	angles int   // of rows with positions, made by the host
}

// defaultLimits are 0.5 ms at 2 TB/s, and 30 ms of the host's sines: a table of
// positions should be shared by the jobs of all layers.
var defaultLimits = limits{bytes: 1 << 30, angles: 1 << 20}

// batch resolves operands, launches the kernels that build returns, and copies
// results that straddle extents to their places.
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

// batches runs count jobs in order, as many at once as end and cost allow: cost
// returns what a job touches, in bytes or in the unit of most. The context is
// checked between two batches.
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
