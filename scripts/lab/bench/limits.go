package bench

import (
	"context"
	"errors"
	"github.com/spliced-kv/spliced/scripts/lab/bench/baseline"
	"github.com/spliced-kv/spliced/scripts/lab/bench/machine"
)

// limits measures the disk of a tier with fio and with our own loop. Both use one file again and
// again, as the tier does. Without fio, the loop is the limit of all rows.
type limits struct {
	fio    *baseline.Fio
	path   string
	memory []byte // for our loop
}

// newLimits creates a file as large as the coming transfers. The first pass over the file is not
// measured, because the file system takes longer to write extents for the first time.
func newLimits(ctx context.Context, s *session, d *machine.Scratch, bytes int64) (*limits, error) {
	path, err := d.Fallocated("limit", bytes)
	if err != nil {
		return nil, err
	}
	l := &limits{path: path}
	if l.memory, err = machine.PageAligned(bytes); err != nil {
		return nil, err
	}
	first := baseline.Transfer{Path: path, Write: true, Bytes: bytes, Block: 1 << 20, Workers: 1}
	if _, err := first.Run(ctx, l.memory); err != nil {
		return nil, errors.Join(err, l.free())
	}
	f, err := baseline.FindFio()
	if err == nil {
		_, err = f.Run(ctx, first)
	}
	switch {
	case ctx.Err() != nil:
		return nil, errors.Join(ctx.Err(), l.free())
	case err != nil:
		s.skipOnce("fio", err.Error()+": our own loop is the limit instead")
	default:
		l.fio = &f
	}
	return l, nil
}

// free unmaps the memory; the file is removed with its directory.
func (l *limits) free() error { return machine.Unmap(l.memory) }

// byFio returns a figure measured by fio; without fio it has no samples.
func (l *limits) byFio(ctx context.Context, t baseline.Transfer) func() ([]float64, error) {
	t.Path = l.path
	return func() ([]float64, error) {
		if l.fio == nil {
			return nil, nil
		}
		p, err := l.fio.Run(ctx, t)
		return []float64{p.Rate()}, err
	}
}

// byLoop returns a figure measured by our own loop.
func (l *limits) byLoop(ctx context.Context, t baseline.Transfer) func() ([]float64, error) {
	t.Path = l.path
	return func() ([]float64, error) {
		p, err := t.Run(ctx, l.memory)
		return []float64{p.Rate()}, err
	}
}

// best returns the limit of a row: fio's, or the loop's without fio.
func best(byFio, byLoop []float64) float64 {
	if len(byFio) > 0 {
		return median(byFio)
	}
	return median(byLoop)
}
