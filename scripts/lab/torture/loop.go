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

	"github.com/spliced-kv/spliced/api/child"
	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/disk/offline"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Sizes of the data. The daemon's memory (see daemonArgs) has room for a small part of the data,
// so that nearly every read promotes an object from disk, and every promotion evicts others. Its
// disk has room for all data, so that no acknowledged object is evicted for lack of room.
const (
	liveBytes    = 768 << 20
	itemTokens   = 4000
	stagingBytes = 16 << 20
)

// The work of workers, and the extent of audits.
const (
	clients        = 2
	workers        = 3                      // of each client
	idlePause      = 500 * time.Microsecond // of a worker without work
	stumbleOneIn   = 4                      // restarts
	longestStumble = 80 * time.Millisecond
	olderBytes     = 96 << 20 // bytes of items of earlier rounds that each audit reads back
	strangerRows   = 256      // names that were never submitted and that each audit looks up
	brokenOffOneIn = 8        // one in this number of puts is followed by a put that is broken off
)

var daemonArgs = []string{"-arena", "32MiB", "-private", "16MiB", "-slots", "8MiB",
	"-disk-size", "4GiB", "-disk-private", "2GiB", "-disk-slab", "64MiB", "-disk-reserve", "256MiB"}

// Variants of the daemon's settings. The rounds use them in turn on the same directory, so that
// each variant reads what the previous one wrote.
var variants = []struct {
	name string
	args []string
}{
	{"codec none", []string{"-disk-codec", "none"}},
	{"codec all", []string{"-disk-codec", "all"}},
	{"codec kv, sync 200 ms", []string{"-disk-codec", "kv", "-disk-sync-every", "200ms"}},
	{"no write-behind", []string{"-disk-codec", "none", "-write-behind", "off"}},
}

// deviceArgs gives a daemon with a GPU less GPU memory than the segments need.
var deviceArgs = []string{"-hbm-public", "16MiB", "-hbm-client", "4MiB"}

// tenants are the tenants of the engines. One of them has its own salt. tenantsFile declares
// them to the daemon.
var tenants = []string{"default", "other"}

const tenantsFile = "tenants:\n  - name: default\n  - name: other\n    salt: torture\n"

// loops kills a daemon again and again and audits its contents.
type loops struct {
	options Options    // of this chapter
	first   int        // loops of earlier chapters
	all     int        // loops of the whole run
	rng     *rand.Rand // of audits
	moments *rand.Rand // for moments of kills; separate, so that they depend on the seed only
	work    *workload
	ledger  *ledger
	daemon  *child.Daemon
	device  gpuipc.Accelerator // nil = no GPU
	clients []*client
	report  *Report
}

// These paths hold the files of a run.
func (o *Options) disk() string { return filepath.Join(o.Dir, "disk") }
func (o *Options) acks() string { return filepath.Join(o.Dir, "acknowledged.log") }
func (o *Options) file() string { return filepath.Join(o.Dir, "spliced.yaml") }

func (t *loops) run(ctx context.Context) (err error) {
	log, err := os.OpenFile(t.options.acks(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	if err := t.start(ctx, log); err != nil {
		return err
	}
	err = t.chapter(ctx)
	if err = errors.Join(err, t.stop()); err != nil {
		return err
	}
	return t.check(ctx)
}

func (t *loops) chapter(ctx context.Context) error {
	for n := range t.options.Loops {
		if err := t.loop(ctx, n); err != nil {
			return fmt.Errorf("loop %d: %w", t.first+n+1, err)
		}
	}
	return t.last(ctx)
}

// check reads and checks the whole directory after the daemon has ended.
func (t *loops) check(ctx context.Context) error {
	found, err := offline.Check(ctx, t.options.disk(), offline.CheckOptions{Deep: true})
	if err != nil {
		return err
	}
	t.report.Checked += found.Segments + found.Checkpoints
	t.report.Damaged += len(found.Problems) + found.MoreProblems
	var f Findings
	for _, p := range found.Problems {
		f.note("check: %s", p)
	}
	t.report.Notes = append(t.report.Notes, f.Notes...)
	return nil
}

func (t *loops) start(ctx context.Context, log io.Writer) (err error) {
	if err := os.WriteFile(t.options.file(), []byte(tenantsFile), 0o600); err != nil {
		return err
	}
	if t.options.Driver != "" {
		if t.device, err = cuda.Open(cuda.Options{Library: t.options.Driver}); err != nil {
			return err
		}
	}
	t.daemon, err = child.Start(ctx, child.Options{Binary: t.options.Binary, Args: t.args(0)})
	if err != nil {
		return errors.Join(err, t.closeDevice())
	}
	shapes, err := newShapes()
	if err != nil {
		return errors.Join(err, t.stop())
	}
	for range clients {
		c, err := openClient(ctx, t.daemon.Socket, t.daemon.API(), t.device, shapes)
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

// newShapes returns models of one and two ranks, for each of the tenants.
func newShapes() (out []*shape, err error) {
	for _, tenant := range tenants {
		for ranks := 1; ranks <= 2; ranks++ {
			s, err := newShape(fmt.Sprintf("torture-tp%d", ranks), ranks, nil)
			if err != nil {
				return nil, err
			}
			s.tenant = tenant
			out = append(out, s)
		}
	}
	return out, nil
}

func (t *loops) stop() (err error) {
	for _, c := range t.clients {
		err = errors.Join(err, c.conn.Close())
	}
	return errors.Join(err, t.closeDevice(), t.daemon.Stop())
}

func (t *loops) closeDevice() error {
	if t.device == nil {
		return nil
	}
	return t.device.Close()
}

// args returns the daemon's flags in round n.
func (t *loops) args(n int) []string {
	args := slices.Concat(daemonArgs, []string{"-config", t.options.file(), "-disk", t.options.disk()}, variants[n%len(variants)].args)
	if t.device != nil {
		args = append(slices.Concat(args, deviceArgs), "-hbm-library", t.options.Driver)
	}
	return args
}

// loop is one round: write, kill, restart, audit.
func (t *loops) loop(ctx context.Context, n int) error {
	t.work.begin()
	m := drawMoment(t.moments)
	row := Round{Round: t.first + n + 1, Crash: "killed " + m.String(), Variant: variants[n%len(variants)].name}
	var killed error
	fuse := light(m, func() { killed = t.daemon.Kill() })
	began := time.Now()
	err := t.write(ctx, fuse, &row)
	t.report.writing += time.Since(began)
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
		// The context start ended, and Restart has killed the daemon. Any other error would occur
		// again at the next restart.
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
		w := worker{client: t.clients[i%clients], work: t.work, ledger: t.ledger, fuse: fuse, findings: &found[i], counts: &counts[i],
			rng: rand.New(rand.NewPCG(t.options.Seed, uint64(row.Round)<<8|uint64(i)))}
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
		t.report.Joined += counts[i].joined
		t.report.OnDevice += counts[i].onDevice
		t.report.BrokenOff += counts[i].brokenOff
		t.report.puts += counts[i].puts
		t.report.bytes += counts[i].bytes
	}
	return errors.Join(failed...)
}

// restart starts the daemon with the settings of round n.
func (t *loops) restart(ctx context.Context, n int) error {
	if err := t.daemon.Restart(ctx, t.args(n)...); err != nil {
		return err
	}
	t.report.restarts = append(t.report.restarts, milliseconds(t.daemon.Ready))
	for _, c := range t.clients {
		if err := c.wait(ctx); err != nil {
			return fmt.Errorf("a client after the restart: %w", err)
		}
	}
	return nil
}

// audit audits the daemon after a round, and adds the round's row to the report.
func (t *loops) audit(ctx context.Context, row *Round, older int64) error {
	began := time.Now()
	a := audit{ledger: t.ledger, cache: t.clients[0], rng: t.rng, older: older,
		first: t.first, must: tier.LevelLogged, strangers: t.work.strangers(strangerRows)}
	f, err := a.run(ctx)
	if err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	row.Findings.add(f)
	row.AuditMs = milliseconds(time.Since(began))
	row.Tallies = t.ledger.current()
	t.report.close(&t.report.Rounds, row)
	t.options.progress("loop %d of %d, %s: synced %s, logged %s, memory %s", row.Round, t.all, row.Crash,
		row.Synced, row.Logged, row.Memory)
	return nil
}

// last stops the daemon cleanly, restarts it, and reads everything back once more.
func (t *loops) last(ctx context.Context) error {
	rounds := len(t.report.Rounds) - t.options.Loops // of earlier chapters
	t.work.begin()
	t.ledger.close()
	row := Round{Round: t.first + t.options.Loops + 1, Crash: "stopped, all read back", Variant: variants[t.options.Loops%len(variants)].name}
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
	r.Loops += t.options.Loops
	r.Tenants = len(tenants)
	r.addKills(t.ledger.totals(), r.Rounds[rounds:])
	return nil
}

// counts are the operations of one worker.
type counts struct {
	puts, bytes                int64
	refused, removed, inFlight int
	joined, onDevice           int // reads
	brokenOff                  int // puts
}

// worker runs the operations of the workload until the daemon is dead.
type worker struct {
	*counts
	client   *client
	work     *workload
	ledger   *ledger
	fuse     *fuse
	findings *Findings
	rng      *rand.Rand // for choices outside the workload
}

func (w *worker) run(ctx context.Context) error {
	for ctx.Err() == nil && !w.fuse.over() {
		op := w.work.next()
		var err error
		switch op.verb {
		case doPut:
			if err = w.put(ctx, op); err == nil && w.rng.IntN(brokenOffOneIn) == 0 {
				err = w.breakOff(ctx)
			}
		case doRead:
			w.fuse.at(afterRead)
			err = w.read(ctx, op.item)
		case doRemove:
			w.fuse.at(afterRemoval)
			w.removed++
			if err = w.client.remove(ctx, op.item); err == nil {
				w.ledger.removal(op.item)
			}
		case doNothing:
			time.Sleep(idlePause) // all items of the round are written, and none can be read
		}
		// After the kill, clients may get any error. Before the kill, an error is a fault.
		if err != nil && !w.fuse.over() && ctx.Err() == nil {
			return fmt.Errorf("%s: %w", op.item, err)
		}
	}
	return ctx.Err()
}

// read compares an item with the submitted bytes. At random, it reads the item in memory or on
// the GPU, or joins it to another segment.
func (w *worker) read(ctx context.Context, i *item) error {
	if !i.isSegment() || w.rng.IntN(2) == 0 {
		_, err := w.findings.check(ctx, once{w.client, nil}, i)
		return err
	}
	if w.client.device != nil && w.rng.IntN(2) == 0 {
		intact, err := w.findings.check(ctx, onDevice{w.client}, i)
		if intact {
			w.onDevice++
		}
		return err
	}
	other := w.work.partner(i)
	if other == nil {
		return nil
	}
	there, err := w.findings.checkJoin(ctx, w.client, i, other)
	if there {
		w.joined++
	}
	return err
}

// errBrokenOff is the error of a source that has no more bytes.
var errBrokenOff = errors.New("broken off")

// breakOff begins to put an item and stops before its end. The item must never become visible.
func (w *worker) breakOff(ctx context.Context) error {
	i := w.work.unfinished()
	left := w.rng.IntN(len(i.layout.Parts)) // runs of bytes
	_, err := w.client.putFrom(ctx, i, tier.LevelSynced, func(fill filler) filler {
		return func(p profile.Part, part int, off int64, dst []byte) error {
			if left--; left < 0 {
				return errBrokenOff
			}
			return fill(p, part, off, dst)
		}
	})
	switch {
	case errors.Is(err, errBrokenOff):
		w.brokenOff++
	case err == nil:
		return fmt.Errorf("%s is written, and was broken off", i)
	case !refused(i, err):
		return err
	}
	return nil
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

// refused reports whether an error is not a fault: memory is full at the moment, the item
// already exists, or the checkpoint's parent no longer exists.
func refused(i *item, err error) bool {
	for _, fine := range []error{connector.ErrFull, connector.ErrBusy, connector.ErrExists} {
		if errors.Is(err, fine) {
			return true
		}
	}
	return i.parent != nil && (errors.Is(err, connector.ErrGone) || errors.Is(err, connector.ErrInvalid))
}

// once is a client that does not retry reads. A miss is no fault here, because other workers
// cause evictions.
type once struct {
	*client
	tell timed
}

func (c once) read(ctx context.Context, i *item, see func(rank, part int, off int64, b []byte)) (bool, error) {
	return allRanks(i, func(rank int) (bool, error) { return c.readRank(ctx, i, rank, see, c.tell) })
}
