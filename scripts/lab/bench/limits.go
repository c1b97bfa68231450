package bench

import (
	"context"
	"errors"
	"github.com/spliced-kv/spliced/scripts/lab/bench/baseline"
	"github.com/spliced-kv/spliced/scripts/lab/bench/machine"
)

// limits measures what fio and our own loop get from the disk that a tier is on,
// in files that are used again as the tier's are. Without fio our loop is the
// limit of all rows.
type limits struct {
	fio    *baseline.Fio
	path   string
	memory []byte // of our loop
}

// newLimits makes a file as large as the transfers to come. The first pass over
// it is not measured: extents that were never written cost the file system more.
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

// free gives the memory back; the file goes with its directory.
func (l *limits) free() error { return machine.Unmap(l.memory) }

// byFio is a figure of fio; without fio it gives no samples.
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

// byLoop is a figure of our own loop.
func (l *limits) byLoop(ctx context.Context, t baseline.Transfer) func() ([]float64, error) {
	t.Path = l.path
	return func() ([]float64, error) {
		p, err := t.Run(ctx, l.memory)
		return []float64{p.Rate()}, err
	}
}

// best is the limit of a row: fio's, or that of the loop.
func best(byFio, byLoop []float64) float64 {
	if len(byFio) > 0 {
		return median(byFio)
	}
	return median(byLoop)
}
