package torture

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Sizes of a life. A life starts with an empty file system and goes through crashesOfLife losses
// of power.
const (
	crashesOfLife = 6
	powerItems    = 60
	powerLive     = 24 << 20
	powerTokens   = 400
	powerWorkers  = 4
	powerLatest   = 400 * time.Millisecond
)

// keptPercents are the percentages of unsynced data that survive a loss of power. The file
// system decides for each block and each file name separately.
var keptPercents = []int{0, 30, 100}

// powerCuts simulates losses of power on stores in this process.
type powerCuts struct {
	options Options
	rng     *rand.Rand
	report  *Report
	rounds  int
	over    func(vfs.FS) vfs.FS // wraps the files of the stores; nil = no wrapper
}

func (p *powerCuts) run(ctx context.Context) error {
	for life := 0; p.rounds < p.options.Power; life++ {
		if err := p.life(ctx, life); err != nil {
			return fmt.Errorf("power cut %d: %w", p.rounds, err)
		}
	}
	p.report.PowerCrashes = p.rounds
	for _, row := range p.report.Power {
		p.report.PowerCorrupt += row.Corrupt
		p.report.PowerPhantom += row.Phantom
	}
	return nil
}

// life is one file system and its ledger, through a few crashes.
type life struct {
	*powerCuts
	first   int // rounds of earlier lives
	setup   *setup
	shapes  []*shape
	ledger  *ledger
	work    *workload
	files   *vfs.MemFS
	machine *machine
}

func (p *powerCuts) life(ctx context.Context, number int) (err error) {
	l := life{powerCuts: p, first: p.rounds, setup: &setups[number%len(setups)], ledger: newLedger(io.Discard), files: vfs.NewCrashableMem()}
	for ranks := 1; ranks <= 2; ranks++ {
		s, err := newShape(fmt.Sprintf("power-tp%d", ranks), ranks, []byte("salt"))
		if err != nil {
			return err
		}
		l.shapes = append(l.shapes, s)
	}
	l.work = newWorkload(l.ledger, l.shapes, p.options.Seed+uint64(number)<<32, Limits{Items: powerItems, LiveBytes: powerLive, Tokens: powerTokens})
	if l.machine, err = l.boot(l.files); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.machine.off()) }()
	for range min(crashesOfLife, p.options.Power-p.rounds) {
		if err := l.crash(ctx); err != nil {
			return err
		}
	}
	p.report.addPowerLosses(l.ledger.totals())
	return nil
}

// crash runs one round: it writes, loses power, starts a machine on the surviving files, and
// audits it.
func (l *life) crash(ctx context.Context) error {
	percent := keptPercents[l.rounds%len(keptPercents)]
	l.rounds++
	l.work.begin()
	m := drawMoment(l.rng)
	m.limit = min(m.limit, powerLatest)
	row := Round{Round: l.rounds, Variant: l.setup.name, Crash: m.String(), Kept: percent}
	var after *vfs.MemFS
	seed := l.rng.Uint64()
	fuse := light(m, func() {
		l.ledger.close() // close first, because items acknowledged during the copy may be missing in the copy
		after = l.files.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rand.New(rand.NewPCG(seed, 3))})
	})
	err := l.write(ctx, fuse, &row)
	fuse.out()
	if err == nil && l.rng.IntN(stumbleOneIn) == 0 {
		row.Crash += ", again while starting"
		after, err = l.stumble(after, percent)
	}
	if err := errors.Join(err, l.restart(after)); err != nil {
		return err
	}
	began := time.Now()
	a := audit{ledger: l.ledger, cache: l.machine, rng: l.rng, older: -1, first: l.first,
		must: tier.LevelSynced, strangers: l.work.strangers(strangerRows)}
	f, err := a.run(ctx)
	if err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	row.Findings.add(f)
	row.AuditMs = milliseconds(time.Since(began))
	row.Tallies = l.ledger.current()
	l.report.close(&l.report.Power, &row)
	l.options.progress("power cut %d of %d, %s, %d %% of unsynced blocks kept: synced %s",
		l.rounds, l.options.Power, row.Crash, percent, row.Synced)
	return nil
}

func (l *life) boot(files vfs.FS) (*machine, error) {
	if l.over != nil {
		files = l.over(files)
	}
	return boot(files, l.shapes, l.setup)
}

// stumble starts a machine and cuts its power during the start.
func (l *life) stumble(files *vfs.MemFS, percent int) (*vfs.MemFS, error) {
	m, err := l.boot(files)
	if err != nil {
		return nil, err
	}
	after := files.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rand.New(rand.NewPCG(l.rng.Uint64(), 6))})
	return after, m.off()
}

// restart starts a machine on the files that survived the loss of power, and ends the former
// machine, whose files are no longer used.
func (l *life) restart(after *vfs.MemFS) (err error) {
	former := l.machine
	l.files = after
	if l.machine, err = l.boot(after); err != nil {
		l.machine = former
		return err
	}
	return former.off()
}

// write runs the workers until the power is cut.
func (l *life) write(ctx context.Context, fuse *fuse, row *Round) error {
	found := make([]Findings, powerWorkers)
	failed := make([]error, powerWorkers)
	refused := make([]int, powerWorkers)
	var all sync.WaitGroup
	for n := range powerWorkers {
		all.Go(func() {
			if refused[n], failed[n] = l.worker(ctx, n, fuse, &found[n]); failed[n] != nil {
				fuse.blow()
			}
		})
	}
	all.Wait()
	for n := range found {
		row.Findings.add(found[n])
		l.report.Refused += refused[n]
	}
	return errors.Join(failed...)
}

func (l *life) worker(ctx context.Context, n int, fuse *fuse, f *Findings) (refused int, err error) {
	w, err := l.machine.writer(fmt.Sprintf("writer %d", n))
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	for ctx.Err() == nil && !fuse.over() {
		op := l.work.next()
		switch op.verb {
		case doPut:
			level, putErr := w.put(ctx, op.item, op.level, func() { fuse.at(inFill) })
			l.work.put(op.item, putErr == nil)
			switch {
			case putErr == nil:
				err = l.ledger.acknowledge(op.item, level)
				fuse.at(afterAck)
			case inMemoryRefused(op.item, putErr):
				refused++
			default:
				err = putErr
			}
		case doRead:
			fuse.at(afterRead)
			_, err = f.check(ctx, l.machine, op.item)
		case doRemove:
			fuse.at(afterRemoval)
			if err = l.machine.store.Evict(op.item.Key); errors.Is(err, tier.ErrGone) || errors.Is(err, tier.ErrBusy) {
				err = nil
			}
			l.ledger.removal(op.item)
		case doNothing:
			time.Sleep(idlePause)
		}
		if err != nil {
			return refused, fmt.Errorf("%s: %w", op.item, err)
		}
	}
	return refused, ctx.Err()
}

// inMemoryRefused is the function refused for a store in this process.
func inMemoryRefused(i *item, err error) bool {
	for _, fine := range []error{tier.ErrFull, tier.ErrBusy, tier.ErrExists} {
		if errors.Is(err, fine) {
			return true
		}
	}
	return i.parent != nil && (errors.Is(err, tier.ErrGone) || errors.Is(err, tier.ErrInvalid))
}
