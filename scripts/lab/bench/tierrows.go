package bench

import (
	"context"
	"errors"
	"fmt"

	"github.com/spliced-kv/spliced/scripts/lab/bench/baseline"
	"github.com/spliced-kv/spliced/scripts/lab/bench/machine"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Block size and number of blocks in flight of fio. The tier with default settings has the same
// number in flight when it reads one object, and more when it writes several objects. On the
// disk used for development, fio was no faster with 64 blocks than with 4.
const (
	tierBlock = 1 << 20
	tierDepth = 4
)

// way is one operation of a tier, with the matching runs of fio and our loop.
type way struct {
	name   string
	limit  baseline.Transfer
	ask    bar
	pass   func() error // writes or reads all segments of the bed once
	used   machine.Usage
	copied int64 // bytes of segments moved so far
}

// figure samples the tier once, in GB/s.
func (w *way) figure(payload int64) func() ([]float64, error) {
	return func() ([]float64, error) {
		before := machine.OwnUsage()
		s, err := timed(w.pass)
		used := machine.OwnUsage().Since(before)
		w.used.CPU += used.CPU
		w.used.Written += used.Written
		w.copied += payload
		return []float64{float64(payload) / s / 1e9}, err
	}
}

// compare measures each way alternately with its limits. At the end of each round it calls the
// function after. It adds rows whose names end in the size of segments. The first round does not
// count, because the tier then creates slab files and writes them for the first time.
func (b *bed) compare(ctx context.Context, s *session, size string, l *limits, ways []*way, rounds int, after func() error) error {
	var figures []func() ([]float64, error)
	for _, w := range ways {
		figures = append(figures, l.byFio(ctx, w.limit), l.byLoop(ctx, w.limit), w.figure(b.payload()))
	}
	figures = append(figures, func() ([]float64, error) { return nil, after() })
	if _, err := alternate(1, figures...); err != nil {
		return err
	}
	for _, w := range ways {
		w.used, w.copied = machine.Usage{}, 0
	}
	got, err := alternate(s.rounds(rounds), figures...)
	if err != nil {
		return err
	}
	for i, w := range ways {
		s.addWay(w, size, got[3*i:3*i+3])
	}
	return nil
}

// addWay adds rows for a way: its speed and the speed of our loop, with the speed of fio as the
// limit; its processor time; and, for writes, the bytes written.
func (s *session) addWay(w *way, size string, got [][]float64) {
	fio, loop, tier := got[0], got[1], got[2]
	s.add(row("disk_"+w.name+"_"+size, "GB/s", median(tier), best(fio, loop), w.ask))
	if len(fio) > 0 {
		s.add(row("loop_"+w.name+"_"+size, "GB/s", median(loop), median(fio), bar{}))
	}
	s.add(row("disk_"+w.name+"_cpu_"+size, "s/GB", w.used.CPUPerGB(w.copied), 0, bar{atMost: 0.7}))
	if !w.limit.Write {
		return
	}
	name := "disk_" + w.name + "_amplification_" + size
	if err := machine.WritesCounted(); err != nil {
		s.skip(name, err.Error())
		return
	}
	s.add(row(name, "ratio", w.used.Amplification(w.copied), 0, bar{atMost: 1.05}))
}

// bulk is one size of segments and their number in a pass.
type bulk struct {
	name     string
	layers   int // linear layers
	tokens   int
	segments int
}

// bulks returns segments of hybrid models. The names of their rows have the size in whole MiB;
// the real size differs by at most 2 %.
func bulks() []bulk {
	return []bulk{{"16MiB", 4, 1952, 32}, {"64MiB", largeLayers, largeTokens, 8}}
}

// smokeShare is the factor by which passes are smaller in a suite that only checks that
// rows appear.
const smokeShare = 8

// pass returns size with the number of segments of a pass.
func (s *session) pass(size bulk) bulk {
	if s.effort < 1 {
		size.segments = max(size.segments/smokeShare, 2)
	}
	return size
}

// bytes returns the bytes of a pass, computed from the size in the name. fio moves the same
// number of bytes.
func (b bulk) bytes() int64 {
	var mib int64
	_, _ = fmt.Sscanf(b.name, "%dMiB", &mib)
	return mib << 20 * int64(b.segments)
}

func bulkRows(ctx context.Context, s *session) error {
	for _, size := range bulks() {
		size = s.pass(size)
		err := onBed(ctx, s, size, func(b *bed, l *limits) error { return bulkRow(ctx, s, size, b, l) })
		if err != nil {
			return fmt.Errorf("%s: %w", size.name, err)
		}
	}
	return nil
}

// onBed runs f with a tier and limits on the measured disk.
func onBed(ctx context.Context, s *session, size bulk, f func(*bed, *limits) error) (err error) {
	p, err := benchProfile("bench-"+size.name, size.layers, largeHeads)
	if err != nil {
		return err
	}
	d, err := machine.NewScratch(s.options.Dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Remove()) }()
	l, err := newLimits(ctx, s, d, size.bytes())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.free()) }()
	// The budget has room for one pass at each of two levels, and for forgotten segments that
	// the tier has not freed yet.
	b, err := openBed(bedPlan{dir: d.Path("tier"), profile: p, tokens: size.tokens, segments: size.segments, budget: 3*size.bytes() + 128<<20})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	return f(b, l)
}

// bulkRow writes and reads large segments, with as many blocks in flight as fio. For durable
// writes, fio syncs once per segment.
func bulkRow(ctx context.Context, s *session, size bulk, b *bed, l *limits) error {
	write := baseline.Transfer{Write: true, Bytes: size.bytes(), Block: tierBlock, Workers: tierDepth}
	durable, read := write, write
	durable.SyncEvery, read.Write = int(size.bytes()/tierBlock)/size.segments, false
	ask := bar{ratioAtLeast: 0.8}
	var logged, synced []tier.Name
	return b.compare(ctx, s, size.name, l, []*way{
		{name: "write", limit: write, ask: ask, pass: func() (err error) {
			logged, err = b.writePass(ctx, tier.LevelLogged)
			return err
		}},
		{name: "write_synced", limit: durable, ask: ask, pass: func() (err error) {
			synced, err = b.writePass(ctx, tier.LevelSynced)
			return err
		}},
		{name: "read", limit: read, ask: ask, pass: func() error { return b.readPass(ctx, logged) }},
	}, 5, func() error { return errors.Join(b.forget(logged), b.forget(synced)) })
}

// groupWriters is the number of writers of small segments. Each writer waits until its segment
// is safe before it writes the next, so that the tier can group the commits of waiting writers.
const groupWriters = 8

// groupRows writes and reads segments of exactly 1 MiB. It compares the tier with fio that has
// the same number of threads and syncs after each MiB.
func groupRows(ctx context.Context, s *session) error {
	size := s.pass(bulk{"1MiB", 0, flatTokens, 256})
	return onBed(ctx, s, size, func(b *bed, l *limits) error {
		logged := baseline.Transfer{Write: true, Bytes: size.bytes(), Block: tierBlock, Workers: groupWriters, Apart: true}
		durable := logged
		durable.SyncEvery = 1
		read := baseline.Transfer{Bytes: size.bytes(), Block: tierBlock, Workers: 1}
		var fast, safe []tier.Name
		return b.compare(ctx, s, size.name, l, []*way{
			{name: "write", limit: logged, pass: func() (err error) {
				fast, err = b.writeEach(ctx, tier.LevelLogged, groupWriters)
				return err
			}},
			{name: "write_synced", limit: durable, ask: bar{ratioAtLeast: 0.6}, pass: func() (err error) {
				safe, err = b.writeEach(ctx, tier.LevelSynced, groupWriters)
				return err
			}},
			{name: "read", limit: read, pass: func() error { return b.readPass(ctx, safe) }},
		}, 5, func() error { return errors.Join(b.forget(fast), b.forget(safe)) })
	})
}
