package tiering

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/tiering/internal/move"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/transfer"
)

// What only a neighbour has is found in one round trip, fetched, and is an object like
// any other from then on.
func TestAcquireFetchesWhatANeighbourHas(t *testing.T) {
	x := newApart(t, hybrid(2))
	p, q, none := x.mid(1, 64, 8), x.mid(2, 48, 8), x.mid(3, 64, 8)
	x.keep(p, q)
	x.wantFar(p, 0)
	if !x.NeedsPromotion(x.acquireQuery(p)) || x.NeedsPromotion(x.acquireQuery(none)) {
		t.Fatal("what has to be waited for is not told apart")
	}
	a := x.await(x.ctx, 2, p, none, q)
	if n := x.seekAll(); n != 1 || x.far.finds != 1 || x.far.asked != 2 {
		t.Fatalf("%d searches, %d round trips for %d keys", n, x.far.finds, x.far.asked)
	}
	x.wantFar(p, 48) // how much it is is known now
	if n := x.fetchAll(); n != 2 || x.far.reads != 2 {
		t.Fatalf("%d fetches, %d reads", n, x.far.reads)
	}
	rows := x.end(a)
	x.wantBytes(p, rows[0])
	x.wantBytes(q, rows[2])
	if rows[1].Hit || rows[1].Reason != tier.ReasonUnknown {
		t.Fatalf("nobody has it, and it is %v", rows[1])
	}
	x.wantHit(p)
	d, _ := x.Segment(p.key)
	if d.Publisher != "far" || len(d.Tokens) != 64 || d.Lower != 0 {
		t.Fatalf("%v", d)
	}
	var known Known
	x.must(x.Known(x.ctx, &KnownQuery{Profile: x.id, Tenant: tenantA, Tokens: append([]uint32{1}, p.tokens...), SeamTokens: 8, Most: 9}, &known))
	if len(known.Segments) != 1 || known.Segments[0].Key != p.key {
		t.Fatalf("%v is found by its tokens", known.Segments)
	}
	n := x.Counters().Beyond
	if n.HitSegments != 2 || n.HitTokens != 48 || n.Finds[transfer.Done] != 1 || n.Fetches[transfer.Done] != 2 ||
		n.FetchedBytes != uint64(2*p.layout.Bytes+2*q.layout.Bytes+4*(64+48)) || n.Finding+n.Fetching != 0 {
		t.Fatalf("%+v", n)
	}
	if c := x.Counters(); c.PromotedBytes != 0 || c.Promotions[transfer.Done] != 0 {
		t.Fatal("a fetch counts as a read of the disk")
	}
	x.audit()
}

// A fetched object is not written to disk as long as a neighbour has it; it leaves
// memory at once. The last copy is written when it leaves.
func TestFetchedIsNotWrittenUnlessItIsTheLastCopy(t *testing.T) {
	x := newApart(t, hybrid(1), writeBehind)
	p := x.mid(1, 64, 8)
	x.keep(p)
	x.fetch(p)
	if x.tier.waiting() != 0 || x.Pools()[0].DirtyBytes != 0 {
		t.Fatal("it is written to disk")
	}
	if n, err := x.Flush(x.ctx); n != 0 || err != nil {
		t.Fatalf("%d are flushed, %v", n, err)
	}
	x.dropAll()
	if x.tier.waiting() != 0 || x.Counters().Dropped != 1 {
		t.Fatal("its leaving is a write")
	}
	x.wantFar(p, 48) // as was learnt while it was here
	x.fetch(p)
	x.far.believe(tier.Name{Key: p.key}, false)
	x.dropAll()
	x.tier.finishAll()
	x.wantOnDisk(p)
	x.audit()
}

// fetch brings segments here.
func (x *apart) fetch(ps ...piece) {
	x.Helper()
	a := x.await(x.ctx, len(ps), ps...)
	x.seekAll()
	x.fetchAll()
	for i, row := range x.end(a) {
		x.wantBytes(ps[i], row)
		x.must(x.c.Release(row.Lease))
	}
}

// Two clients that ask for the same cost one round trip and one read.
func TestFetchAskedForTwiceRunsOnce(t *testing.T) {
	x := newApart(t, hybrid(1))
	p := x.mid(1, 64, 8)
	x.keep(p)
	other := x.NewSession("other")
	a := x.await(x.ctx, 1, p)
	b := x.awaitFor(x.ctx, other, 2, x.acquireQuery(p, p))
	if row := x.try(p); row.Hit || !row.Promoting || row.Reason != tier.ReasonPending {
		t.Fatalf("%v", row)
	}
	x.seekAll()
	x.until("they wait for the fetch", func() bool { return x.waiting() == 3 })
	d := x.awaitFor(x.ctx, other, 1, x.acquireQuery(p)) // found, and not here yet
	x.fetchAll()
	for _, row := range append(append(x.end(a), x.end(b)...), x.end(d)...) {
		x.wantBytes(p, row)
	}
	if x.far.finds != 1 || x.far.reads != 1 {
		t.Fatalf("%d round trips, %d reads", x.far.finds, x.far.reads)
	}
	if n := x.Counters(); n.Acquired != 4 || n.AcquireMisses != 1 {
		t.Fatalf("Acquired %v, want 4; AcquireMisses %v, want 1", n.Acquired, n.AcquireMisses)
	}
}

// What a match has named and an acquire looks for begins no search of nothing when it is
// its turn to be read ahead.
func TestNothingIsLookedForAheadThatIsLookedFor(t *testing.T) {
	x := newApart(t, hybrid(1), readAhead, poolOf(40))
	p, q := x.mid(1, 64, 8), x.mid(2, 64, 8)
	x.keep(p, q)
	x.askFor(p, q)
	a := x.await(x.ctx, 2, p, q)
	x.carry() // has nothing to read, and looks at the hints
	if n := x.seekAll(); n != 1 || x.far.finds != 1 {
		t.Fatalf("%d searches, %d round trips", n, x.far.finds)
	}
	x.fetchAll()
	for i, row := range x.end(a) {
		x.wantBytes([]piece{p, q}[i], row)
	}
}

// A query that stays near neither looks beyond this node nor waits for what comes from
// there.
func TestNearQueriesStayHere(t *testing.T) {
	x := newApart(t, hybrid(1))
	x.far.own, x.far.stall = false, make(chan struct{})
	p, here := x.mid(1, 64, 8), x.mid(2, 64, 8)
	x.keep(p)
	x.publish(x.c, here)
	x.keepChain(1, 16)
	q := x.acquireQuery(p, here)
	q.Near = true
	near := func(why tier.Reason) {
		t.Helper()
		rows, err := x.c.AwaitAcquire(x.ctx, q, nil)
		x.must(err)
		if rows[0].Hit || rows[0].Promoting || rows[0].Reason != why || !rows[1].Hit {
			t.Fatalf("%+v", rows)
		}
		x.must(x.c.Release(rows[1].Lease))
	}
	near(tier.ReasonUnknown)
	got, err := x.c.AwaitLoad(x.ctx, &LoadQuery{Profile: x.id, Tenant: tenantA, Accept: tier.Exact, Near: true, Hash: hashOf(1, 16)})
	if x.must(err); got.Hit || got.Promoting || got.Reason != tier.ReasonUnknown {
		t.Fatalf("%+v", got)
	}
	if x.far.finds != 0 || x.Counters().Beyond.Finding != 0 {
		t.Fatal("it was looked for beyond this node")
	}
	if n := x.Counters(); n.Acquired != 0 || n.AcquireMisses != 0 || n.LoadMisses != 0 {
		t.Fatalf("a peer's hits and misses count as this node's: %+v", n)
	}
	a := x.await(x.ctx, 1, p)
	near(tier.ReasonUnknown)
	x.seekAll()
	near(tier.ReasonUnknown)
	done := make(chan struct{})
	go func() { defer close(done); x.fetchAll() }()
	x.until("it is read", func() bool { x.far.mu.Lock(); defer x.far.mu.Unlock(); return x.far.reads == 1 })
	near(tier.ReasonPending)
	close(x.far.stall)
	<-done
	x.wantBytes(p, x.end(a)[0])
	x.audit()
}

// A checkpoint comes with what it extends, unless that is here already.
func TestLoadFetchesAChain(t *testing.T) {
	for name, near := range map[string]int{"nothing is here": 0, "its root is here": 1} {
		t.Run(name, func(t *testing.T) {
			x := newApart(t, hybrid(1))
			data := x.keepChain(1, 16, 32, 48)
			if near == 1 {
				data[0] = x.save(x.c, x.saveQuery(1, 16, 0, tier.Exact), 0)
			}
			r := x.matchPrefix(1, tier.Exact|tier.Spliced, 16, 32, 48, 64)
			if r.PrefixTokens != 48 || r.PrefixPlace != tier.PlacePeer || r.PrefixKind != tier.Exact || r.PrefixReason != tier.ReasonUnknown {
				t.Fatalf("%+v", r)
			}
			q := &LoadQuery{Profile: x.id, Tenant: tenantA, Accept: tier.Exact | tier.Spliced, Hash: hashOf(1, 48)}
			got, done := Loaded{}, make(chan error, 1)
			go func() {
				var err error
				got, err = x.c.AwaitLoad(x.ctx, q)
				done <- err
			}()
			x.until("it waits", func() bool { return x.waiting() == 1 })
			x.seekAll()
			x.fetchAll()
			x.must(<-done)
			if !got.Hit || got.Tokens != 48 || len(got.Nodes) != 3 || x.far.reads != 3-near || x.far.asked != 3-near {
				t.Fatalf("%+v after %d reads, %d asked for", got, x.far.reads, x.far.asked)
			}
			for i, node := range got.Nodes {
				if bytes := x.load(gpuipc.Ref{Region: x.Arena(), Extents: node.Extents}); string(bytes) != string(data[i][0]) {
					t.Fatalf("node %d has other bytes", i)
				}
			}
			if n := x.Counters(); n.Beyond.PrefixHits != 1 || n.Beyond.PrefixHitTokens != 48 || n.PrefixHits != 1 {
				t.Fatalf("%+v", n.Beyond)
			}
			x.audit()
		})
	}
}

// A checkpoint whose parent nobody has any more is a miss.
func TestLoadWithoutItsParentIsAMiss(t *testing.T) {
	x := newApart(t, hybrid(1))
	x.keepChain(1, 16, 32)
	x.far.lie = func(e *tier.Entry) {
		if e.Parent != (tier.Name{}) {
			e.Parent.Key[0]++
		}
	}
	q := &LoadQuery{Profile: x.id, Tenant: tenantA, Accept: tier.Exact, Hash: hashOf(1, 32)}
	got, err := x.c.Load(q)
	if x.must(err); !got.Promoting {
		t.Fatalf("%+v", got)
	}
	x.seekAll()
	if x.fetchAll() != 0 {
		t.Fatal("it is fetched without its parent")
	}
	if got, err = x.c.Load(q); err != nil || got.Hit || got.Promoting || got.Reason != tier.ReasonEvicted {
		t.Fatalf("%+v, %v", got, err)
	}
}

// What cannot be had is a miss with a reason, is not asked for again at once, and costs
// no bytes.
func TestFetchesThatFail(t *testing.T) {
	for name, c := range map[string]struct {
		fault func(x *apart, p piece)
		why   tier.Reason
		count func(x *apart) uint64
	}{
		"wrong hint": {func(x *apart, p piece) { x.must(x.far.home.Evict(p.key)) }, tier.ReasonEvicted,
			func(x *apart) uint64 { return x.Counters().Beyond.FindMisses }},
		"gone between find and read": {func(x *apart, _ piece) { x.far.gone = true }, tier.ReasonEvicted,
			func(x *apart) uint64 { return x.Counters().Beyond.Fetches[transfer.Gone] }},
		"corrupt": {func(x *apart, _ piece) { x.far.spoil = func(data []byte) { data[len(data)/2]++ } }, tier.ReasonEvicted,
			func(x *apart) uint64 { return x.Counters().Beyond.Fetches[transfer.Corrupt] }},
		"other token ids": {func(x *apart, _ piece) { x.far.renumber = true }, tier.ReasonEvicted,
			func(x *apart) uint64 { return x.Counters().Beyond.Fetches[transfer.Corrupt] }},
		"another shape": {func(x *apart, _ piece) { x.far.lie = func(e *tier.Entry) { e.End++ } }, tier.ReasonAborted,
			func(x *apart) uint64 { return x.Counters().Beyond.FindsWrong }},
		"another tenant": {func(x *apart, _ piece) { x.far.lie = func(e *tier.Entry) { e.Tenant = tenantB } }, tier.ReasonAborted,
			func(x *apart) uint64 { return x.Counters().Beyond.FindsWrong }},
		"nobody answers": {func(x *apart, _ piece) { x.far.unfound = tier.ErrUnavailable }, tier.ReasonAborted,
			func(x *apart) uint64 { return x.Counters().Beyond.Finds[transfer.Unavailable] }},
		"busy": {func(x *apart, _ piece) { x.far.unfound = tier.ErrBusy }, tier.ReasonRefused,
			func(x *apart) uint64 { return x.Counters().Beyond.Finds[transfer.NoRoom] }},
		"it sends nothing": {func(x *apart, _ piece) { x.far.unread = errors.New("reset") }, tier.ReasonAborted,
			func(x *apart) uint64 { return x.Counters().Beyond.Fetches[transfer.Unavailable] }},
		"not worth its bytes": {func(x *apart, _ piece) { x.far.hint = tier.Hint{Latency: time.Second} }, tier.ReasonRefused,
			func(x *apart) uint64 { return x.Counters().Beyond.NotWorth }},
	} {
		t.Run(name, func(t *testing.T) {
			x := newApart(t, hybrid(1))
			p := x.mid(1, 64, 8)
			x.keep(p)
			c.fault(x, p)
			a := x.await(x.ctx, 1, p)
			x.seekAll()
			x.fetchAll()
			row := x.end(a)[0]
			if row.Hit || row.Promoting || row.Reason != c.why || row.Err != nil || c.count(x) != 1 {
				t.Fatalf("%+v, counted %d", row, c.count(x))
			}
			finds := x.far.finds
			if row := x.try(p); row.Promoting || row.Reason != c.why {
				t.Fatalf("asked again: %+v", row)
			}
			if got := x.status(p); got.Status != tier.StatusMiss {
				t.Fatalf("it is still believed: %v", got)
			}
			x.seekAll()
			if x.far.finds != finds {
				t.Fatal("it is asked for again at once")
			}
			x.wantUsed(0, 0)
			x.far.lie, x.far.spoil, x.far.renumber, x.far.gone, x.far.unread, x.far.unfound = nil, nil, false, false, nil, nil
			x.far.hint = tier.Hint{}
			x.far.hint.BytesPerSecond, x.far.hint.Latency = farBytes, time.Microsecond
			x.clock.advance(move.AnswerTTL)
			x.Sweep()
			if name == "wrong hint" {
				x.far.home.publish(x.far.home.NewSession("far"), p)
			}
			x.fetch(p) // later it can be had
			x.audit()
		})
	}
}

// Whoever waits waits for no longer than he said; the fetch goes on without him.
func TestFetchThatHangs(t *testing.T) {
	x := newApart(t, hybrid(1))
	x.far.own = false
	p := x.mid(1, 64, 8)
	x.keep(p)
	ctx, cancel := context.WithCancel(x.ctx)
	x.far.deaf = make(chan struct{})
	a := x.await(ctx, 1, p)
	cancel()
	if row := x.end(a)[0]; row.Hit || !row.Promoting {
		t.Fatalf("%+v", row)
	}
	done := make(chan struct{})
	go func() { defer close(done); x.seekAll() }()
	x.until("it is asked for", func() bool { x.far.mu.Lock(); defer x.far.mu.Unlock(); return x.far.finds == 1 })
	x.audit()
	x.clock.advance(x.cat.Config.FindTTL)
	x.Sweep() // nobody answers in time
	<-done
	if got := x.status(p); got.Status != tier.StatusMiss || x.Counters().Beyond.Finds[transfer.Unavailable] != 1 {
		t.Fatalf("%v", got)
	}
	x.far.deaf = nil
	x.far.stall = make(chan struct{})
	x.clock.advance(move.AnswerTTL)
	x.Sweep()
	b := x.await(x.ctx, 1, p)
	x.seekAll()
	x.until("it waits for the fetch", func() bool { return x.waiting() == 1 })
	done = make(chan struct{})
	go func() { defer close(done); x.fetchAll() }()
	x.until("it is read", func() bool { x.far.mu.Lock(); defer x.far.mu.Unlock(); return x.far.reads == 1 })
	x.audit()
	x.clock.advance(x.cat.Config.FillTTL)
	x.Sweep()
	if row := x.end(b)[0]; row.Hit || row.Promoting || row.Reason != tier.ReasonAborted {
		t.Fatalf("%+v", row)
	}
	<-done
	x.wantUsed(0, 0)
}

// A neighbour that hangs keeps no disk from being read.
func TestFetchThatHangsLeavesTheDiskAlone(t *testing.T) {
	x := newApart(t, hybrid(1), func(c *Config) { c.MaxFetches, c.MaxFinds, c.MaxPromotions, c.PromoteBytes = 1, 1, 1, 1 })
	far, near := x.mid(1, 64, 8), x.mid(2, 64, 8)
	x.keep(far)
	x.sink(near)
	x.far.own, x.far.stall = false, make(chan struct{})
	x.running()
	hang := x.await(x.ctx, 1, far)
	x.until("it is read", func() bool { x.far.mu.Lock(); defer x.far.mu.Unlock(); return x.far.reads == 1 })
	rows, err := x.c.AwaitAcquire(x.ctx, x.acquireQuery(near), nil)
	x.must(err)
	x.wantBytes(near, rows[0])
	close(x.far.stall)
	x.wantBytes(far, x.end(hang)[0])
}

// What comes another way while it is fetched, or looked for, is there.
func TestPublishedWhileItIsLookedFor(t *testing.T) {
	x := newApart(t, hybrid(1))
	p := x.mid(1, 64, 8)
	x.keep(p)
	a := x.await(x.ctx, 1, p)
	x.publish(x.NewSession("other"), p)
	x.seekAll()
	x.wantBytes(p, x.end(a)[0])
	if x.fetchAll() != 0 {
		t.Fatal("it is fetched although it is here")
	}
	x.clock.advance(move.AnswerTTL)
	x.Sweep()
	if x.far.open != 0 {
		t.Fatal("what was found is kept")
	}
}

// While it is fetched nobody else fills it, and a removal ends it.
func TestFetchIsRemovedByAnOperator(t *testing.T) {
	x := newApart(t, hybrid(1))
	p := x.mid(1, 64, 8)
	x.keep(p)
	a := x.await(x.ctx, 1, p)
	x.seekAll()
	x.until("it waits for the fetch", func() bool { return x.waiting() == 1 })
	_, err := x.c.Reserve(x.reserveQuery(p, 0))
	x.wantErr(err, tier.ErrExists)
	if err := x.Evict(p.key); !errors.Is(err, tier.ErrGone) {
		x.must(err)
	}
	if row := x.end(a)[0]; row.Hit || row.Reason != tier.ReasonAborted {
		t.Fatalf("%+v", row)
	}
	x.cat.Launch()
	x.wantUsed(0, 0)
}

// The quota of a tenant holds for what is fetched; what a guess fetches must not cost it
// anything.
func TestFetchWithinTheQuota(t *testing.T) {
	probe := newBench(t, hybrid(1))
	probe.publish(probe.NewSession("c"), probe.mid(1, 64, 8))
	quota := probe.cat.Objects.Tenants[tenantA].Total() * 3 / 2
	x := newApart(t, hybrid(1), readAhead, func(c *Config) { c.Tenants[0].QuotaBytes = quota })
	p, q := x.mid(1, 64, 8), x.mid(2, 64, 8)
	x.keep(p, q)
	x.fetch(p)
	x.askFor(q)
	x.carry()
	x.seekAll()
	if x.fetchAll() != 0 {
		t.Fatal("a guess is fetched over the quota")
	}
	x.wantHit(p)
	leased := x.lease(x.c, p)
	a := x.await(x.ctx, 1, q)
	x.fetchAll()
	if row := x.end(a)[0]; row.Hit || row.Reason != tier.ReasonRefused {
		t.Fatalf("over the quota: %+v", row)
	}
	x.must(x.c.Release(leased))
	x.fetch(q) // p leaves for it
	x.wantFar(p, 48)
	if x.far.finds != 3 { // what a guess found served the first acquire
		t.Fatalf("%d round trips", x.far.finds)
	}
	x.audit()
}

// A match reads ahead from beyond the node as from the disk, in one round trip.
func TestMatchFetchesAhead(t *testing.T) {
	x := newApart(t, hybrid(1), readAhead, poolOf(40))
	p, q := x.mid(1, 64, 8), x.mid(2, 64, 8)
	x.keep(p, q)
	x.keepChain(1, 16, 32)
	x.askFor(p, q, x.mid(3, 64, 8))
	x.matchPrefix(1, tier.Exact, 16, 32)
	x.carry() // has nothing to read, and looks at the hints
	if n := x.seekAll(); n != 2 || x.far.finds != 3 {
		t.Fatalf("%d searches, %d round trips", n, x.far.finds)
	}
	if n := x.fetchAll(); n != 4 {
		t.Fatalf("%d fetches", n)
	}
	x.wantHit(p)
	x.audit()
	if n := x.Counters(); n.ReadAheadBegun != 4 || n.ReadAheadUsed != 0 {
		t.Fatalf("ReadAheadBegun %v, want 4", n.ReadAheadBegun)
	}
	x.must(x.c.Release(x.lease(x.c, p)))
	if n := x.Counters(); n.ReadAheadUsed != 1 {
		t.Fatal("its use is not counted")
	}
}

// A store that closes ends its searches and fetches and lets go of what was found.
func TestCloseWhileFetching(t *testing.T) {
	x := newApart(t, hybrid(1), func(c *Config) { c.MaxFetches = 1 })
	x.far.own, x.far.stall = false, make(chan struct{})
	p, q, r := x.mid(1, 64, 8), x.mid(2, 64, 8), x.mid(3, 64, 8)
	x.keep(p, q, r)
	ctx, cancel := context.WithCancel(x.ctx)
	ran := later(func() error { return x.Run(ctx) })
	x.tier.alone = false
	a := x.await(x.ctx, 2, p, q)
	x.until("one is read", func() bool { x.far.mu.Lock(); defer x.far.mu.Unlock(); return x.far.reads == 1 })
	x.until("the other one waits for that", func() bool { return x.waiters() == 2 }) // and for no search any more
	x.far.mu.Lock()
	x.far.deaf = make(chan struct{})
	x.far.mu.Unlock()
	b := x.await(x.ctx, 1, r)
	cancel()
	x.must(<-ran)
	for _, row := range append(x.end(a), x.end(b)...) {
		if row.Hit || row.Err == nil && row.Reason != tier.ReasonAborted {
			t.Errorf("%+v", row)
		}
	}
	x.audit()
	store := x.Store
	x.bench.Store = nil
	x.must(errors.Join(x.staging.Close(), x.slots.Close(), store.Close()))
	if x.far.open != 0 {
		t.Errorf("%d copies were not closed", x.far.open)
	}
}

// What is fetched for a client of the device goes on into HBM.
func TestFetchGoesOnIntoHBM(t *testing.T) {
	x := newApart(t, hybrid(2), func(c *Config) { inHBM(t, ofHostDevices, 8<<20, 8<<20)(c) })
	p := x.mid(1, 64, 8)
	x.keep(p)
	up := twoAndHBM{twoTiers: x.twoTiers}
	if row := x.tryHBM(x.c, p, 1); row.Hit || !row.Promoting {
		t.Fatalf("%+v", row)
	}
	x.wantFar(p, 0)
	x.seekAll()
	if x.fetchAll() != 1 || x.carryHBM() != 1 {
		t.Fatal("it is not fetched, or does not go on")
	}
	up.wantCopy(p, 1, x.tryHBM(x.c, p, 1))
	x.audit()
}

// Who has the beginning of a prompt asks for the rest.
func TestACheckpointIsAskedForBehindWhatIsHere(t *testing.T) {
	x := newApart(t, hybrid(1), readAhead)
	x.keepChain(1, 16, 32, 48)
	x.far.believe(tier.Name{Kind: tier.Exact, Key: hashOf(1, 16)}, false)
	x.save(x.c, x.saveQuery(1, 16, 0, tier.Exact), 0)
	q := &MatchQuery{
		Profile: x.id, Tenant: tenantA, Accept: tier.Exact, Positions: []uint32{16, 48}, Prefixes: [][32]byte{hashOf(1, 16), hashOf(1, 48)},
	}
	var r MatchResult
	x.must(x.Match(q, &r))
	if r.PrefixTokens != 48 || r.PrefixPlace != tier.PlacePeer {
		t.Fatalf("%+v", r)
	}
	x.carry()
	x.seekAll()
	x.fetchAll()
	want := tier.Name{Kind: tier.Exact, Key: hashOf(1, 16)}
	if len(x.far.bases) != 2 || x.far.bases[0] != want || x.far.bases[1] != (tier.Name{}) {
		t.Errorf("asked for behind %v, want %v and, of what that extends, nothing", x.far.bases, want)
	}
}

// A client that does not know the place is told of a miss, and of what is here as ever.
func TestLocalMatchIsOfThisNode(t *testing.T) {
	x := newApart(t, hybrid(1), readAhead)
	far, near := x.mid(1, 64, 8), x.mid(2, 64, 8)
	x.keep(far)
	x.keepChain(1, 16, 32)
	x.publish(x.c, near)
	x.save(x.c, x.saveQuery(1, 16, 0, tier.Exact), 0)
	q := &MatchQuery{
		Profile: x.id, Tenant: tenantA, Local: true, Keys: [][32]byte{far.key, near.key},
		Accept: tier.Exact, Positions: []uint32{16, 32}, Prefixes: [][32]byte{hashOf(1, 16), hashOf(1, 32)},
	}
	var r MatchResult
	x.must(x.Match(q, &r))
	if r.Segments[0] != (SegmentStatus{Reason: tier.ReasonUnknown}) || r.Segments[1].Place != tier.PlaceDRAM || r.PrefixTokens != 16 || r.PrefixPlace != tier.PlaceDRAM {
		t.Fatalf("%+v", r)
	}
	x.carry()
	if x.seekAll() != 0 {
		t.Fatal("it is looked for all the same")
	}
	q.Local = false
	x.must(x.Match(q, &r))
	if r.Segments[0].Place != tier.PlacePeer || r.PrefixTokens != 32 || r.PrefixPlace != tier.PlacePeer {
		t.Fatalf("%+v", r)
	}
}

// A prefix beyond the node is answered only if what it has more than the nearer one is
// worth its bytes.
func TestNearerPrefixIsAnsweredWhereTheFartherIsNotWorthIt(t *testing.T) {
	x := newApart(t, hybrid(1))
	x.keepChain(1, 16, 32)
	x.save(x.c, x.saveQuery(1, 16, 0, tier.Exact), 0)
	match := func() MatchResult { return x.matchPrefix(1, tier.Exact, 16, 32) }
	if r := match(); r.PrefixTokens != 32 || r.PrefixPlace != tier.PlacePeer || r.PrefixReason != tier.ReasonNone {
		t.Fatalf("%+v", r)
	}
	// Between what 16 and what 32 tokens take to compute.
	m := x.cat.Objects.Names.Find(tier.Name{Kind: tier.Exact, Key: hashOf(1, 16)}, x.profileState(), x.cat.Objects.Tenants[tenantA]).Profile.Costs.Model().Prefill()
	millis := (m.Marginal(16, 32) + m.Marginal(0, 32)) / 2
	x.far.hint.Latency = time.Duration(millis * float64(time.Millisecond))
	if r := match(); r.PrefixTokens != 16 || r.PrefixPlace != tier.PlaceDRAM {
		t.Fatalf("%+v", r)
	}
	x.dropAll()
	x.tier.finishAll()
	x.tier.forgetAll()
	if r := match(); r.PrefixTokens != 32 || r.PrefixPlace != tier.PlacePeer {
		t.Fatalf("%+v", r)
	}
}

// forgetAll empties a tier.
func (m *mapTier) forgetAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for len(m.entries) > 0 {
		for _, e := range m.entries {
			m.forget(e)
			break
		}
	}
}

// A node without a disk fetches as well, and gives up what it fetched without a trace.
func TestFetchWithoutALowerTier(t *testing.T) {
	n := &neighbour{t: t, home: newBench(t, hybrid(1)), believed: map[tier.Name]bool{}}
	n.hint = tier.Hint{Latency: time.Microsecond, BytesPerSecond: farBytes}
	b := newBench(t, hybrid(1), poolOf(3), readAhead, realTime, func(c *Config) { c.Remote = n })
	n.near, n.dev = b.Store, b.dev
	ctx, cancel := context.WithCancel(b.ctx)
	ran := later(func() error { return b.Run(ctx) })
	t.Cleanup(func() { cancel(); b.must(<-ran) })
	far, c := n.home.NewSession("far"), b.NewSession("c")
	for i := range 12 {
		p := b.mid(i, 64, 8)
		n.home.publish(far, p)
		n.believe(tier.Name{Key: p.key}, true)
	}
	for i := range 24 {
		p := b.mid(i%12, 64, 8)
		rows, err := c.AwaitAcquire(b.ctx, &AcquireQuery{Profile: b.id, Tenant: tenantA, Keys: [][32]byte{p.key}}, nil)
		b.must(err)
		if !rows[0].Hit {
			t.Fatalf("%d: %+v", i, rows[0])
		}
		if got := b.load(gpuipc.Ref{Region: b.Arena(), Extents: rows[0].Extents}); string(got) != string(contentOf(p, 0)) {
			t.Fatalf("%d has other bytes", i)
		}
		b.must(c.Release(rows[0].Lease))
		b.status(b.mid((i+1)%12, 64, 8)) // read ahead, or not
	}
	if n := b.Counters(); n.Dropped == 0 || n.Beyond.Fetches[transfer.Done] < 12 {
		t.Fatalf("%d fetched, %d dropped", n.Beyond.Fetches[transfer.Done], n.Dropped)
	}
}

// A price that a stall has spoilt keeps the work from being done that would correct it.
func TestAPriceThatAStallHasSpoiltFades(t *testing.T) {
	x := newApart(t, hybrid(1))
	costs := x.profileState().Costs
	price := func() float64 { return costs.Model().Link(cost.JobLoadPeer).Millis(1 << 20) }
	right := price()
	for range 4 {
		costs.Did(cost.JobLoadPeer, 1<<20, time.Minute)
	}
	if price() < 10*right {
		t.Fatalf("%v ms, want more than %v", price(), 10*right)
	}
	for range 10 {
		x.Sweep()
		x.clock.advance(time.Minute)
	}
	if price() != right {
		t.Errorf("%v ms after ten minutes, want %v again", price(), right)
	}
}
