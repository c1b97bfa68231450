package tiering

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/policy/profile/profiletest"
	"github.com/spliced-kv/spliced/tiering/internal/move"
	"github.com/spliced-kv/spliced/tiering/stats"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/transfer"
)

func TestAcquireBringsASegmentBack(t *testing.T) {
	x := newTwoTiers(t, hybrid(2))
	p := x.mid(1, 64, 8)
	x.sink(p)
	q := x.acquireQuery(p)
	if !x.NeedsPromotion(q) {
		t.Fatal("no promotion is needed of what lies on disk")
	}
	row := x.try(p)
	if row.Hit || !row.Promoting || row.Reason != tier.ReasonPending || row.Err != nil {
		t.Fatalf("Hit %v, want false; Promoting %v, want true; Reason %v, want %v; Err %v, want nil", row.Hit, row.Promoting, row.Reason, tier.ReasonPending, row.Err)
	}
	x.wantOnDisk(p) // wanted, and below still
	x.audit()
	if n := x.carry(); n != 1 {
		t.Fatalf("%d promotions", n)
	}
	x.wantHit(p)
	if x.NeedsPromotion(q) {
		t.Fatal("a promotion is needed of what is in memory")
	}
	for rank := range 2 {
		row := x.acquire(x.c, rank, p)
		if got := x.load(gpuipc.Ref{Region: x.Arena(), Extents: row.Extents}); string(got) != string(contentOf(p, rank)) {
			t.Fatalf("rank %d has other bytes", rank)
		}
	}
	d, _ := x.Segment(p.key)
	if d.Publisher != "c" || len(d.Tokens) != 64 || d.Lower != tier.LevelLogged || d.Tokens[5] != p.tokens[5] {
		t.Fatalf(`%v, want d.Publisher == "c", len(d.Tokens) == 64, d.Lower == tier.LevelLogged, d.Tokens[5] == p.tokens[5]`, d)
	}
	n := x.Counters()
	if n.Promotions[transfer.Done] != 1 || n.PromotedBytes != uint64(2*p.layout.Bytes+4*64) || n.Promoting != 0 || n.Published != 1 || x.tier.reads != 1 {
		t.Fatalf("%d reads, Promotions[transfer.Done] %v, want 1; PromotedBytes %v, want %v; Promoting %v, want 0; Published %v, want 1; x.tier.reads %v, want 1", x.tier.reads, n.Promotions[transfer.Done], n.PromotedBytes, uint64(2*p.layout.Bytes+4*64), n.Promoting, n.Published, x.tier.reads)
	}
}

func TestAwaitAnswersHitsMissesAndPromotionsInOrder(t *testing.T) {
	x := newTwoTiers(t, hybrid(1))
	disk, memory, none := x.mid(1, 64, 8), x.mid(2, 64, 8), x.mid(3, 64, 8)
	x.sink(disk)
	x.publish(x.c, memory)
	a := x.awaitFor(x.ctx, x.c, 1, x.acquireQuery(memory, none, disk), Acquired{Bytes: 77}) // rows are appended
	x.carry()
	rows := x.end(a)
	if len(rows) != 4 || rows[0].Bytes != 77 || rows[2].Hit || rows[2].Reason != tier.ReasonUnknown {
		t.Fatalf("%v, want len(rows) == 4, rows[0].Bytes == 77, not rows[2].Hit, rows[2].Reason == tier.ReasonUnknown", rows)
	}
	x.wantBytes(memory, rows[1])
	x.wantBytes(disk, rows[3])
}

func TestWaitEndsWithItsContext(t *testing.T) {
	x := newTwoTiers(t, hybrid(1))
	p := x.mid(1, 64, 8)
	x.sink(p)
	ctx, cancel := context.WithCancel(x.ctx)
	a := x.await(ctx, 1, p)
	cancel()
	row := x.end(a)[0]
	if row.Hit || !row.Promoting || row.Reason != tier.ReasonPending {
		t.Fatalf("Hit %v, want false; Promoting %v, want true; Reason %v, want %v", row.Hit, row.Promoting, row.Reason, tier.ReasonPending)
	}
	if n := x.waiters(); n != 0 {
		t.Fatalf("%d waiters are left", n)
	}
	x.carry() // goes on without the waiter
	x.wantHit(p)
	x.dropAll() // and nothing holds it
	x.wantOnDisk(p)
}

// What was promoted for somebody stays until he has come for it.
func TestPromotedSegmentIsHeldForItsWaiters(t *testing.T) {
	x := newTwoTiers(t, hybrid(1))
	p := x.mid(1, 64, 8)
	x.sink(p)
	stopped := x.stopWaiter(p)
	x.carry()
	x.dropAll()
	x.wantHit(p) // still here
	rows := stopped()
	x.wantBytes(p, rows[0])
	x.must(x.c.Release(rows[0].Lease))
	x.dropAll()
	x.wantOnDisk(p)
}

// stopWaiter starts a promotion and waits for it, as AwaitAcquire does; what it answers leases
// what has arrived.
func (x *twoTiers) stopWaiter(p piece) func() []Acquired {
	x.Helper()
	x.cat.Mu.Lock()
	flight := x.move.Promotions.PromoteLocked(move.Wanted{Name: tier.Name{Key: p.key}, Profile: x.profileOfLocked(), Tenant: x.cat.Objects.Tenants[tenantA], Urgent: true})
	flight.Join()
	x.cat.Mu.Unlock()
	return func() []Acquired {
		rows, err := x.c.Acquire(x.acquireQuery(p), nil)
		x.must(err)
		x.cat.Mu.Lock()
		x.cat.Objects.Unuse(flight.Arrived())
		x.cat.Mu.Unlock()
		return rows
	}
}

func TestFailedPromotionIsAMissWithItsCause(t *testing.T) {
	for how, row := range map[transfer.Outcome]struct {
		spoil func(x *twoTiers, p piece)
		why   tier.Reason
		then  SegmentStatus
	}{
		transfer.Corrupt: {func(x *twoTiers, _ piece) { x.tier.unread = fmt.Errorf("digest: %w", tier.ErrCorrupt) }, tier.ReasonEvicted,
			SegmentStatus{Status: tier.StatusMiss, Reason: tier.ReasonEvicted}},
		transfer.Unavailable: {func(x *twoTiers, _ piece) { x.tier.unread = fmt.Errorf("EIO: %w", tier.ErrUnavailable) }, tier.ReasonAborted,
			SegmentStatus{Status: tier.StatusHit, Place: tier.PlaceDisk, Tokens: 48}},
		transfer.Gone: {func(x *twoTiers, p piece) { x.tier.Remove(&tier.Name{Key: p.key}) }, tier.ReasonEvicted,
			SegmentStatus{Status: tier.StatusMiss, Reason: tier.ReasonEvicted}},
		transfer.NoRoom: {func(x *twoTiers, _ piece) {
			_, err := x.c.Reserve(x.reserveQuery(x.mid(9, 64, 8), 0))
			x.must(err)
		}, tier.ReasonRefused, SegmentStatus{Status: tier.StatusHit, Place: tier.PlaceDisk, Tokens: 48}},
	} {
		t.Run(how.String(), func(t *testing.T) {
			x := newTwoTiers(t, hybrid(1), poolOf(1))
			p := x.mid(1, 64, 8)
			x.sink(p)
			a := x.await(x.ctx, 1, p)
			row.spoil(x, p)
			x.carry()
			if got := x.end(a)[0]; got.Hit || got.Promoting || got.Reason != row.why {
				t.Fatalf("Hit %v, want false; Promoting %v, want false; Reason %v, want %v", got.Hit, got.Promoting, got.Reason, row.why)
			}
			if got := x.status(p); got != row.then {
				t.Fatalf("got %v, want %v", got, row.then)
			}
			n := x.Counters()
			if n.Promotions[how] != 1 || n.Promoting != 0 || n.Aborted != [stats.Causes]uint64{} {
				t.Fatalf("Promotions[how] %v, want 1; Promoting %v, want 0; Aborted %v, want %v", n.Promotions[how], n.Promoting, n.Aborted, [stats.Causes]uint64{})
			}
			x.audit()
		})
	}
}

// Wrong token ids would be found by nobody else: the digests do not cover them.
func TestContentThatDoesNotFitIsCorrupt(t *testing.T) {
	for name, spoil := range map[string]func(c *tier.Content){
		"tokens":     func(c *tier.Content) { c.Tokens = append([]uint32{c.Tokens[0] + 1}, c.Tokens[1:]...) },
		"few tokens": func(c *tier.Content) { c.Tokens = c.Tokens[1:] },
		"ranks":      func(c *tier.Content) { c.Digests = nil },
		"digests":    func(c *tier.Content) { c.Digests[0] = c.Digests[0][1:] },
	} {
		t.Run(name, func(t *testing.T) {
			x := newTwoTiers(t, hybrid(1))
			p := x.mid(1, 64, 8)
			x.sink(p)
			spoil(&x.tier.entries[tier.Name{Key: p.key}].content)
			x.try(p)
			x.carry()
			if n := x.Counters(); n.Promotions[transfer.Corrupt] != 1 {
				t.Fatalf("Promotions[transfer.Corrupt] %v, want 1", n.Promotions[transfer.Corrupt])
			}
			x.wantUsed(0, 0)
		})
	}
}

func TestWhatIsPromotedCannotBeReserved(t *testing.T) {
	x := newTwoTiers(t, hybrid(1))
	p := x.mid(1, 64, 8)
	x.sink(p)
	x.try(p)
	_, err := x.c.Reserve(x.reserveQuery(p, 0))
	x.wantErr(err, tier.ErrExists) // wanted only
	x.tier.stall = make(chan struct{})
	x.tier.alone = false
	done := make(chan struct{})
	go func() { defer close(done); x.carry() }()
	x.untilReading(1)
	_, err = x.c.Reserve(x.reserveQuery(p, 0))
	x.wantErr(err, tier.ErrExists) // being read
	x.wantOnDisk(p)
	if info := x.Segments(SegmentFilter{}, nil, 10); len(info) != 1 || info[0].Published || !info[0].Promoting || info[0].Lower != tier.LevelLogged {
		t.Fatalf("%v, want len(info) == 1, not info[0].Published, info[0].Promoting, info[0].Lower == tier.LevelLogged", info)
	}
	x.audit()
	close(x.tier.stall)
	<-done
	x.wantHit(p)
}

func (x *twoTiers) untilReading(n int) {
	x.Helper()
	x.until("the tier reads", func() bool {
		x.tier.mu.Lock()
		defer x.tier.mu.Unlock()
		return x.tier.reading == n
	})
}

// The same key has the same bytes, so it may be computed again.
func TestWhatLiesOnDiskOnlyMayBeReserved(t *testing.T) {
	x := newTwoTiers(t, hybrid(1), writeBehind)
	p := x.mid(1, 64, 8)
	x.sink(p)
	r, err := x.c.Reserve(x.reserveQuery(p, 0))
	x.must(err)
	x.wantMiss(p, tier.ReasonPending)
	if row := x.try(p); row.Promoting || row.Reason != tier.ReasonPending {
		t.Fatalf("Promoting %v, want false; Reason %v, want %v", row.Promoting, row.Reason, tier.ReasonPending)
	}
	offered := len(x.tier.offered)
	x.commitAll(x.c, r, &p.layout, contentOf(p, 0))
	x.wantHit(p)
	x.audit()
	if len(x.tier.offered) != offered {
		t.Fatal("it was written although the tier has it")
	}
}

func TestChainIsPromotedFromItsRoot(t *testing.T) {
	x := newTwoTiers(t, hybrid(1))
	var want [][][]byte
	for i, n := range []int{16, 40, 41} {
		begin := []int{0, 16, 40}[i]
		want = append(want, x.save(x.c, x.saveQuery(1, n, begin, tier.Exact), begin))
	}
	x.push()
	q := &LoadQuery{Profile: x.id, Tenant: tenantA, Accept: tier.Exact, Digests: true, Hash: hashOf(1, 41)}
	got := make(chan Loaded)
	go func() {
		l, err := x.c.AwaitLoad(x.ctx, q)
		if err != nil {
			t.Error(err)
		}
		got <- l
	}()
	x.until("a row waits", func() bool { return x.waiters() == 1 })
	for _, end := range []int{16, 40, 41} {
		x.carryOne()
		x.audit()
		x.dropAll() // nothing that the rest needs
		for _, info := range x.Checkpoints(CheckpointFilter{}, nil, 10) {
			if info.Tokens > end || !info.Published {
				t.Fatalf("after node %d: Tokens %v, want at most %v; Published %v, want true", end, info.Tokens, end, info.Published)
			}
		}
	}
	l := <-got
	if !l.Hit || l.Tokens != 41 || len(l.Nodes) != 3 {
		t.Fatalf("Hit %v, want true; Tokens %v, want 41; len(l.Nodes) %v, want 3", l.Hit, l.Tokens, len(l.Nodes))
	}
	again, err := x.c.Load(q)
	if x.must(err); !again.Hit {
		t.Fatalf("it has to be waited for again: %+v", again)
	}
	x.must(x.c.Release(again.Lease))
	for i, node := range l.Nodes {
		bytes := x.load(gpuipc.Ref{Region: x.Arena(), Extents: node.Extents})
		if string(bytes) != string(want[i][0]) {
			t.Fatalf("node %d has other bytes", i)
		}
	}
	x.must(x.c.Release(l.Lease))
	x.dropAll()
	x.wantUsed(0, 0)
}

func TestChainFailsAsAWhole(t *testing.T) {
	x := newTwoTiers(t, hybrid(1))
	x.save(x.c, x.saveQuery(1, 16, 0, tier.Exact), 0)
	x.save(x.c, x.saveQuery(1, 32, 16, tier.Exact), 16)
	x.save(x.c, x.saveQuery(1, 48, 32, tier.Exact), 32)
	x.push()
	if l := x.loadPrefix(x.c, hashOf(1, 48), tier.Exact); l.Hit || !l.Promoting || l.Reason != tier.ReasonPending {
		t.Fatalf("Hit %v, want false; Promoting %v, want true; Reason %v, want %v", l.Hit, l.Promoting, l.Reason, tier.ReasonPending)
	}
	x.carryOne()
	x.tier.unread = fmt.Errorf("EIO: %w", tier.ErrUnavailable)
	x.carry()
	x.audit()
	if n := x.Counters(); n.Promotions[transfer.Done] != 1 || n.Promotions[transfer.Unavailable] != 2 {
		t.Fatalf("Promotions[transfer.Done] %v, want 1; Promotions[transfer.Unavailable] %v, want 2", n.Promotions[transfer.Done], n.Promotions[transfer.Unavailable])
	}
	x.dropAll()
	x.wantUsed(0, 0)
}

// Two leaves of one root: the root comes up once, and a shorter one that is in
// memory is built upon.
func TestChainsShareTheirNodes(t *testing.T) {
	x := newTwoTiers(t, hybrid(1))
	x.save(x.c, x.saveQuery(1, 16, 0, tier.Exact), 0)
	x.save(x.c, x.saveQuery(1, 32, 16, tier.Exact), 16)
	x.save(x.c, x.saveQuery(1, 48, 16, tier.Spliced), 16)
	x.push()
	x.loadPrefix(x.c, hashOf(1, 32), tier.Exact)
	x.loadPrefix(x.c, hashOf(1, 48), tier.Spliced)
	x.audit()
	if n := x.carry(); n != 3 || x.tier.reads != 3 {
		t.Fatalf("%d promotions, %d reads", n, x.tier.reads)
	}
	x.Pools()
	root := x.loadPrefix(x.c, hashOf(1, 16), tier.Exact)
	x.dropAll() // both leaves
	x.loadPrefix(x.c, hashOf(1, 48), tier.Spliced)
	if n := x.carry(); n != 1 {
		t.Fatalf("%d promotions upon a root in memory", n)
	}
	if l := x.loadPrefix(x.c, hashOf(1, 48), tier.Spliced); !l.Hit || len(l.Nodes) != 2 || l.Nodes[0].Extents[0] != root.Nodes[0].Extents[0] {
		t.Fatalf("%v, want l.Hit, len(l.Nodes) == 2, l.Nodes[0].Extents[0] == root.Nodes[0].Extents[0]", l)
	}
}

// Room for a promotion is made by eviction, and what has to be written first is
// waited for.
func TestPromotionWaitsForRoom(t *testing.T) {
	x := newTwoTiers(t, hybrid(1), poolOf(1))
	disk, dirty := x.mid(1, 64, 8), x.mid(2, 64, 8)
	x.sink(disk)
	x.publish(x.c, dirty)
	a := x.await(x.ctx, 1, disk)
	if n := x.carry(); n != 1 || x.move.Promotions.Engine.Parked() != 1 {
		t.Fatalf("%d promotions had their turn, %d wait for room", n, x.move.Promotions.Engine.Parked())
	}
	x.cat.Launch()
	if pool := x.Pools()[0]; pool.DemotingBytes == 0 {
		t.Fatalf("DemotingBytes %v, want other than 0", pool.DemotingBytes)
	}
	x.tier.finishAll()
	if n := x.carry(); n != 1 {
		t.Fatalf("%d promotions", n)
	}
	x.wantBytes(disk, x.end(a)[0])
	x.wantOnDisk(dirty)
}

func TestLeasedMemoryIsNoRoomForAPromotion(t *testing.T) {
	x := newTwoTiers(t, hybrid(1), poolOf(1))
	disk, leased := x.mid(1, 64, 8), x.mid(2, 64, 8)
	x.sink(disk)
	x.publish(x.c, leased)
	x.lease(x.c, leased)
	x.try(disk)
	x.carry()
	x.wantHit(leased)
	x.wantOnDisk(disk)
}

func TestPromotionsAreBounded(t *testing.T) {
	p0 := b0(t).mid(0, 64, 8)
	x := newTwoTiers(t, hybrid(1), realTime, func(c *Config) {
		c.MaxPromotions, c.PromoteQueue = 3, 5
		c.PromoteBytes = 2 * 50 << 10 // two of 48 KiB and ids, not three
	})
	if cost := x.cost(p0); cost > 50<<10 || cost <= 100<<10/3 {
		t.Fatalf("%d bytes", cost)
	}
	var ps []piece
	for i := range 7 {
		ps = append(ps, x.mid(i, 64, 8))
		x.publish(x.c, ps[i])
	}
	x.push()
	x.tier.stall = make(chan struct{})
	x.running()
	rows, err := x.c.Acquire(x.acquireQuery(ps...), nil)
	x.must(err)
	for i, row := range rows {
		if row.Promoting != (i < 5) || row.Reason != tier.ReasonPending {
			t.Fatalf("row %d: Promoting %v, want %v; Reason %v, want %v", i, row.Promoting, (i < 5), row.Reason, tier.ReasonPending)
		}
	}
	x.untilReading(2)
	if n := x.Counters(); n.Promoting != 5 || n.PromotionsBusy != 2 {
		t.Fatalf("Promoting %v, want 5; PromotionsBusy %v, want 2", n.Promoting, n.PromotionsBusy)
	}
	a := x.await(x.ctx, 5, ps[:5]...)
	x.cat.Mu.Lock()
	if n := x.move.Promotions.Engine.Bytes(); n > x.cat.Config.PromoteBytes || n == 0 {
		t.Errorf("%d bytes are read into at once, bound %d", n, x.cat.Config.PromoteBytes)
	}
	x.cat.Mu.Unlock()
	close(x.tier.stall)
	for i, row := range x.end(a) {
		x.wantBytes(ps[i], row)
	}
}

func TestPromotionPastItsTimeIsGivenUp(t *testing.T) {
	x := newTwoTiers(t, hybrid(1))
	wanted, read := x.mid(1, 64, 8), x.mid(2, 64, 8)
	x.publish(x.c, wanted)
	x.publish(x.c, read)
	x.push()
	x.try(read)
	x.tier.stall = make(chan struct{})
	x.tier.alone = false
	done := make(chan struct{})
	go func() { defer close(done); x.carryOne() }()
	x.untilReading(1)
	a := x.await(x.ctx, 2, read, wanted)
	x.clock.advance(time.Hour)
	x.Sweep()
	for _, row := range x.end(a) {
		if row.Hit || row.Promoting || row.Reason != tier.ReasonAborted {
			t.Fatalf("Hit %v, want false; Promoting %v, want false; Reason %v, want %v", row.Hit, row.Promoting, row.Reason, tier.ReasonAborted)
		}
	}
	<-done // the read was told
	x.wantUsed(0, 0)
	x.wantOnDisk(read)
	if n := x.Counters(); n.Promotions[transfer.Stopped] != 2 {
		t.Fatalf("Promotions[transfer.Stopped] %v, want 2", n.Promotions[transfer.Stopped])
	}
}

func TestClosingASessionWakesItsWaiters(t *testing.T) {
	x := newTwoTiers(t, hybrid(1))
	p := x.mid(1, 64, 8)
	x.sink(p)
	a := x.await(x.ctx, 1, p)
	x.c.Close()
	if row := x.end(a)[0]; row.Hit || row.Err == nil {
		t.Fatalf("Hit %v, want false; Err %v, want other than nil", row.Hit, row.Err)
	}
	x.carry()
	x.dropAll()
	x.wantUsed(0, 0)
}

func TestEndOfRunEndsPromotions(t *testing.T) {
	x := newTwoTiers(t, hybrid(1), realTime, func(c *Config) { c.MaxPromotions = 1 })
	read, waits := x.mid(1, 64, 8), x.mid(2, 64, 8)
	x.publish(x.c, read)
	x.publish(x.c, waits)
	x.push()
	x.tier.alone = false
	x.tier.stall = make(chan struct{})
	ctx, cancel := context.WithCancel(x.ctx)
	ended := make(chan error)
	go func() { ended <- x.Run(ctx) }()
	a := x.await(x.ctx, 2, read, waits)
	x.untilReading(1)
	cancel()
	x.must(<-ended)
	for _, row := range x.end(a) {
		if row.Hit || row.Promoting {
			t.Fatalf("Hit %v, want false; Promoting %v, want false", row.Hit, row.Promoting)
		}
	}
	if row := x.try(read); row.Promoting { // nobody would carry it out
		t.Fatalf("Promoting %v, want false", row.Promoting)
	}
	x.wantUsed(0, 0)
}

func TestCloseEndsPromotionsThatNobodyCarriedOut(t *testing.T) {
	x := newTwoTiers(t, hybrid(1))
	p := x.mid(1, 64, 8)
	x.sink(p)
	a := x.await(x.ctx, 1, p)
	x.must(x.Store.Close())
	if row := x.end(a)[0]; row.Hit || row.Err == nil {
		t.Fatalf("Hit %v, want false; Err %v, want other than nil", row.Hit, row.Err)
	}
	x.must(x.staging.Close())
	x.must(x.slots.Close())
	x.bench.Store = nil
}

// A profile may be forgotten while an entry of it is wanted: it has no objects.
func TestForgottenProfileIsNotPromotedFor(t *testing.T) {
	x := newTwoTiers(t, hybrid(1), func(c *Config) { c.MaxProfiles = 1 })
	p := x.mid(1, 64, 8)
	x.sink(p)
	x.try(p)
	x.ReleaseProfile(x.id)
	other := profiletest.New(profiletest.Wide(profile.F32))
	_, err := x.AddProfile(other)
	x.must(err)
	x.carry()
	x.wantUsed(0, 0)
	x.ReleaseProfile(x.id + 1)
	if x.id, err = x.AddProfile(x.profile); err != nil {
		t.Fatal(err)
	}
	x.wantOnDisk(p) // known again by its fingerprint
	x.try(p)
	x.carry()
	x.wantHit(p)
}

// Who asks first and waits then is one request: a hit when what it wants comes, a
// miss when not.
func TestWhatIsAskedForAgainIsCountedOnce(t *testing.T) {
	x := newTwoTiers(t, hybrid(1))
	one, two := x.mid(1, 64, 8), x.mid(2, 64, 8)
	x.sink(one)
	x.sink(two)
	for i, p := range []piece{one, two} {
		q := x.acquireQuery(p)
		q.Again = true
		rows, err := x.c.Acquire(q, nil)
		x.must(err)
		if !rows[0].Promoting {
			t.Fatalf("Promoting %v, want true", rows[0].Promoting)
		}
		ctx, cancel := context.WithCancel(x.ctx)
		a := x.await(ctx, 1, p)
		if i == 0 {
			x.carry()
		} else {
			cancel()
		}
		<-a.done
		cancel()
		if n := x.Counters(); n.Acquired != 1 || n.AcquireMisses != uint64(i) {
			t.Errorf("after %d requests: %d acquired, %d misses", i+1, n.Acquired, n.AcquireMisses)
		}
	}
}
