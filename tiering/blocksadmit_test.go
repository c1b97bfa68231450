package tiering

import (
	"testing"

	"github.com/spliced-kv/spliced/tiering/decision"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// all acquires pieces together, without waiting.
func (x *twoTiers) all(c *Session, ps ...piece) []Acquired {
	x.Helper()
	q := x.acquireQuery(ps...)
	q.All = true
	rows, err := c.Acquire(q, nil)
	x.must(err)
	if len(rows) != len(ps) {
		x.Fatalf("%d rows for %d keys", len(rows), len(ps))
	}
	return rows
}

// start begins an AwaitAcquire of all pieces or none and returns when n rows wait.
func (x *twoTiers) start(c *Session, n int, ps ...piece) *awaiting {
	x.Helper()
	q := x.acquireQuery(ps...)
	q.All = true
	return x.awaitFor(x.ctx, c, n, q)
}

// bring acquires pieces together, n of which lie below, and waits for them.
func (x *twoTiers) bring(c *Session, n int, ps ...piece) []Acquired {
	x.Helper()
	a := x.start(c, n, ps...)
	x.carry()
	return x.end(a)
}

// wantNothing checks that a session holds nothing and that nothing is on its way.
func (x *twoTiers) wantNothing(c *Session) {
	x.Helper()
	if leases, _ := c.Holdings(); leases != 0 || x.Counters().Promoting != 0 {
		x.Fatalf("%d leases, %d promotions", leases, x.Counters().Promoting)
	}
	x.audit()
}

func TestAllKeysAreLeasedTogether(t *testing.T) {
	x := newTwoTiers(t, hybrid(1))
	a, b := x.mid(1, 64, 8), x.mid(2, 64, 8)
	x.publish(x.c, a)
	x.publish(x.c, b)
	rows := x.all(x.c, a, b, a)
	x.wantBytes(a, rows[0])
	x.wantBytes(b, rows[1])
	x.wantBytes(a, rows[2])
	for _, row := range rows {
		x.must(x.c.Release(row.Lease))
	}
	x.wantNothing(x.c)
}

func TestOneMissWithholdsTheOthers(t *testing.T) {
	x := newTwoTiers(t, hybrid(1))
	held, none, disk := x.mid(1, 64, 8), x.mid(2, 64, 8), x.mid(3, 64, 8)
	x.sink(disk)
	x.publish(x.c, held)
	rows := x.all(x.c, held, none, disk, none)
	x.wantErr(rows[0].Err, tier.ErrWithheld)
	x.wantErr(rows[2].Err, tier.ErrWithheld)
	for _, row := range []Acquired{rows[1], rows[3]} {
		if row.Hit || row.Err != nil || row.Reason != tier.ReasonUnknown {
			t.Fatalf("Hit %v, want false; Err %v, want nil; Reason %v, want %v", row.Hit, row.Err, row.Reason, tier.ReasonUnknown)
		}
	}
	if n := x.Counters(); n.AcquireMisses != 2 || n.AcquireRefused != 0 {
		t.Fatalf("%d misses, %d refused", n.AcquireMisses, n.AcquireRefused)
	}
	x.wantNothing(x.c)

	// What another client is filling is a miss as well.
	r, err := x.c.Reserve(x.reserveQuery(none, 0))
	x.must(err)
	rows = x.all(x.c, none, held)
	if rows[0].Reason != tier.ReasonPending || rows[0].Err != nil {
		t.Fatalf("%v, want rows[0].Reason == tier.ReasonPending, rows[0].Err == nil", rows[0])
	}
	x.wantErr(rows[1].Err, tier.ErrWithheld)
	x.must(x.c.Abort(r.ID))
}

// Room for three segments, two in use: a request for two more that lie below is
// refused as a whole, and costs nobody anything.
func TestWhatDoesNotFitTogetherIsRefusedUntouched(t *testing.T) {
	x := newTwoTiers(t, hybrid(1), poolOf(3))
	a, b, c, d := x.mid(1, 64, 8), x.mid(2, 64, 8), x.mid(3, 64, 8), x.mid(4, 64, 8)
	for _, p := range []piece{a, b} {
		x.sink(p)
	}
	other := x.NewSession("other")
	x.publish(x.c, c)
	x.publish(x.c, d)
	x.push() // to disk as well
	for _, p := range []piece{c, d} {
		x.wantBytes(p, x.bring(other, 1, p)[0])
	}
	before := x.Counters()
	rows := x.all(x.c, a, b)
	for _, row := range rows {
		x.wantErr(row.Err, tier.ErrFull)
	}
	q := x.acquireQuery(a, b)
	q.All = true
	rows, err := x.c.AwaitAcquire(x.ctx, q, nil)
	x.must(err)
	for _, row := range rows {
		x.wantErr(row.Err, tier.ErrFull)
	}
	after := x.Counters()
	if after.AcquireRefused != 2 || after.EvictedRoom != before.EvictedRoom || after.Promoting != 0 || after.Acquired != before.Acquired {
		t.Fatalf("AcquireRefused %v, want 2; EvictedRoom %v, want %v; Promoting %v, want 0; Acquired %v, want %v", after.AcquireRefused, after.EvictedRoom, before.EvictedRoom, after.Promoting, after.Acquired, before.Acquired)
	}
	if d := x.lastDecisions(1)[0]; d.What != decision.Refuse || d.Why != decision.Together || d.Name.Key != [32]byte(a.key) || d.Bytes != 2*x.cost(a) {
		t.Fatalf("What %v, want %v; Why %v, want %v; Name.Key %x, want %x; Bytes %v, want %v", d.What, decision.Refuse, d.Why, decision.Together, d.Name.Key, [32]byte(a.key), d.Bytes, 2*x.cost(a))
	}
	if leases, _ := x.c.Holdings(); leases != 0 {
		t.Fatalf("%d leases", leases)
	}
	// One of them fits, and both do once the other request has ended. A key in
	// memory that nobody uses must not be evicted for its neighbour.
	x.wantBytes(a, x.bring(x.c, 1, a)[0])
	rows = x.all(x.c, a, b)
	x.wantErr(rows[0].Err, tier.ErrFull)
	if leases, _ := x.c.Holdings(); leases != 1 {
		t.Fatalf("%d leases", leases)
	}
	other.Close()
	got := x.bring(x.c, 1, a, b)
	x.wantBytes(a, got[0])
	x.wantBytes(b, got[1])
}

// Idle segments of the request itself are no room for its others.
func TestIdleKeysOfARequestAreNoRoomForIt(t *testing.T) {
	x := newTwoTiers(t, hybrid(1), poolOf(2))
	a, b, c := x.mid(1, 64, 8), x.mid(2, 64, 8), x.mid(3, 64, 8)
	for _, p := range []piece{a, b, c} {
		x.sink(p)
	}
	for _, row := range x.bring(x.c, 2, b, c) {
		x.must(x.c.Release(row.Lease))
	}
	rows := x.all(x.c, a, b, c)
	for _, row := range rows {
		x.wantErr(row.Err, tier.ErrFull)
	}
	x.wantHit(b)
	x.wantHit(c)
	x.wantNothing(x.c)
	got := x.bring(x.c, 1, a, b) // c leaves
	x.wantBytes(a, got[0])
	x.wantBytes(b, got[1])
}

func TestLeasesOfASessionBoundWhatIsLeasedTogether(t *testing.T) {
	x := newTwoTiers(t, hybrid(1), bounds(3))
	a, b := x.mid(1, 64, 8), x.mid(2, 64, 8)
	x.publish(x.c, a)
	x.publish(x.c, b)
	x.lease(x.c, a)
	x.lease(x.c, a)
	for _, row := range x.all(x.c, a, b) {
		x.wantErr(row.Err, tier.ErrBusy)
	}
	if leases, _ := x.c.Holdings(); leases != 2 {
		t.Fatalf("%d leases", leases)
	}
	if row := x.all(x.c, b)[0]; !row.Hit {
		t.Fatalf("Hit %v, want true", row.Hit)
	}
}

// Without a wait, what lies below is on its way and nothing is leased.
func TestTogetherWithoutAWaitLeasesNothing(t *testing.T) {
	x := newTwoTiers(t, hybrid(1))
	a, b := x.mid(1, 64, 8), x.mid(2, 64, 8)
	x.sink(a)
	x.publish(x.c, b)
	rows := x.all(x.c, a, b)
	if !rows[0].Promoting || rows[0].Hit {
		t.Fatalf("Promoting %v, want true; Hit %v, want false", rows[0].Promoting, rows[0].Hit)
	}
	x.wantErr(rows[1].Err, tier.ErrWithheld)
	x.carry()
	x.wantNothing(x.c)
	for i, row := range x.all(x.c, a, b) {
		if !row.Hit {
			t.Fatalf("row %d: Hit %v, want true", i, row.Hit)
		}
	}
}

// A promotion that fails leaves no lease of the others behind.
func TestFailedPromotionWithholdsTheOthers(t *testing.T) {
	x := newTwoTiers(t, hybrid(1))
	a, b := x.mid(1, 64, 8), x.mid(2, 64, 8)
	x.sink(a)
	x.publish(x.c, b)
	w := x.start(x.c, 1, a, b)
	if !x.Store.cat.Config.Lower.Remove(&tier.Name{Key: a.key}) {
		t.Fatal("nothing to remove")
	}
	x.carry()
	rows := x.end(w)
	if rows[0].Hit || rows[0].Err != nil {
		t.Fatalf("%v, want not rows[0].Hit, rows[0].Err == nil", rows[0])
	}
	x.wantErr(rows[1].Err, tier.ErrWithheld)
	x.wantNothing(x.c)
	x.wantHit(b)
}

func TestQuotaBoundsWhatIsReadTogether(t *testing.T) {
	// Room for four of the tenant's segments in both tiers together.
	x := newTwoTiers(t, hybrid(1), func(c *Config) { c.Tenants[0].QuotaBytes = 200 << 10 })
	a, b := x.mid(1, 64, 8), x.mid(2, 64, 8)
	x.sink(a)
	x.sink(b)
	other := x.NewSession("other")
	c := x.mid(3, 64, 8)
	x.publish(other, c)
	x.lease(other, c)
	for _, row := range x.all(x.c, a, b) {
		x.wantErr(row.Err, tier.ErrFull)
	}
	if n := x.Counters(); n.AcquireRefused != 1 || n.Promoting != 0 || n.TrimmedBytes != 0 {
		t.Fatalf("AcquireRefused %v, want 1; Promoting %v, want 0; TrimmedBytes %v, want 0", n.AcquireRefused, n.Promoting, n.TrimmedBytes)
	}
	if !x.bring(x.c, 1, a)[0].Hit {
		t.Fatal("one of them fits")
	}
}
