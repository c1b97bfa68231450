package tiering

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/gpuipctest"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/policy/profile/profiletest"
	"github.com/spliced-kv/spliced/tiering/hbm"
	"github.com/spliced-kv/spliced/tiering/internal/move"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/stats"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/transfer"
)

func TestACopyIsMadeOnDemandAndVerified(t *testing.T) {
	eachDevice(t, func(t *testing.T, open accelerator) {
		b := newBench(t, profiletest.Wide(profile.F32), inHBM(t, open, 8<<20, 0)) // parts of more than a chunk
		x := &twoAndHBM{twoTiers: &twoTiers{bench: b, c: b.NewSession("c")}}
		p := b.mid(1, 600, 8)
		b.publish(x.c, p)
		b.wantHit(p)
		row := b.tryHBM(x.c, p, 0)
		if row.Hit || !row.Promoting || row.Reason != tier.ReasonPending || x.hbmCounters().Promoting != 1 {
			t.Fatalf("Hit %v, want false; Promoting %v, want true; Reason %v, want %v", row.Hit, row.Promoting, row.Reason, tier.ReasonPending)
		}
		if again := b.tryHBM(x.c, p, 0); again.Hit || !again.Promoting {
			t.Fatalf("Hit %v, want false; Promoting %v, want true", again.Hit, again.Promoting)
		}
		if n := b.carryHBM(); n != 1 {
			t.Fatalf("%d promotions of one copy", n)
		}
		x.wantPlace(p, tier.PlaceHBM)
		x.wantCopy(p, 0, b.tryHBM(x.c, p, 0))
		x.wantHBM(x.costHBM(p.layout.Bytes), 0)
		n := x.hbmCounters()
		if n.Promotions[transfer.Done] != 1 || n.PromotedBytes != uint64(p.layout.Bytes) || n.Acquired != 1 || n.AcquireMisses != 2 || n.HitSegments != 1 || n.Copies != 1 {
			t.Fatalf("Promotions[transfer.Done] %v, want 1; PromotedBytes %v, want %v; Acquired %v, want 1; AcquireMisses %v, want 2; HitSegments %v, want 1; Copies %v, want 1", n.Promotions[transfer.Done], n.PromotedBytes, uint64(p.layout.Bytes), n.Acquired, n.AcquireMisses, n.HitSegments, n.Copies)
		}
		if info, _ := b.Segment(p.key); info.Place != tier.PlaceHBM || info.HBM != 1 {
			t.Fatalf("info.Place %v, want %v; info.HBM %v, want 1", info.Place, tier.PlaceHBM, info.HBM)
		}
		if got := x.c.Plans().PlaceOf(b.acquire(x.c, 0, p).Lease); got != tier.PlaceDRAM {
			t.Fatalf("a lease in memory has place %d", got)
		}
	})
}

// A device that refuses a copy is neither lost nor suspect.
func TestACopyThatTheDeviceRefusesCostsThatCopy(t *testing.T) {
	x := newTwoAndHBM(t, hybrid(1))
	p := x.mid(1, 64, 8)
	x.publish(x.c, p)
	for err, how := range map[error]transfer.Outcome{gpuipc.ErrFull: transfer.NoRoom, gpuipc.ErrUnavailable: transfer.Failed, gpuipc.ErrInvalid: transfer.Failed} {
		x.twin.Fail(gpuipctest.OpUpload, 1, err)
		x.tryHBM(x.c, p, 0)
		x.carryHBM()
		x.wantPlace(p, tier.PlaceDRAM)
		if n := x.hbmCounters(); n.Promotions[how] == 0 || n.Promotions[transfer.Corrupt] != 0 || n.Lost != 0 {
			t.Fatalf("%v: Promotions[how] %v, want other than 0; Promotions[transfer.Corrupt] %v, want 0; Lost %v, want 0", err, n.Promotions[how], n.Promotions[transfer.Corrupt], n.Lost)
		}
	}
	x.up(p)
}

// Bytes that have gone wrong in memory are noticed on the way up, and found nowhere.
func TestPromotionsIntoHBMNoticeWrongBytesInMemory(t *testing.T) {
	b := newBench(t, hybrid(1), inHBM(t, ofHostDevices, 8<<20, 8<<20))
	c := b.NewSession("c")
	p := b.mid(1, 64, 8)
	b.publish(c, p)
	row := b.acquire(c, 0, p)
	b.must(b.dev.Store(b.ctx, gpuipc.Ref{Region: b.Arena(), Extents: row.Extents}.Slice(p.layout.Parts[1].Off, 3), []byte("bad")))
	b.tryHBM(c, p, 0)
	b.carryHBM()
	b.wantMiss(p, tier.ReasonAborted)
	if n := b.Counters(); n.CorruptInMemory != 1 || n.HBM.Promotions[transfer.Corrupt] != 1 || n.HBM.Copies != 0 {
		t.Fatalf("CorruptInMemory %v, want 1; HBM.Promotions[transfer.Corrupt] %v, want 1; HBM.Copies %v, want 0", n.CorruptInMemory, n.HBM.Promotions[transfer.Corrupt], n.HBM.Copies)
	}
	b.audit()
	b.must(c.Release(row.Lease))
	b.wantUsed(0, 0)
}

// What was found to be wrong in memory takes its copies along, though the disk may
// have it.
func TestCopiesOfASpoiltObjectAreDropped(t *testing.T) {
	x := newTwoAndHBM(t, hybrid(1))
	p := x.mid(1, 64, 8)
	x.sink(p)
	x.try(p)
	x.carry()
	x.up(p)
	x.cat.Mu.Lock()
	x.cat.Objects.MarkCorrupt(x.cat.Objects.Names.Segment((*[32]byte)(&p.key), x.profileState(), x.cat.Objects.Tenants[tenantA]))
	x.cat.Mu.Unlock()
	x.wantOnDisk(p)
	x.wantHBM(0, 0)
}

// Without a lower tier a copy goes with its object.
func TestACopyGoesWithItsObject(t *testing.T) {
	b := newBench(t, hybrid(1), inHBM(t, ofHostDevices, 8<<20, 8<<20))
	c := b.NewSession("c")
	p := b.mid(1, 64, 8)
	b.publish(c, p)
	id := b.raise(c, p, 0).Lease
	b.cat.Mu.Lock()
	b.move.Evictor.EvictLocked(b.cat.Objects.Pools[objects.PublicPool].Evict, move.ForRoom, nil)
	b.cat.Mu.Unlock()
	b.wantMiss(p, tier.ReasonEvicted)
	if row := b.tryHBM(c, p, 0); row.Hit || row.Promoting {
		t.Fatalf("Hit %v, want false; Promoting %v, want false", row.Hit, row.Promoting)
	}
	if pool := b.Pools()[2]; pool.LeasedBytes == 0 || b.Counters().HBM.Copies != 0 || b.Counters().HBM.Dropped[stats.DropObject] != 1 {
		t.Fatalf("%v, want pool.LeasedBytes != 0, b.Counters().HBM.Copies == 0, b.Counters().HBM.Dropped[stats.DropObject] == 1", pool)
	}
	b.audit()
	b.must(c.Release(id))
	if pool := b.Pools()[2]; pool.UsedBytes != 0 {
		t.Fatalf("UsedBytes %v, want 0", pool.UsedBytes)
	}
}

// What engines read in HBM is in use in memory too.
func TestUsesOfACopyCountForItsObject(t *testing.T) {
	b := newBench(t, hybrid(1), poolOf(2), inHBM(t, ofHostDevices, 8<<20, 8<<20))
	c := b.NewSession("c")
	read, other := b.mid(1, 64, 8), b.mid(2, 64, 8)
	b.publish(c, read)
	b.must(c.Release(b.raise(c, read, 0).Lease))
	b.publish(c, other)
	b.must(c.Release(b.raise(c, read, 0).Lease))
	b.publish(c, b.mid(3, 64, 8))
	b.wantMiss(other, tier.ReasonEvicted)
	if got := b.status(read); got.Place != tier.PlaceHBM {
		t.Errorf("what is read in HBM: status %v, place %v", got.Status, got.Place)
	}
}

// With one it stays while the entry does that was there when its object left.
func TestACopyOutlivesItsObjectOnDisk(t *testing.T) {
	x := newTwoAndHBM(t, hybrid(1))
	p := x.mid(1, 64, 8)
	x.sink(p) // published, written, dropped
	x.wantOnDisk(p)
	row := x.tryHBM(x.c, p, 0) // into memory, and on from there
	if row.Hit || !row.Promoting {
		t.Fatalf("Hit %v, want false; Promoting %v, want true", row.Hit, row.Promoting)
	}
	x.carry()
	x.carryHBM()
	x.up(p)
	x.dropAll()
	x.wantPlace(p, tier.PlaceHBM)
	reads := x.tier.reads
	x.up(p)
	if x.tier.reads != reads {
		t.Fatal("the disk was read for a copy that is in HBM")
	}
	if n := x.Counters(); n.HitSegmentsDisk != 1 || n.HBM.HitSegments != 1 || n.HitSegments != 2 {
		t.Fatalf("HitSegmentsDisk %v, want 1; HBM.HitSegments %v, want 1; HitSegments %v, want 2", n.HitSegmentsDisk, n.HBM.HitSegments, n.HitSegments)
	}

	// A client without the device is told what it would read.
	var r MatchResult
	x.must(x.Match(&MatchQuery{Profile: x.id, Tenant: tenantA, Keys: [][32]byte{p.key}}, &r))
	if r.Segments[0].Place != tier.PlaceDisk || x.hbmCounters().HitSegments != 1 {
		t.Fatalf("%v, want r.Segments[0].Place == tier.PlaceDisk, x.hbmCounters().HitSegments == 1", r.Segments)
	}

	// It is that of the object that comes back with the same bytes.
	x.try(p)
	x.carry()
	x.wantPlace(p, tier.PlaceHBM)
	x.audit()
	x.dropAll()

	// An entry that is written again is another one.
	x.tier.mu.Lock()
	x.tier.entries[tier.Name{Key: p.key}].Generation++
	x.tier.mu.Unlock()
	x.wantOnDisk(p)
	x.Sweep()
	x.wantHBM(0, 0)
	if n := x.hbmCounters(); n.Dropped[stats.DropObject] != 1 {
		t.Fatalf("Dropped[stats.DropObject] %v, want 1", n.Dropped[stats.DropObject])
	}
}

// The copy of a checkpoint has the rows of its chain, stripped nodes included.
func TestALoadedCopyHasTheWholeChain(t *testing.T) {
	eachDevice(t, func(t *testing.T, open accelerator) {
		b := newBench(t, stateful(2), inHBM(t, open, 0, 8<<20))
		x := &twoAndHBM{twoTiers: &twoTiers{bench: b, c: b.NewSession("c")}}
		data := map[int][][]byte{}
		for _, end := range []int{16, 32, 48} {
			data[end] = b.save(x.c, b.saveQuery(1, end, end-16, tier.Exact), end-16)
		}
		b.strip(1, 16)
		b.strip(1, 32)
		for rank := range 2 {
			got := b.raisePrefix(x.c, &LoadQuery{Profile: b.id, Tenant: tenantA, Rank: rank, Accept: tier.Exact | tier.Spliced, Digests: true, Hash: hashOf(1, 48)})
			if !got.Hit || got.Place != tier.PlaceHBM || got.Tokens != 48 || got.Kind != tier.Exact || len(got.Nodes) != 1 || got.Nodes[0].Begin != 0 || got.Nodes[0].End != 48 {
				t.Fatalf("%v, want got.Hit, got.Place == tier.PlaceHBM, got.Tokens == 48, got.Kind == tier.Exact, len(got.Nodes) == 1, got.Nodes[0].Begin == 0, got.Nodes[0].End == 48", got)
			}
			l := b.profile.CheckpointLayout(48)
			x.wantParts(&l, flattened(b.profile, data, rank), x.loadHBM(got.Nodes[0].Extents), got.Nodes[0].Digests)
		}
		l := b.profile.CheckpointLayout(48)
		x.wantHBM(0, 2*x.costHBM(l.Bytes))
		if n := x.hbmCounters(); n.Loaded != 2 || n.LoadMisses != 2 || n.LoadedTokens != 96 {
			t.Fatalf("Loaded %v, want 2; LoadMisses %v, want 2; LoadedTokens %v, want 96", n.Loaded, n.LoadMisses, n.LoadedTokens)
		}
	})
}

// flattened is a chain of checkpoints at 16, 32 and 48 tokens as one node.
func flattened(p *profile.Profile, data map[int][][]byte, rank int) []byte {
	l, node := p.CheckpointLayout(48), p.CheckpointLayout(16)
	out := make([]byte, l.Bytes)
	for i, part := range l.Parts {
		from := node.Parts[i]
		if !plan.IsRows(part.Kind) {
			copy(out[part.Off:], data[48][rank][from.Off:from.Off+from.Len])
			continue
		}
		for k, end := range []int{16, 32, 48} {
			copy(out[part.Off+int64(k)*from.Len:], data[end][rank][from.Off:from.Off+from.Len])
		}
	}
	return out
}

// A promotion holds its object: it can neither be evicted nor be stripped, and what an
// operator removes meanwhile is not found in HBM either.
func TestAPromotionHoldsItsObject(t *testing.T) {
	x := newTwoAndHBM(t, hybrid(1))
	p := x.mid(1, 64, 8)
	x.publish(x.c, p)
	for _, removed := range []bool{false, true} {
		x.tryHBM(x.c, p, 0)
		stall := x.twin.Stall(t, gpuipctest.OpUpload, 2)
		done := make(chan struct{})
		go func() { defer close(done); x.carryHBM() }()
		stall.Await()
		if pool := x.Pools(); pool[0].LeasedBytes != x.cost(p) || pool[2].PendingBytes != x.costHBM(p.layout.Bytes) {
			t.Fatalf("%v, want pool[0].LeasedBytes == x.cost(p), pool[2].PendingBytes == x.costHBM(p.layout.Bytes)", pool)
		}
		x.audit()
		if removed {
			x.must(x.Evict(p.key))
		}
		stall.Release()
		<-done
		x.audit()
		if removed {
			break
		}
		x.wantPlace(p, tier.PlaceHBM)
		id := x.tryHBM(x.c, p, 0).Lease
		x.must(x.c.Release(id))
		x.cat.Mu.Lock()
		x.cat.Objects.HBM.Drop(x.cat.Objects.HBM.Resident(objects.Identity{Name: tier.Name{Key: p.key}, Profile: x.profileState(), Tenant: x.cat.Objects.Tenants[tenantA]}), stats.DropRoom)
		x.cat.Mu.Unlock()
	}
	x.wantMiss(p, tier.ReasonRemoved)
	x.wantHBM(0, 0)
	x.wantUsed(0, 0)
	if n := x.hbmCounters(); n.Promotions[transfer.Gone] != 1 || n.Promotions[transfer.Done] != 1 {
		t.Fatalf("Promotions[transfer.Gone] %v, want 1; Promotions[transfer.Done] %v, want 1", n.Promotions[transfer.Gone], n.Promotions[transfer.Done])
	}
}

func (b *bench) profileState() *objects.Profile {
	p, _ := b.Store.cat.Profile(b.id)
	return p
}

// Copies do not keep what they are copies of from the disk.
func TestCopiesYieldToWritesOfTheirTenant(t *testing.T) {
	x := newTwoAndHBM(t, hybrid(1))
	p := x.mid(1, 64, 8)
	quota := 2*p.charge() + 700
	x = newTwoAndHBM(t, hybrid(1), func(c *Config) { c.Tenants[0].QuotaBytes = quota })
	x.publish(x.c, p)
	x.up(p)
	x.push()
	x.wantOnDisk(p)
	if n := x.hbmCounters(); n.Dropped[stats.DropQuota] != 1 {
		t.Fatalf("Dropped[stats.DropQuota] %v, want 1", n.Dropped[stats.DropQuota])
	}
}

// Nor do they push out what the disk has.
func TestCopiesYieldBeforeTheDiskForgets(t *testing.T) {
	x := newTwoAndHBM(t, hybrid(1))
	p := x.mid(1, 64, 8)
	entry := x.tier.bytesOf(&tier.Object{Shares: []tier.Share{{Ref: gpuipc.Ref{Extents: []gpuipc.Extent{{Len: p.layout.Bytes}}}}}})
	quota := 2*entry + p.charge() + p.layout.Bytes/2
	x = newTwoAndHBM(t, hybrid(1), func(c *Config) { c.Tenants[0].QuotaBytes = quota })
	old, fresh := x.mid(1, 64, 8), x.mid(2, 64, 8)
	x.sink(old)
	x.publish(x.c, fresh)
	x.up(fresh)
	x.push()
	x.wantOnDisk(old)
	x.wantOnDisk(fresh)
}

func TestAwaitAcquireResidentComesUpFromTheDisk(t *testing.T) {
	x := newTwoAndHBM(t, hybrid(1))
	below, above := x.mid(1, 64, 8), x.mid(2, 40, 4)
	x.sink(below)
	x.publish(x.c, above)
	q := x.acquireQuery(below, above)
	if !x.NeedsHBMPromotion(q) {
		t.Fatal("nothing to wait for")
	}
	var rows []Acquired
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		rows, err = x.c.AwaitAcquireResident(x.ctx, q, nil)
	}()
	x.until("both rows wait", func() bool { return x.waiting() == 2 })
	for range 2 {
		x.carryAll()
	}
	for finished := false; !finished; {
		select {
		case <-done:
			finished = true
		default:
			x.carryAll() // a row may ask for its copy only now
		}
	}
	x.must(err)
	x.wantCopy(below, 0, rows[0])
	x.wantCopy(above, 0, rows[1])
	if x.NeedsHBMPromotion(q) || x.waiting() != 0 {
		t.Fatal("still something to wait for")
	}
	if n := x.hbmCounters(); n.AcquireMisses != 0 || n.Acquired != 2 {
		t.Fatalf("AcquireMisses %v, want 0; Acquired %v, want 2", n.AcquireMisses, n.Acquired)
	}
}

func TestAwaitingEndsWithItsContextAndWithItsSession(t *testing.T) {
	x := newTwoAndHBM(t, hybrid(1))
	p := x.mid(1, 64, 8)
	x.publish(x.c, p)
	q := x.acquireQuery(p)
	ctx, cancel := context.WithCancel(x.ctx)
	cancel()
	rows, err := x.c.AwaitAcquireResident(ctx, q, nil)
	if err != nil || rows[0].Hit || !rows[0].Promoting {
		t.Fatalf("%v, want err == nil, not rows[0].Hit, rows[0].Promoting, %v", rows, err)
	}
	session := x.NewSession("short")
	done := make(chan struct{})
	go func() {
		defer close(done)
		rows, err = session.AwaitAcquireResident(x.ctx, q, nil)
	}()
	x.until("the row waits", func() bool { return x.waiting() == 1 })
	session.Close()
	<-done
	if err != nil || !errors.Is(rows[0].Err, tier.ErrGone) || x.waiting() != 0 {
		t.Fatalf("%v, want err == nil, errors.Is(rows[0].Err, tier.ErrGone), x.waiting() == 0, %v", rows, err)
	}
	x.up(p)
}

// All keys or none: what could be leased is given back when another one cannot.
func TestAcquireResidentOfAllOrNone(t *testing.T) {
	x := newTwoAndHBM(t, hybrid(1))
	p, missing := x.mid(1, 64, 8), x.mid(2, 40, 4)
	x.publish(x.c, p)
	x.up(p)
	q := x.acquireQuery(p, missing)
	q.All = true
	rows, err := x.c.AcquireResident(q, nil)
	x.must(err)
	if !errors.Is(rows[0].Err, tier.ErrWithheld) || rows[1].Reason != tier.ReasonUnknown || x.Counters().Leases != 0 {
		t.Fatalf("rows[0].Err %v, want %v; rows[1].Reason %v, want %v", rows[0].Err, tier.ErrWithheld, rows[1].Reason, tier.ReasonUnknown)
	}
}

// A match promotes for engines that are attached, into free room only.
func TestMatchesPromoteForAttachedEngines(t *testing.T) {
	x := newTwoAndHBM(t, tiny(1), func(c *Config) { c.HBM[0].AfterMatch, c.HBM[0].PublicBytes = true, 8192 })
	p, other := x.mid(1, 60, 4), x.mid(2, 60, 4)
	x.publish(x.c, p)
	x.publish(x.c, other)
	x.wantPlace(p, tier.PlaceDRAM)
	if x.carryHBM() != 0 {
		t.Fatal("promoted for nobody")
	}
	detach, err := x.AttachEngine(x.id, 0, device)
	x.must(err)
	x.wantPlace(p, tier.PlaceDRAM)
	x.wantPlace(p, tier.PlaceDRAM)
	if n := x.carryHBM(); n != 1 {
		t.Fatalf("%d promotions", n)
	}
	x.wantPlace(p, tier.PlaceHBM)
	x.wantPlace(other, tier.PlaceDRAM)
	if x.carryHBM(); x.hbmCounters().Promotions[transfer.NoRoom] != 1 {
		t.Fatalf("%d promotions without room, want 1", x.hbmCounters().Promotions[transfer.NoRoom])
	}
	x.wantPlace(p, tier.PlaceHBM)
	x.up(other) // a client may push a guess out
	x.wantPlace(p, tier.PlaceDRAM)
	detach()
	detach()
	x.carryHBM()
	x.wantPlace(p, tier.PlaceDRAM)
	if n := x.carryHBM(); n != 0 {
		t.Fatalf("%d promotions for an engine that has left", n)
	}
}

func TestPromotionsIntoHBMAreBounded(t *testing.T) {
	x := newTwoAndHBM(t, tiny(1), func(c *Config) { c.HBM[0].Queue = 2 })
	for i := range 3 {
		p := x.mid(i, 24, 4)
		x.publish(x.c, p)
		if row := x.tryHBM(x.c, p, 0); row.Promoting != (i < 2) {
			t.Fatalf("promotion %d: Promoting %v, want %v", i, row.Promoting, (i < 2))
		}
	}
	if n := x.hbmCounters(); n.PromotionsBusy != 1 || x.carryHBM() != 2 {
		t.Fatalf("%v, want n.PromotionsBusy == 1, x.carryHBM() == 2", n)
	}
}

// Closing ends what waits and what runs, in order: promotions, then the attachment of
// the arena, then the regions.
func TestCloseUnderAPromotion(t *testing.T) {
	x := newTwoAndHBM(t, hybrid(1), realTime)
	x.running()
	p := x.mid(1, 64, 8)
	x.publish(x.c, p)
	stall := x.twin.Stall(t, gpuipctest.OpUpload, 1)
	var rows []Acquired
	var waiter, closer sync.WaitGroup
	waiter.Go(func() { rows, _ = x.c.AwaitAcquireResident(x.ctx, x.acquireQuery(p), nil) })
	stall.Await()
	store := x.Store
	closer.Go(func() {
		if err := errors.Join(x.staging.Close(), x.slots.Close(), store.Close()); err != nil {
			t.Error(err)
		}
	})
	waiter.Wait() // with its session
	if rows[0].Hit || !errors.Is(rows[0].Err, tier.ErrUnavailable) && !errors.Is(rows[0].Err, tier.ErrGone) {
		t.Errorf("rows[0].Hit %v, want false; rows[0].Err %v, want %v; rows[0].Err %v, want %v", rows[0].Hit, rows[0].Err, tier.ErrUnavailable, rows[0].Err, tier.ErrGone)
	}
	if x.twin.Attached() != 1 {
		t.Error("the arena was taken from under an upload")
	}
	stall.Release()
	closer.Wait()
	if x.twin.Attached() != 0 {
		t.Error("the arena is still attached")
	}
	x.Store = nil
}

func TestHBMThatCannotBeOpened(t *testing.T) {
	b := newBench(t, tiny(1))
	if b.DeviceArena(device) != nil {
		t.Error("an arena without HBM")
	}
	c := b.NewSession("c")
	_, err := c.AcquireResident(&AcquireQuery{Profile: b.id, Tenant: tenantA, Device: device}, nil)
	b.wantErr(err, tier.ErrUnavailable)
	_, err = c.LoadResident(&LoadQuery{Profile: b.id, Tenant: tenantA, Accept: tier.Exact, Device: device})
	b.wantErr(err, tier.ErrUnavailable)
	_, err = b.AttachEngine(b.id, 0, device)
	b.wantErr(err, tier.ErrUnavailable)

	for name, test := range map[string]struct {
		op   gpuipc.Op
		fail error
		want error
	}{
		"no room":      {gpuipc.OpNewRegion, gpuipc.ErrFull, tier.ErrFull},
		"no device":    {gpuipc.OpNewRegion, gpuipc.ErrUnavailable, tier.ErrUnavailable},
		"not attached": {gpuipctest.OpAttachHost, gpuipc.ErrUnavailable, tier.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			var acc *gpuipctest.Accelerator
			var why error
			x := newTwoAndHBM(t, tiny(1), func(c *Config) {
				acc = c.HBM[0].Device.(*gpuipctest.Accelerator)
				acc.Fail(test.op, 1, test.fail)
				c.HBM[0].Lost = func(err error) { why = err }
			})
			if !errors.Is(why, test.want) {
				t.Errorf("lost to %v, want %v", why, test.want)
			}
			p := x.mid(1, 24, 4)
			x.publish(x.c, p)
			if row := x.tryHBM(x.c, p, 0); row.Hit || row.Promoting || row.Reason != tier.ReasonEvicted {
				t.Errorf("%+v on a device that gives no memory", row)
			}
			x.wantPlace(p, tier.PlaceDRAM)
			x.wantHBM(0, 0)
			if n := x.hbmCounters(); n.Lost != 1 || x.DeviceArena(device) != nil {
				t.Errorf("lost %d, want 1", n.Lost)
			}
		})
	}
	bad := []hbm.Config{{PublicBytes: -1, PageBytes: 5000, Promotions: -1}}
	_, err = Open(Config{Device: b.dev, PublicBytes: 1 << 20, Tenants: []Tenant{{ID: 1, Name: "a"}}, HBM: bad})
	b.wantErr(err, tier.ErrInvalid)
	if bad[0].Queue != 0 {
		t.Error("the caller's configuration was changed")
	}
}

// A profile whose only objects are copies of what lies on disk can be forgotten, and
// they go with it.
func TestForgottenProfilesLoseTheirCopies(t *testing.T) {
	x := newTwoAndHBM(t, tiny(1), func(c *Config) { c.MaxProfiles = 1 })
	p := x.mid(1, 24, 4)
	x.publish(x.c, p)
	x.up(p)
	x.push()
	x.wantPlace(p, tier.PlaceHBM)
	x.ReleaseProfile(x.id)
	next := profiletest.New(profiletest.Wide(profile.F32))
	id, err := x.AddProfile(next)
	x.must(err)
	x.Sweep()
	x.wantHBM(0, 0)
	if ids := x.Profiles(); len(ids) != 1 || ids[0].ID != id || !slices.Contains([]tier.ProfileID{2}, id) {
		t.Fatalf("%v, want len(ids) == 1, ids[0].ID == id, slices.Contains([]tier.ProfileID{2}, id)", ids)
	}
}
