package tiering

import (
	"context"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/internal/move"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// twoTiers is a bench over a mapTier, used by one goroutine: writes wait for
// finish and promotions for carry.
type twoTiers struct {
	*bench
	tier *mapTier
	c    *Session
}

func newTwoTiers(t testing.TB, id profile.Identity, options ...option) *twoTiers {
	t.Helper()
	x := &twoTiers{}
	x.bench = newBench(t, id, append([]option{below(&x.tier, 1<<30)}, options...)...)
	x.tier.attach(x.bench, true)
	x.tier.held = true
	x.c = x.NewSession("c")
	t.Cleanup(func() { // a store that closes waits for them
		x.tier.mu.Lock()
		x.tier.held = false
		x.tier.mu.Unlock()
		x.tier.finishAll()
	})
	return x
}

func writeBehind(c *Config) { c.WriteBehind = true }
func readAhead(c *Config)   { c.ReadAhead = true }

// carryOne does what one round of a goroutine of Run does, if there is any work.
func (x *twoTiers) carryOne() bool { return x.move.Promotions.Engine.Try(x.ctx, move.LaneBelow) }

func (x *twoTiers) carry() (n int) {
	for x.carryOne() {
		n++
	}
	return n
}

// sink publishes a segment, has it written and drops it from memory.
func (x *twoTiers) sink(p piece) {
	x.Helper()
	x.publish(x.c, p)
	x.push()
}

// push writes what is dirty and then drops all that may leave memory.
func (x *twoTiers) push() {
	x.Helper()
	x.writeOut()
	x.dropAll()
}

// writeOut has the lower tier write what it lacks.
func (x *twoTiers) writeOut() {
	x.Helper()
	x.cat.Mu.Lock()
	_, _ = x.move.Writes.FlushLocked(0, nil)
	x.cat.Mu.Unlock()
	x.cat.Launch()
	x.tier.finishAll()
}

// dropAll evicts whatever may leave.
func (b *bench) dropAll() {
	b.Helper()
	for b.dropNext() {
	}
	b.cat.Launch()
	b.audit()
}

// dropNext evicts the next victim, and reports whether there was one.
func (b *bench) dropNext() bool {
	b.cat.Mu.Lock()
	defer b.cat.Mu.Unlock()
	for _, p := range b.cat.Objects.Pools {
		if p.Used > p.Pinned {
			b.move.Evictor.EvictLocked(p.Evict, move.ForRoom, nil)
			return true
		}
	}
	return false
}

func (x *twoTiers) wantOnDisk(p piece) {
	x.Helper()
	_, n := p.spec.Interior()
	if got, want := x.status(p), (SegmentStatus{Status: tier.StatusHit, Place: tier.PlaceDisk, Tokens: uint32(n)}); got != want {
		x.Fatalf("segment %x: got %v, want %v", p.key[:4], got, want)
	}
}

func (x *twoTiers) acquireQuery(ps ...piece) *AcquireQuery {
	q := &AcquireQuery{Profile: x.id, Tenant: tenantA, Digests: true, Device: device}
	for _, p := range ps {
		q.Keys = append(q.Keys, p.key)
	}
	return q
}

// try acquires without waiting.
func (x *twoTiers) try(p piece) Acquired {
	x.Helper()
	rows, err := x.c.Acquire(x.acquireQuery(p), nil)
	x.must(err)
	return rows[0]
}

// awaiting is an AwaitAcquire that runs.
type awaiting struct {
	rows []Acquired
	err  error
	done chan struct{}
}

// await begins an AwaitAcquire and returns when it waits: n rows have joined promotions or
// searches.
func (x *twoTiers) await(ctx context.Context, n int, ps ...piece) *awaiting {
	x.Helper()
	return x.awaitFor(ctx, x.c, n, x.acquireQuery(ps...))
}

func (x *twoTiers) awaitFor(ctx context.Context, c *Session, n int, q *AcquireQuery, dst ...Acquired) *awaiting {
	x.Helper()
	a := &awaiting{done: make(chan struct{})}
	before := x.waiting()
	go func() {
		defer close(a.done)
		a.rows, a.err = c.AwaitAcquire(ctx, q, dst)
	}()
	x.until("rows wait", func() bool { return x.waiting() == before+n })
	return a
}

// until waits for what another goroutine does and no event tells of.
func (b *bench) until(what string, ok func() bool) {
	b.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(deadline) {
			b.Fatalf("after a minute it is still not so that %s", what)
		}
	}
}

// waiters counts the rows that wait for promotions into memory, ended ones not.
func (b *bench) waiters() (n int) {
	b.cat.Mu.Lock()
	defer b.cat.Mu.Unlock()
	for _, f := range b.move.Promotions.Engine.All() {
		n += f.Waiters()
	}
	return n
}

// waiting counts those that wait for searches and for promotions into HBM as well.
func (b *bench) waiting() (n int) {
	n = b.waiters()
	b.cat.Mu.Lock()
	defer b.cat.Mu.Unlock()
	if searches := b.move.Remote.Engine; searches != nil {
		for _, f := range searches.All() {
			n += f.Waiters()
		}
	}
	for _, h := range b.hbm {
		for _, f := range h.Flights.All() {
			n += f.Waiters()
		}
	}
	return n
}

func (x *twoTiers) end(a *awaiting) []Acquired {
	x.Helper()
	<-a.done
	x.must(a.err)
	return a.rows
}

// wantBytes checks what a lease names.
func (x *twoTiers) wantBytes(p piece, row Acquired) {
	x.Helper()
	if !row.Hit || row.Err != nil {
		x.Fatalf("segment %x: Hit %v, want true; Err %v, want nil", p.key[:4], row.Hit, row.Err)
	}
	x.wantParts(&p.layout, contentOf(p, 0), x.load(gpuipc.Ref{Region: x.Arena(), Extents: row.Extents}), row.Digests)
}

// running runs a store's goroutines until the test ends, with a tier that
// answers by itself.
func (x *twoTiers) running() {
	x.tier.held, x.tier.alone = false, false
	ctx, cancel := context.WithCancel(x.ctx)
	ended := make(chan error, 1)
	go func() { ended <- x.Run(ctx) }()
	x.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			x.Error(err)
		}
	})
}

func realTime(c *Config) { c.Now = time.Now }

// A parent that takes more than the whole pool, as after a restart with a smaller
// one, never comes into memory: whoever saves behind it is told so, and not to try
// again.
func TestSaveBehindAParentLargerThanItsPoolIsFull(t *testing.T) {
	x := newTwoTiers(t, hybrid(1))
	x.save(x.c, x.saveQuery(1, 64, 0, tier.Exact), 0)
	x.save(x.c, x.saveQuery(1, 128, 64, tier.Exact), 64)
	x.push()
	x.dropAll()
	pool := x.cat.Objects.Pools[objects.PrivatePool]
	if pool.Used != 0 {
		t.Fatalf("%d bytes are still in memory", pool.Used)
	}
	node := x.cat.Objects.Memory.PagesOf(x.profile.CheckpointLayout(64).Bytes)
	pool.Budget = 2*node - 1
	_, err := x.c.Save(x.saveQuery(1, 192, 128, tier.Exact))
	x.wantErr(err, tier.ErrFull)
	if n := x.Counters().Promoting; n != 0 {
		t.Errorf("%d promotions began that can never end", n)
	}
	pool.Budget = 4 * node
	_, err = x.c.Save(x.saveQuery(1, 192, 128, tier.Exact))
	x.wantErr(err, tier.ErrBusy)
	if x.carry() != 2 {
		t.Error("the chain did not come into memory")
	}
	x.save(x.c, x.saveQuery(1, 192, 128, tier.Exact), 128)
	_, err = x.c.Save(x.saveQuery(1, 320, 256, tier.Exact)) // no tier has its parent
	x.wantErr(err, tier.ErrGone)
	x.audit()
}
