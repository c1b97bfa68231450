package tiering

import (
	"context"
	"fmt"
	"testing"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/internal/move"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/stats"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// publishTo publishes a segment at a level, named by its first commit only.
func (x *twoTiers) publishTo(p piece, level tier.Level) Committed {
	x.Helper()
	r, err := x.c.Reserve(x.reserveQuery(p, 0))
	x.must(err)
	return x.commitTo(r, &p.layout, contentOf(p, 0), level)
}

func (x *twoTiers) commitTo(r Reservation, l *profile.Layout, data []byte, level tier.Level) (got Committed) {
	x.Helper()
	for i, part := range l.Parts {
		item := x.item(r.ID, i, 0, data[part.Off:part.Off+part.Len])
		item.Level, level = level, tier.LevelDefault
		var err error
		got, err = x.c.Commit(x.ctx, item)
		x.must(err)
	}
	if !got.Published {
		x.Fatal("not published although complete")
	}
	return got
}

// saveTo saves a checkpoint with an acknowledgement level, and returns what to wait for.
func (x *twoTiers) saveTo(end, parent int, level tier.Level) *Durable {
	x.Helper()
	r, err := x.c.Save(x.saveQuery(1, end, parent, tier.Exact))
	x.must(err)
	l := x.profile.CheckpointLayout(end - parent)
	return x.commitTo(r, &l, content(&l, 3), level).Durable
}

// reached is where a publication stands, without waiting.
func (x *twoTiers) reached(d *Durable) tier.Level {
	x.Helper()
	select {
	case <-d.Done():
		return d.Wait(context.Background())
	default:
		return tier.LevelDefault
	}
}

func TestCommitIsAcknowledgedAtItsLevel(t *testing.T) {
	for _, row := range []struct{ set, ask, want tier.Level }{
		{tier.LevelDefault, tier.LevelDefault, tier.LevelMemory},
		{tier.LevelDefault, tier.LevelMemory, tier.LevelMemory},
		{tier.LevelDefault, tier.LevelLogged, tier.LevelLogged},
		{tier.LevelDefault, tier.LevelSynced, tier.LevelSynced},
		{tier.LevelLogged, tier.LevelDefault, tier.LevelLogged},
		{tier.LevelSynced, tier.LevelDefault, tier.LevelSynced},
	} {
		x := newTwoTiers(t, hybrid(1), func(c *Config) { c.DefaultLevel = row.set })
		p := x.mid(1, 64, 8)
		got := x.publishTo(p, row.ask)
		x.wantHit(p) // it need not be waited for
		if row.want == tier.LevelMemory {
			if got.Durable != nil || len(x.tier.offered) != 0 {
				t.Fatalf("got.Durable %v, want nil; len(x.tier.offered) %v, want 0", got.Durable, len(x.tier.offered))
			}
			continue
		}
		if l := x.reached(got.Durable); l != tier.LevelDefault {
			t.Fatalf("l %v, want %v: reached %v before it was written", l, tier.LevelDefault, l)
		}
		x.tier.finishAll()
		l := x.reached(got.Durable)
		n := x.Counters()
		if l != row.want || n.Acknowledged[row.want] != 1 || n.Written != 1 {
			t.Fatalf("l %v, want %v; n.Acknowledged[row.want] %v, want 1; n.Written %v, want 1", l, row.want, n.Acknowledged[row.want], n.Written)
		}
	}
}

func TestWithoutATierEverythingReachesMemory(t *testing.T) {
	b := newBench(t, hybrid(1), func(c *Config) { c.DefaultLevel = tier.LevelSynced })
	x := &twoTiers{bench: b, c: b.NewSession("c")}
	if got := x.publishTo(b.mid(1, 64, 8), tier.LevelSynced); got.Durable != nil {
		t.Fatalf("Durable %v, want nil", got.Durable)
	}
	if b.NeedsPromotion(x.acquireQuery(b.mid(2, 64, 8))) {
		t.Fatal("there is nowhere to promote from")
	}
	written, err := b.Flush(b.ctx)
	b.must(err)
	if written != 0 {
		t.Fatalf("%d objects written", written)
	}
}

// The object is published whatever becomes of its write.
func TestWhatTheDiskCannotDoReachesMemory(t *testing.T) {
	for name, spoil := range map[string]func(m *mapTier){
		"full":        func(m *mapTier) { m.refuse = tier.ErrFull },
		"quota":       func(m *mapTier) { m.refuse = tier.ErrQuota },
		"unavailable": func(m *mapTier) { m.refuse = tier.ErrUnavailable },
		"failed":      func(m *mapTier) { m.spoil = fmt.Errorf("EIO: %w", tier.ErrUnavailable) },
	} {
		t.Run(name, func(t *testing.T) {
			x := newTwoTiers(t, hybrid(1))
			spoil(x.tier)
			p := x.mid(1, 64, 8)
			got := x.publishTo(p, tier.LevelSynced)
			x.tier.finishAll()
			if l := x.reached(got.Durable); l != tier.LevelMemory {
				t.Fatalf("reached %v", l)
			}
			x.wantHit(p)
			x.audit()
			if n := x.Counters(); n.Acknowledged[tier.LevelMemory] != 1 || n.Written != 0 || x.Pools()[0].DirtyBytes != x.cost(p) {
				t.Fatalf("Acknowledged[tier.LevelMemory] %v, want 1; Written %v, want 0", n.Acknowledged[tier.LevelMemory], n.Written)
			}
		})
	}
}

func TestWaitForALevelEndsWithItsContext(t *testing.T) {
	x := newTwoTiers(t, hybrid(1))
	got := x.publishTo(x.mid(1, 64, 8), tier.LevelLogged)
	ended, cancel := context.WithCancel(x.ctx)
	cancel()
	if l := got.Durable.Wait(ended); l != tier.LevelMemory {
		t.Fatalf("reached %v", l)
	}
	x.tier.finishAll() // goes on without the waiter
	if l := got.Durable.Wait(x.ctx); l != tier.LevelLogged {
		t.Fatalf("reached %v", l)
	}
	for range 100 { // what was reached wins over the context
		if l := got.Durable.Wait(ended); l != tier.LevelLogged {
			t.Fatalf("level %v of an object that is logged", l)
		}
	}
}

// A busy tier holds up those who asked to be held up, in the order they came,
// and nobody else.
func TestBusyTierIsWaitedForInOrder(t *testing.T) {
	x := newTwoTiers(t, hybrid(1), writeBehind)
	x.tier.queue = 1
	var ds []*Durable
	for i := range 4 {
		ds = append(ds, x.publishTo(x.mid(i, 64, 8), tier.LevelLogged).Durable)
	}
	memory := x.publishTo(x.mid(9, 64, 8), tier.LevelMemory)
	if memory.Durable != nil || x.tier.waiting() != 1 {
		t.Fatalf("%d writes", x.tier.waiting())
	}
	for i := range ds {
		x.audit()
		for k, d := range ds {
			if done := x.reached(d) == tier.LevelLogged; done != (k < i) {
				t.Fatalf("after %d writes: number %d done %v", i, k, done)
			}
		}
		x.tier.finish(0, nil)
	}
	x.tier.finishAll()
	x.reached(ds[len(ds)-1])
	n := x.Counters()
	if n.Written != 4 || n.Acknowledged[tier.LevelLogged] != 4 || n.WritesRefused[stats.RefusalBusy] != 1 || x.Pools()[0].DirtyBytes == 0 {
		t.Fatalf("Written %v, want 4; Acknowledged[tier.LevelLogged] %v, want 4; WritesRefused[stats.RefusalBusy] %v, want 1", n.Written, n.Acknowledged[tier.LevelLogged], n.WritesRefused[stats.RefusalBusy])
	}
}

// A disk that hangs holds what it is reading, not all that wants to be written.
func TestHungTierDoesNotHoldMemory(t *testing.T) {
	x := newTwoTiers(t, hybrid(1), poolOf(4))
	x.tier.queue = 1
	var ds []*Durable
	for i := range 10 {
		ds = append(ds, x.publishTo(x.mid(i, 64, 8), tier.LevelLogged).Durable)
		x.audit()
		if i == 0 { // what the tier reads would have to be waited for
			x.lease(x.c, x.mid(0, 64, 8))
		}
	}
	for _, d := range ds[1:] {
		x.reached(d)
	}
	n := x.Counters()
	if n.DemotionsRefused != 6 || n.Acknowledged[tier.LevelMemory] != 6 || x.tier.waiting() != 1 {
		t.Fatalf("DemotionsRefused %v, want 6; Acknowledged[tier.LevelMemory] %v, want 6", n.DemotionsRefused, n.Acknowledged[tier.LevelMemory])
	}
	x.tier.finishAll()
	if l := x.reached(ds[0]); l != tier.LevelLogged {
		t.Fatalf("reached %v", l)
	}
}

// The same of a chain whose root waits for the tier.
func TestHungTierDoesNotHoldChains(t *testing.T) {
	x := newTwoTiers(t, hybrid(1))
	x.tier.queue = 1
	first := x.publishTo(x.mid(0, 64, 8), tier.LevelLogged).Durable
	x.save(x.c, x.saveQuery(1, 16, 0, tier.Exact), 0)
	d := x.saveTo(32, 16, tier.LevelLogged)
	x.dropAll()
	if l := x.reached(d); l != tier.LevelMemory || x.Pools()[objects.PrivatePool].UsedBytes != 0 || x.move.Writes.Engine.Parked() != 0 {
		t.Fatalf("reached %v, %v, want l == tier.LevelMemory, x.Pools()[objects.PrivatePool].UsedBytes == 0, x.down.Parked() == 0", l, x.Pools()[objects.PrivatePool])
	}
	x.tier.finishAll()
	if l := x.reached(first); l != tier.LevelLogged {
		t.Fatalf("reached %v", l)
	}
}

func TestAncestorsAreWrittenFirst(t *testing.T) {
	x := newTwoTiers(t, hybrid(1))
	x.save(x.c, x.saveQuery(1, 16, 0, tier.Exact), 0)
	x.save(x.c, x.saveQuery(1, 32, 16, tier.Exact), 16)
	d := x.saveTo(48, 32, tier.LevelSynced)
	for i, end := range []int{16, 32, 48} {
		if n := len(x.tier.offered); n != i+1 || x.tier.offered[i].End != end || x.reached(d) != tier.LevelDefault {
			t.Fatalf("%d offers before node %d is written", n, end)
		}
		x.tier.finish(0, nil)
		x.audit()
	}
	if l := x.reached(d); l != tier.LevelSynced {
		t.Fatalf("reached %v", l)
	}
	for _, e := range x.tier.entries {
		if e.Level != tier.LevelSynced {
			t.Fatalf("node %d is %v", e.End, e.Level)
		}
	}
}

// A child that must survive more than its parent does takes the parent along,
// also when that is being written at the moment.
func TestAncestorsAreRaisedToTheLevel(t *testing.T) {
	x := newTwoTiers(t, hybrid(1), writeBehind)
	x.save(x.c, x.saveQuery(1, 16, 0, tier.Exact), 0)
	x.tier.finishAll() // logged
	x.save(x.c, x.saveQuery(1, 32, 16, tier.Exact), 16)
	if x.tier.waiting() != 1 {
		t.Fatal("write-behind wrote nothing") // to logged
	}
	d := x.saveTo(48, 32, tier.LevelSynced)
	x.audit()
	x.tier.finishAll()
	if l := x.reached(d); l != tier.LevelSynced {
		t.Fatalf("reached %v", l)
	}
	for _, e := range x.tier.entries {
		if e.Level != tier.LevelSynced {
			t.Fatalf("node %d is %v", e.End, e.Level)
		}
	}
	if n := x.Counters(); n.Written != 3 {
		t.Fatalf("Written %v, want 3", n.Written)
	}
}

func TestChildOfAParentThatFailedIsNotWritten(t *testing.T) {
	x := newTwoTiers(t, hybrid(1))
	x.save(x.c, x.saveQuery(1, 16, 0, tier.Exact), 0)
	d := x.saveTo(32, 16, tier.LevelLogged)
	x.tier.finish(0, fmt.Errorf("EIO: %w", tier.ErrUnavailable))
	if l := x.reached(d); l != tier.LevelMemory || len(x.tier.offered) != 1 {
		t.Fatalf("reached %v with %d offers", l, len(x.tier.offered))
	}
	x.audit()
}

// A parent that a small tier pushes out again is written again, but not for ever.
func TestParentThatDoesNotStayIsGivenUp(t *testing.T) {
	x := newTwoTiers(t, hybrid(1))
	x.save(x.c, x.saveQuery(1, 16, 0, tier.Exact), 0)
	d := x.saveTo(32, 16, tier.LevelLogged)
	x.tier.lose = true
	x.tier.finishAll()
	if l := x.reached(d); l != tier.LevelMemory || len(x.tier.offered) != move.MaxTurns {
		t.Fatalf("reached %v with %d offers", l, len(x.tier.offered))
	}
	x.audit()
}

func TestWriteBehindWritesWhatIsPublished(t *testing.T) {
	x := newTwoTiers(t, hybrid(1), writeBehind, poolOf(2))
	p := x.mid(1, 64, 8)
	if got := x.publishTo(p, tier.LevelDefault); got.Durable != nil || x.tier.waiting() != 1 {
		t.Fatalf("%v, want got.Durable == nil, x.tier.waiting() == 1, %d writes", got, x.tier.waiting())
	}
	x.tier.finishAll()
	if d, _ := x.Segment(p.key); d.Lower != tier.LevelLogged || d.Place != tier.PlaceDRAM {
		t.Fatalf("Lower %v, want %v; Place %v, want %v", d.Lower, tier.LevelLogged, d.Place, tier.PlaceDRAM)
	}
	// What the tier has leaves at once.
	x.publish(x.c, x.mid(2, 64, 8))
	x.tier.finishAll()
	x.publish(x.c, x.mid(3, 64, 8))
	x.wantOnDisk(p)
	if n := x.Counters(); n.Demoted != 1 || n.EvictedRoom != 1 || n.Written != 2 {
		t.Fatalf("Demoted %v, want 1; EvictedRoom %v, want 1; Written %v, want 2", n.Demoted, n.EvictedRoom, n.Written)
	}
}

// Evicted while it is written, an object keeps its memory until the end, and
// only then it is told what became of it.
func TestEvictionDuringAWriteBehind(t *testing.T) {
	for name, row := range map[string]struct {
		err             error
		demoted, failed uint64
	}{
		"succeeds": {nil, 1, 0},
		"fails":    {fmt.Errorf("EIO: %w", tier.ErrUnavailable), 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			x := newTwoTiers(t, hybrid(1), writeBehind, poolOf(1))
			p, q := x.mid(1, 64, 8), x.mid(2, 64, 8)
			x.publish(x.c, p)
			_, err := x.c.Reserve(x.reserveQuery(q, 0))
			x.wantErr(err, tier.ErrBusy)
			x.audit()
			if len(x.tier.offered) != 1 || x.Pools()[0].DemotingBytes != x.cost(p) {
				t.Fatalf("%d offers, %v, want len(x.tier.offered) == 1, x.Pools()[0].DemotingBytes == x.cost(p)", len(x.tier.offered), x.Pools()[0])
			}
			x.tier.finish(0, row.err)
			n := x.Counters()
			if n.Demoted != row.demoted || n.DemotionsFailed != row.failed || n.EvictedRoom != 1 {
				t.Fatalf("Demoted %v, want %v; DemotionsFailed %v, want %v; EvictedRoom %v, want 1", n.Demoted, row.demoted, n.DemotionsFailed, row.failed, n.EvictedRoom)
			}
			x.wantUsed(0, 0)
			x.publish(x.c, q)
		})
	}
}

// The tier may find that the memory does not hold what was published.
func TestWrongBytesInMemoryAreTakenOut(t *testing.T) {
	x := newTwoTiers(t, hybrid(1), writeBehind)
	p := x.mid(1, 64, 8)
	x.publish(x.c, p)
	x.tier.finish(0, fmt.Errorf("digest: %w", tier.ErrCorrupt))
	x.wantMiss(p, tier.ReasonAborted)
	x.wantUsed(0, 0)
	if n := x.Counters(); n.CorruptInMemory != 1 || n.WritesFailed != 1 {
		t.Fatalf("CorruptInMemory %v, want 1; WritesFailed %v, want 1", n.CorruptInMemory, n.WritesFailed)
	}
}

// Hashes of checkpoints come from clients: another tenant's entry of the same
// name is neither taken for ours nor written over.
func TestNameOfAnotherTenantIsNotWrittenOver(t *testing.T) {
	x := newTwoTiers(t, hybrid(1))
	x.save(x.c, x.saveQuery(1, 16, 0, tier.Exact), 0)
	x.push()
	q := x.saveQuery(1, 16, 0, tier.Exact)
	q.Tenant = tenantB
	r, err := x.c.Save(q)
	x.must(err)
	l := x.profile.CheckpointLayout(16)
	d := x.commitTo(r, &l, content(&l, 3), tier.LevelLogged).Durable
	if l := x.reached(d); l != tier.LevelMemory {
		t.Fatalf("reached %v", l)
	}
	if e, _ := x.tier.entries[tier.Name{Kind: tier.Exact, Key: hashOf(1, 16)}], 0; e.Tenant != tenantA || x.Counters().WritesRefused[stats.RefusalOther] != 1 {
		t.Fatalf("%v, want e.Tenant == tenantA, x.Counters().WritesRefused[stats.RefusalOther] == 1", e)
	}
}

func TestUseInMemoryCountsBelow(t *testing.T) {
	x := newTwoTiers(t, hybrid(1), writeBehind)
	p, q := x.mid(1, 64, 8), x.mid(2, 64, 8)
	x.publish(x.c, p)
	x.publish(x.c, q)
	x.tier.finishAll()
	x.must(x.c.Release(x.lease(x.c, p)))
	if x.tier.entries[tier.Name{Key: p.key}].used < x.tier.entries[tier.Name{Key: q.key}].used {
		t.Fatal("the tier thinks that what was leased last is the older one")
	}
}

// What an operator removes does not come back by a write that was under way, nor
// does the next one of the same key vanish with it.
func TestRemovalOutlastsWrites(t *testing.T) {
	for name, leave := range map[string]func(x *twoTiers){
		"in memory": func(*twoTiers) {},
		"evicted":   func(x *twoTiers) { x.dropAll() },
	} {
		t.Run(name, func(t *testing.T) {
			x := newTwoTiers(t, hybrid(1), writeBehind)
			p := x.mid(1, 64, 8)
			x.publish(x.c, p)
			leave(x)
			x.must(x.Evict(p.key))
			x.wantErr(x.Evict(p.key), tier.ErrGone)
			again := x.publishTo(p, tier.LevelLogged) // waits for the removal
			x.audit()
			if x.tier.waiting() != 1 || x.reached(again.Durable) != tier.LevelDefault {
				t.Fatalf("%d writes", x.tier.waiting())
			}
			x.tier.finish(0, nil)
			if x.tier.holds(tier.Name{Key: p.key}) || len(x.cat.Objects.Below.Deleting) != 0 {
				t.Fatal("the removed segment came back")
			}
			x.tier.finishAll()
			if l := x.reached(again.Durable); l != tier.LevelLogged || !x.tier.holds(tier.Name{Key: p.key}) {
				t.Fatalf("reached %v", l)
			}
		})
	}
}

func TestRemovalEndsAPromotion(t *testing.T) {
	x := newTwoTiers(t, hybrid(1))
	p := x.mid(1, 64, 8)
	x.sink(p)
	x.tier.stall = make(chan struct{})
	x.tier.alone = false
	a := x.await(x.ctx, 1, p)
	done := make(chan struct{})
	go func() { defer close(done); x.carry() }()
	x.untilReading(1)
	x.must(x.Evict(p.key))
	if row := x.end(a)[0]; row.Hit || row.Promoting {
		t.Fatalf("Hit %v, want false; Promoting %v, want false", row.Hit, row.Promoting)
	}
	<-done
	x.wantMiss(p, tier.ReasonRemoved)
	x.wantUsed(0, 0)
}

func TestFlushWritesEverythingParentsFirst(t *testing.T) {
	x := newTwoTiers(t, hybrid(1))
	x.tier.held, x.tier.alone = false, false
	x.tier.queue = 2
	for i := range 10 {
		x.publish(x.c, x.mid(i, 64, 8))
	}
	x.lease(x.c, x.mid(3, 64, 8)) // in use or not
	x.save(x.c, x.saveQuery(1, 16, 0, tier.Exact), 0)
	x.save(x.c, x.saveQuery(1, 32, 16, tier.Exact), 16)
	written, err := x.Flush(x.ctx)
	x.must(err)
	if written != 12 || len(x.tier.entries) != 12 {
		t.Fatalf("%d written, %d entries", written, len(x.tier.entries))
	}
	if written, err = x.Flush(x.ctx); err != nil || written != 0 {
		t.Fatalf("%d written again, %v", written, err)
	}
	if n := x.Counters(); n.Acknowledged != [tier.LevelSynced + 1]uint64{} || n.Written != 12 {
		t.Fatalf("Acknowledged %v, want %v; Written %v, want 12", n.Acknowledged, [tier.LevelSynced + 1]uint64{}, n.Written)
	}
}

func TestFlushTellsWhatIsLeft(t *testing.T) {
	x := newTwoTiers(t, hybrid(1))
	x.publish(x.c, x.mid(1, 64, 8))
	x.publish(x.c, x.mid(2, 64, 8))
	ended, cancel := context.WithCancel(x.ctx)
	done := make(chan error)
	go func() { _, err := x.Flush(ended); done <- err }()
	for x.tier.waiting() != 2 {
	}
	cancel()
	x.wantErr(<-done, context.Canceled)
	x.tier.spoil = fmt.Errorf("EIO: %w", tier.ErrUnavailable)
	x.tier.held = false
	x.tier.finishAll()
	_, err := x.Flush(x.ctx)
	x.wantErr(err, tier.ErrUnavailable)
}

// Close waits for what the tier is reading, and ends what waits for the tier.
func TestCloseWaitsForWrites(t *testing.T) {
	x := newTwoTiers(t, hybrid(1))
	x.tier.queue = 1
	running, waits := x.publishTo(x.mid(1, 64, 8), tier.LevelLogged), x.publishTo(x.mid(2, 64, 8), tier.LevelLogged)
	done := later(x.Store.Close)
	if l := waits.Durable.Wait(x.ctx); l != tier.LevelMemory {
		t.Fatalf("reached %v", l)
	}
	select {
	case <-done:
		t.Fatal("closed while the tier reads the arena")
	default:
	}
	x.tier.finish(0, nil)
	x.must(<-done)
	if l := running.Durable.Wait(x.ctx); l != tier.LevelLogged {
		t.Fatalf("reached %v", l)
	}
	x.must(x.staging.Close())
	x.must(x.slots.Close())
	x.bench.Store = nil
}

// A write that hangs costs the memory it reads and a few refusals, until it is
// seen to hang; then the rest of the pool serves who publishes, whether what is in
// it could be dropped at once or would have to be written.
func TestWriteThatHangsDoesNotStopReservations(t *testing.T) {
	for name, clean := range map[string]bool{"others are on disk": true, "others are only in memory": false} {
		t.Run(name, func(t *testing.T) {
			x := newTwoTiers(t, hybrid(1), poolOf(8))
			x.cat.Objects.Policies.WriteBehind = true
			x.publish(x.c, x.mid(0, 64, 8)) // its write never ends
			x.cat.Objects.Policies.WriteBehind = clean
			for i := 1; i < 8; i++ {
				x.publish(x.c, x.mid(i, 64, 8))
				if clean {
					x.tier.finish(1, nil)
				}
			}
			// The oldest leaves, and its memory with it only when it was read.
			_, err := x.c.Reserve(x.reserveQuery(x.mid(99, 64, 8), 0))
			x.wantErr(err, tier.ErrBusy)
			for range move.HungSweeps {
				x.Sweep()
			}
			for i := range 50 {
				r, err := x.c.Reserve(x.reserveQuery(x.mid(100+i, 64, 8), 0))
				if err != nil {
					t.Fatalf("reservation %d: %v", i, err)
				}
				x.must(x.c.Abort(r.ID))
				x.audit()
			}
			x.tier.finishAll()
			x.audit()
		})
	}
}

func TestSpoiltCheckpointsAreNotServedNorWhatExtendsThem(t *testing.T) {
	x := newTwoTiers(t, hybrid(1), writeBehind)
	x.save(x.c, x.saveQuery(1, 16, 0, tier.Exact), 0)
	x.save(x.c, x.saveQuery(1, 32, 16, tier.Exact), 16)
	x.tier.finish(0, fmt.Errorf("digest: %w", tier.ErrCorrupt))
	x.tier.finishAll()
	if n := x.Counters(); n.CorruptInMemory != 1 {
		t.Fatalf("CorruptInMemory %v, want 1", n.CorruptInMemory)
	}
	for _, tokens := range []int{16, 32} {
		if l := x.loadPrefix(x.c, hashOf(1, tokens), tier.Exact); l.Hit {
			t.Errorf("the checkpoint of %d tokens is leased", tokens)
		}
	}
	x.audit()
}

// What it extends may leave its states and get them back, which makes what
// extends it worth another try; not what is wrong.
func TestSpoiltCheckpointIsNotOfferedAgain(t *testing.T) {
	x := newTwoTiers(t, stateful(1), writeBehind)
	x.save(x.c, x.saveQuery(1, 16, 0, tier.Exact), 0)
	x.tier.finishAll()
	x.tier.spoil = tier.ErrCorrupt
	x.save(x.c, x.saveQuery(1, 32, 16, tier.Exact), 16)
	x.save(x.c, x.saveQuery(1, 48, 32, tier.Exact), 32)
	x.tier.finishAll()
	x.tier.spoil = nil
	x.strip(1, 16)
	if l := x.loadPrefix(x.c, hashOf(1, 16), tier.Exact); !l.Promoting {
		t.Fatalf("Promoting %v, want true", l.Promoting)
	}
	x.carry()
	x.cat.Mu.Lock()
	o := x.node(1, 32)
	if !o.Corrupt {
		t.Error("a checkpoint whose write found its bytes wrong is not marked")
	}
	_ = x.move.Writes.CleanLocked()
	if o.Write != nil {
		t.Error("a corrupt checkpoint is offered to the tier again")
	}
	x.cat.Mu.Unlock()
	x.cat.Launch()
	x.tier.finishAll()
	x.audit()
}
