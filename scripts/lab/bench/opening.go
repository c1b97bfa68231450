package bench

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/scripts/lab/bench/machine"
	"github.com/spliced-kv/spliced/tiering/disk"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// openingRow opens a directory of many segments that is not in the page cache, and compares the
// time with a plain read of the directory's index.
func openingRow(ctx context.Context, s *session) (err error) {
	const granule = 4 << 10
	segments := 100_000
	if s.effort < 1 {
		segments = 2_000
	}
	p, err := benchProfile("bench-tiny", 0, 0)
	if err != nil {
		return err
	}
	d, err := machine.NewScratch(s.options.Dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Remove()) }()
	// With one token, a segment consists of its header and one block of payload.
	plan := bedPlan{dir: d.Path("tier"), profile: p, tokens: 1, segments: 1, budget: int64(segments)*4*granule + 64<<20, granule: granule}
	b, err := openBed(plan)
	if err != nil {
		return err
	}
	if err := errors.Join(b.writeMany(ctx, segments), b.close()); err != nil {
		return fmt.Errorf("%d segments: %w", segments, err)
	}
	got, err := alternate(s.rounds(3),
		func() ([]float64, error) {
			if err := machine.DropCached(d.Dir); err != nil {
				return nil, err
			}
			ms, err := timed(func() error { return readFiles(filepath.Join(plan.dir, "index")) })
			return []float64{ms * 1e3}, err
		},
		func() ([]float64, error) {
			if err := machine.DropCached(d.Dir); err != nil {
				return nil, err
			}
			return plan.open(segments)
		},
	)
	if err != nil {
		return err
	}
	s.add(row(fmt.Sprintf("disk_open_%d", segments), "ms", median(got[1]), median(got[0]), bar{atMost: 2000}))
	return nil
}

// open opens a directory of a number of segments and returns the time in milliseconds.
func (p *bedPlan) open(segments int) (_ []float64, err error) {
	device, err := gpuipc.NewHost(gpuipc.HostOptions{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, device.Close()) }()
	var t *disk.Tier
	took, err := timed(func() (err error) { t, err = disk.Open(p.config(device)); return err })
	if err != nil {
		return nil, err
	}
	if pools := t.Usage().Pools; len(pools) == 0 || int(pools[0].Entries) != segments {
		err = fmt.Errorf("want %d segments, there are %+v: %+v", segments, pools, t.Health())
	}
	return []float64{took * 1e3}, errors.Join(err, t.Close())
}

// writeMany writes segments that all have the bytes of the first place.
func (b *bed) writeMany(ctx context.Context, n int) error {
	const flying = 1024
	done := make(chan ticket, flying)
	for i := range n {
		if i >= flying {
			if err := errors.Join(ctx.Err(), (<-done).check(tier.LevelLogged)); err != nil {
				return err
			}
		}
		if err := b.start(b.segment(0), tier.LevelLogged, done); err != nil {
			return err
		}
	}
	for range min(n, flying) {
		if err := (<-done).check(tier.LevelLogged); err != nil {
			return err
		}
	}
	return nil
}

// readFiles reads every file below a directory.
func readFiles(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		_, err = os.ReadFile(path)
		return err
	})
}
