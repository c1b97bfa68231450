package torture

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/spliced-kv/spliced/api/cmd/splicectl/internal/child"
	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/tiering/disk/offline"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Sizes of what is written. The daemon's memory (see daemonArgs) holds a small
// part of it, so that nearly every read promotes and every promotion evicts; its
// disk holds all of it, so that nothing acknowledged leaves for want of room.
const (
	liveBytes    = 768 << 20
	itemTokens   = 4000
	stagingBytes = 16 << 20
)

// What is done to the daemon, and how much is looked at afterwards.
const (
	clients        = 2
	workers        = 3                      // of each client
	idlePause      = 500 * time.Microsecond // of a worker that finds nothing to do
	stumbleOneIn   = 4                      // restarts
	longestStumble = 80 * time.Millisecond
	olderBytes     = 96 << 20 // of earlier rounds, read back by each audit
	strangerRows   = 256      // names that were never submitted, looked up by each audit
)

var daemonArgs = []string{"-arena", "32MiB", "-private", "16MiB", "-slots", "1MiB",
	"-disk-size", "4GiB", "-disk-private", "2GiB", "-disk-slab", "64MiB", "-disk-reserve", "256MiB"}

// Variants of the daemon, one after another on the same directory: what one
// wrote the next one reads.
var variants = []struct {
	name string
	args []string
}{
	{"codec none", []string{"-disk-codec", "none"}},
	{"codec all", []string{"-disk-codec", "all"}},
	{"codec kv, sync 200 ms", []string{"-disk-codec", "kv", "-disk-sync-every", "200ms"}},
	{"no write-behind", []string{"-disk-codec", "none", "-write-behind", "off"}},
}

// loops kills a daemon again and again and audits what it held.
type loops struct {
	options Options
	rng     *rand.Rand // of audits
	moments *rand.Rand // when the daemon is killed: the same for a seed, whatever happens in between
	work    *workload
	ledger  *ledger
	daemon  *child.Daemon
	clients []*client
	report  *Report

	restarts []float64
	writing  time.Duration
	puts     int64 // acknowledged
	bytes    int64 // of them
}

// dirs are where one run keeps what it leaves.
func (o *Options) disk() string { return filepath.Join(o.Dir, "disk") }
func (o *Options) acks() string { return filepath.Join(o.Dir, "acknowledged.log") }

func (t *loops) run(ctx context.Context) (err error) {
	log, err := os.Create(t.options.acks())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	if err := t.start(ctx, log); err != nil {
		return err
	}
	err = t.all(ctx)
	if err = errors.Join(err, t.stop()); err != nil {
		return err
	}
	return t.check(ctx)
}

func (t *loops) all(ctx context.Context) error {
	for n := range t.options.Loops {
		if err := t.loop(ctx, n); err != nil {
			return fmt.Errorf("loop %d: %w", n+1, err)
		}
	}
	return t.last(ctx)
}

// check reads the whole directory without a daemon.
func (t *loops) check(ctx context.Context) error {
	found, err := offline.Check(ctx, t.options.disk(), offline.CheckOptions{Deep: true})
	if err != nil {
		return err
	}
	t.report.Checked = found.Segments + found.Checkpoints
	t.report.Damaged = len(found.Problems) + found.MoreProblems
	var f Findings
	for _, p := range found.Problems {
		f.note("check: %s", p)
	}
	t.report.Notes = append(t.report.Notes, f.Notes...)
	return nil
}

func (t *loops) start(ctx context.Context, log io.Writer) (err error) {
	t.daemon, err = child.Start(ctx, child.Options{Binary: t.options.Binary, Args: t.args(0)})
	if err != nil {
		return err
	}
	var shapes []*shape
	for ranks := 1; ranks <= 2; ranks++ {
		s, err := newShape(fmt.Sprintf("torture-tp%d", ranks), ranks, nil)
		if err != nil {
			return errors.Join(err, t.stop())
		}
		shapes = append(shapes, s)
	}
	for range clients {
		c, err := openClient(ctx, t.daemon.Socket, t.daemon.API(), shapes)
		if err != nil {
			return errors.Join(err, t.stop())
		}
		t.clients = append(t.clients, c)
	}
	t.ledger = newLedger(log)
	t.work = newWorkload(t.ledger, shapes, t.options.Seed,
		Limits{Items: t.options.Segments, LiveBytes: liveBytes, Tokens: itemTokens})
	return nil
}

func (t *loops) stop() (err error) {
	for _, c := range t.clients {
		err = errors.Join(err, c.conn.Close())
	}
	return errors.Join(err, t.daemon.Stop())
}

// args are the daemon's flags in round n.
func (t *loops) args(n int) []string {
	return slices.Concat(daemonArgs, []string{"-disk", t.options.disk()}, variants[n%len(variants)].args)
}

// loop is one round: write, kill, restart, audit.
func (t *loops) loop(ctx context.Context, n int) error {
	t.work.begin()
	m := drawMoment(t.moments)
	row := Round{Round: n + 1, Crash: "killed " + m.String(), Variant: variants[n%len(variants)].name}
	var killed error
	fuse := light(m, func() { killed = t.daemon.Kill() })
	began := time.Now()
	err := t.write(ctx, fuse, &row)
	t.writing += time.Since(began)
	fuse.out()
	if err := errors.Join(err, killed); err != nil {
		return err
	}
	t.ledger.close()
	if t.moments.IntN(stumbleOneIn) == 0 {
		row.Crash += ", again while starting"
		if err := t.stumble(ctx, n+1); err != nil {
			return err
		}
	}
	if err := t.restart(ctx, n+1); err != nil {
		return err
	}
	return t.audit(ctx, &row, olderBytes)
}

// stumble starts the daemon and kills it before it is ready, or just after.
func (t *loops) stumble(ctx context.Context, n int) error {
	start, cancel := context.WithTimeout(ctx, time.Duration(1+t.moments.Int64N(int64(longestStumble))))
	defer cancel()
	if err := t.daemon.Restart(start, t.args(n)...); err != nil {
		// It was killed at the end of its time; other reasons come again.
		return ctx.Err()
	}
	return t.daemon.Kill()
}

// write runs the workers until the daemon is dead.
func (t *loops) write(ctx context.Context, fuse *fuse, row *Round) error {
	found := make([]Findings, clients*workers)
	failed := make([]error, clients*workers)
	counts := make([]counts, clients*workers)
	var all sync.WaitGroup
	for i := range failed {
		w := worker{client: t.clients[i%clients], work: t.work, ledger: t.ledger, fuse: fuse, findings: &found[i], counts: &counts[i]}
		all.Go(func() {
			if failed[i] = w.run(ctx); failed[i] != nil {
				fuse.blow()
			}
		})
	}
	all.Wait()
	for i := range found {
		row.Findings.add(found[i])
		row.InFlight += counts[i].inFlight
		t.report.Refused += counts[i].refused
		t.report.Removed += counts[i].removed
		t.puts += counts[i].puts
		t.bytes += counts[i].bytes
	}
	return errors.Join(failed...)
}

// restart starts the daemon as it is in round n.
func (t *loops) restart(ctx context.Context, n int) error {
	if err := t.daemon.Restart(ctx, t.args(n)...); err != nil {
		return err
	}
	t.restarts = append(t.restarts, milliseconds(t.daemon.Ready))
	for _, c := range t.clients {
		if err := c.wait(ctx); err != nil {
			return fmt.Errorf("a client after the restart: %w", err)
		}
	}
	return nil
}

// audit ends a round and adds its row.
func (t *loops) audit(ctx context.Context, row *Round, older int64) error {
	began := time.Now()
	a := audit{ledger: t.ledger, cache: t.clients[0], rng: t.rng, older: older,
		must: tier.LevelLogged, strangers: t.work.strangers(strangerRows)}
	f, err := a.run(ctx)
	if err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	row.Findings.add(f)
	row.AuditMs = milliseconds(time.Since(began))
	row.Tallies = t.ledger.current()
	t.report.close(&t.report.Rounds, row)
	t.options.progress("loop %d of %d, %s: synced %s, logged %s, memory %s", row.Round, t.options.Loops, row.Crash,
		row.Synced, row.Logged, row.Memory)
	return nil
}

// last reads everything back once more, after a stop in good order.
func (t *loops) last(ctx context.Context) error {
	t.work.begin()
	t.ledger.close()
	row := Round{Round: t.options.Loops + 1, Crash: "stopped, all read back", Variant: variants[t.options.Loops%len(variants)].name}
	if err := t.daemon.End(); err != nil {
		return err
	}
	if err := t.restart(ctx, t.options.Loops+1); err != nil {
		return err
	}
	if err := t.audit(ctx, &row, -1); err != nil {
		return err
	}
	r := t.report
	r.Loops = t.options.Loops
	r.addKills(t.ledger.totals())
	slices.Sort(t.restarts)
	r.RestartMs, r.RestartTo = t.restarts[len(t.restarts)/2], t.restarts[len(t.restarts)-1]
	r.PutPerS = float64(t.puts) / t.writing.Seconds()
	r.PutMiBPS = float64(t.bytes) / (1 << 20) / t.writing.Seconds()
	return nil
}

// counts are what one worker did.
type counts struct {
	puts, bytes                int64
	refused, removed, inFlight int
}

// worker does what the workload draws until the daemon is dead.
type worker struct {
	*counts
	client   *client
	work     *workload
	ledger   *ledger
	fuse     *fuse
	findings *Findings
}

func (w *worker) run(ctx context.Context) error {
	for ctx.Err() == nil && !w.fuse.over() {
		op := w.work.next()
		var err error
		switch op.verb {
		case doPut:
			err = w.put(ctx, op)
		case doRead:
			w.fuse.at(afterRead)
			_, err = w.findings.check(ctx, once{w.client}, op.item)
		case doRemove:
			w.fuse.at(afterRemoval)
			w.removed++
			if err = w.client.remove(ctx, op.item); err == nil {
				w.ledger.removal(op.item)
			}
		case doNothing:
			time.Sleep(idlePause) // all is written and nothing is there to be read
		}
		// A dying daemon's clients see every kind of end, but none before the kill.
		if err != nil && !w.fuse.over() && ctx.Err() == nil {
			return fmt.Errorf("%s: %w", op.item, err)
		}
	}
	return ctx.Err()
}

func (w *worker) put(ctx context.Context, op operation) error {
	level, err := w.client.put(ctx, op.item, op.level, func() { w.fuse.at(inFill) })
	if err == nil {
		err = w.ledger.acknowledge(op.item, level)
		w.work.put(op.item, true)
		w.fuse.at(afterAck)
		w.puts++
		w.bytes += op.item.bytes()
		return err
	}
	w.work.put(op.item, false)
	if refused(op.item, err) {
		w.refused++
		return nil
	}
	w.inFlight++
	return err
}

// refused tells answers that are no fault: there is no room in memory just now,
// the segment is there already, or the checkpoint before this one is not.
func refused(i *item, err error) bool {
	for _, fine := range []error{connector.ErrFull, connector.ErrBusy, connector.ErrExists} {
		if errors.Is(err, fine) {
			return true
		}
	}
	return i.parent != nil && (errors.Is(err, connector.ErrGone) || errors.Is(err, connector.ErrInvalid))
}

// once is a client that does not ask twice for what it does not get: other
// workers evict meanwhile.
type once struct{ *client }

func (c once) read(ctx context.Context, i *item, see func(rank, part int, off int64, b []byte)) (bool, error) {
	for rank := range i.shape.ranks() {
		if there, err := c.readRank(ctx, i, rank, see); !there || err != nil {
			return false, err
		}
	}
	return true, nil
}
