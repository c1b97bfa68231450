package tiering

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/internal/move"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// mapSink is a Sink out of a map, and a Remote that hints at what is in it. What it is
// sent it copies when the test says so. It checks that memory stays as it was admitted.
type mapSink struct {
	b *bench

	mu      sync.Mutex
	entries map[tier.Name]*sinkEntry
	waiting []*sinkWrite
	refuse  error
	spoil   error // what writes end with
	most    int   // writes at once; 0 = any
	order   []tier.Name
	expect  tier.Hint
	hinted  bool // what it has
}

type sinkEntry struct {
	object *tier.Object
	shares [][]byte
}

type sinkWrite struct {
	sink   *mapSink
	object *tier.Object
	shares [][]byte // as they were admitted
	done   func(tier.Level, error)
}

func (m *mapSink) Expect() tier.Hint { return m.expect }

func (m *mapSink) Hint(w *tier.Want) (tier.Hint, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return tier.Hint{Place: tier.PlaceObject, Latency: m.expect.Latency, BytesPerSecond: m.expect.BytesPerSecond}, m.hinted && m.entries[w.Name] != nil
}

func (m *mapSink) Find(_ context.Context, wants []tier.Want) ([]tier.Copy, error) {
	return make([]tier.Copy, len(wants)), nil
}

func (m *mapSink) Admit(o *tier.Object) (tier.Write, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.b.cat.Mu.TryLock() {
		m.b.cat.Mu.Unlock()
		m.b.Error("Admit without the store's lock")
	}
	n := tier.Name{Kind: o.Kind, Key: o.Key}
	switch {
	case m.refuse != nil:
		return nil, m.refuse
	case m.entries[n] != nil:
		return nil, tier.ErrExists
	case m.most > 0 && len(m.waiting) >= m.most:
		return nil, tier.ErrBusy
	}
	w := &sinkWrite{sink: m, object: o}
	for i := range o.Shares {
		w.shares = append(w.shares, m.b.load(o.Shares[i].Ref))
	}
	m.waiting = append(m.waiting, w)
	return w, nil
}

func (w *sinkWrite) Cancel() { panic("not used") }

func (w *sinkWrite) Start(_ tier.Level, done func(tier.Level, error)) {
	w.sink.mu.Lock()
	defer w.sink.mu.Unlock()
	w.done = done
}

// take ends the oldest write, and tells whether there was one.
func (m *mapSink) take() bool {
	m.mu.Lock()
	if len(m.waiting) == 0 || m.waiting[0].done == nil {
		m.mu.Unlock()
		return false
	}
	w := m.waiting[0]
	m.waiting = m.waiting[1:]
	err := m.spoil
	if err == nil {
		n := tier.Name{Kind: w.object.Kind, Key: w.object.Key}
		e := &sinkEntry{object: w.object}
		for i := range w.object.Shares {
			e.shares = append(e.shares, m.b.load(w.object.Shares[i].Ref))
			if !bytes.Equal(e.shares[i], w.shares[i]) {
				m.b.Errorf("%v: its memory has changed before done", n)
			}
		}
		m.entries[n] = e
		m.order = append(m.order, n)
	}
	m.mu.Unlock()
	if err != nil {
		w.done(tier.LevelMemory, err)
	} else {
		w.done(tier.LevelSynced, nil)
	}
	return true
}

func (m *mapSink) takeAll() (n int) {
	for m.take() {
		n++
	}
	return n
}

func (m *mapSink) sent(p piece) bool { return m.entries[tier.Name{Key: p.key}] != nil }

// sinking is a bench whose store has a sink.
type sinking struct {
	*bench
	sink *mapSink
	c    *Session
}

// newSinking is a store of one goroutine with a sink; change is of its outlet.
func newSinking(t testing.TB, id profile.Identity, change func(*Outlet), options ...option) *sinking {
	t.Helper()
	x := &sinking{sink: &mapSink{entries: map[tier.Name]*sinkEntry{}, expect: tier.Hint{Latency: time.Microsecond, BytesPerSecond: farBytes}}}
	out := Outlet{To: x.sink}
	if change != nil {
		change(&out)
	}
	x.bench = newBench(t, id, append([]option{func(c *Config) { c.Outlets, c.Remote = []Outlet{out}, x.sink }}, options...)...)
	x.sink.b = x.bench
	x.c = x.NewSession("c")
	t.Cleanup(func() { x.sink.takeAll() }) // a store that closes waits for them
	return x
}

func TestWhatLeavesMemoryIsSent(t *testing.T) {
	x := newSinking(t, hybrid(2), nil, poolOf(200))
	p := x.mid(1, 64, 8)
	x.publish(x.c, p)
	if len(x.sink.waiting) != 0 {
		t.Fatal("it is sent before it leaves")
	}
	x.dropAll()
	x.wantMiss(p, tier.ReasonEvicted)
	if n := x.Pools()[0]; n.UsedBytes != x.cost(p) || n.DemotingBytes != x.cost(p) {
		t.Fatalf("its memory is not kept: %+v", n)
	}
	x.audit()
	if x.sink.takeAll() != 1 {
		t.Fatal("nothing is sent")
	}
	for rank, got := range x.sink.entries[tier.Name{Key: p.key}].shares {
		if !bytes.Equal(got, contentOf(p, rank)) {
			t.Fatal("other bytes are sent")
		}
	}
	x.wantUsed(0, 0)
	n := x.Counters().Offload
	if n.Offered != 1 || n.Sent != 1 || n.SentBytes != uint64(2*p.layout.Bytes+4*64) || n.Sending != 0 || n.SendingBytes != 0 {
		t.Fatalf("%+v", n)
	}
	x.publish(x.c, p)
	x.dropAll() // and there it is already
	if n := x.Counters().Offload; n.Sent != 2 || n.SentBytes != uint64(2*p.layout.Bytes+4*64) || x.sink.takeAll() != 0 {
		t.Fatalf("%+v", n)
	}
	x.wantUsed(0, 0)
}

func TestWhatOthersHaveOrIsNotWorthItIsNotSent(t *testing.T) {
	x := newSinking(t, hybrid(1), nil, poolOf(200))
	x.sink.hinted = true
	p, q := x.mid(1, 64, 8), x.mid(2, 64, 8)
	x.sink.entries[tier.Name{Key: p.key}] = &sinkEntry{}
	x.publish(x.c, p)
	x.dropAll()
	x.sink.expect.Latency = time.Second
	x.publish(x.c, q)
	x.dropAll()
	if n := x.Counters().Offload; n.Offered != 0 || n.Elsewhere != 1 || n.NotWorth != 1 {
		t.Fatalf("%+v", n)
	}
	x.wantUsed(0, 0)
}

func TestAMatchTellsApartWhatLiesInAStore(t *testing.T) {
	x := newSinking(t, hybrid(1), nil)
	x.sink.hinted = true
	p := x.mid(1, 64, 8)
	x.publish(x.c, p)
	x.dropAll()
	x.sink.takeAll()
	if got := x.status(p); got.Place != tier.PlacePeer || got.Tokens != 48 {
		t.Fatalf("%+v", got)
	}
	if n := x.Counters(); n.Object.HitSegments != 1 || n.Object.HitTokens != 48 || n.Beyond.HitSegments != 1 {
		t.Fatalf("%+v of %+v", n.Object, n.Beyond)
	}
}

func TestWhatIsUsedAgainIsSentWhileItStays(t *testing.T) {
	x := newSinking(t, hybrid(1), nil, poolOf(200))
	p := x.mid(1, 64, 8)
	x.publish(x.c, p)
	x.must(x.c.Release(x.lease(x.c, p)))
	if x.Sweep(); x.sink.takeAll() != 0 {
		t.Fatal("one use is enough")
	}
	id := x.lease(x.c, p)
	x.Sweep()
	x.audit()
	if x.sink.takeAll() != 1 {
		t.Fatal("it is not sent")
	}
	x.must(x.c.Release(id))
	x.must(x.c.Release(x.lease(x.c, p)))
	if x.Sweep(); x.sink.takeAll() != 0 {
		t.Fatal("it is sent twice")
	}
	x.wantHit(p)
	x.dropAll()
	x.wantUsed(0, 0)
}

func TestWhatIsSentStaysUntilItIsRead(t *testing.T) {
	x := newSinking(t, hybrid(1), nil, poolOf(16))
	first := x.mid(0, 64, 8)
	x.publish(x.c, first)
	x.must(x.c.Release(x.lease(x.c, first)))
	x.must(x.c.Release(x.lease(x.c, first)))
	x.cat.Launch()
	for i := range 50 {
		x.publish(x.c, x.mid(1+i, 64, 8))
	}
	x.wantHit(first) // it may not leave meanwhile
	x.audit()
	x.sink.takeAll()
	for i := range 50 {
		x.publish(x.c, x.mid(100+i, 64, 8))
	}
	x.sink.takeAll()
	x.audit()
}

func TestAllIsSentAsItIsPublished(t *testing.T) {
	x := newSinking(t, hybrid(1), func(o *Outlet) { o.All = true }, poolOf(200))
	x.sink.expect.Latency = time.Second // worth it or not
	p := x.mid(1, 64, 8)
	x.publish(x.c, p)
	if x.sink.takeAll() != 1 || !x.sink.sent(p) {
		t.Fatal("it is not sent")
	}
}

// Reservations go on at any pace of the sink, and it keeps a bounded part of the pool.
func TestASinkThatHangsDelaysNoEviction(t *testing.T) {
	x := newSinking(t, hybrid(1), nil, poolOf(32))
	for i := range 200 {
		p := x.mid(i, 64, 8)
		x.publish(x.c, p)
		if n := x.Pools()[0]; n.DemotingBytes > n.CapacityBytes/move.OffloadShare {
			t.Fatalf("%d bytes of %d are being sent", n.DemotingBytes, n.CapacityBytes)
		}
		if i%10 == 9 {
			x.audit()
		}
	}
	n := x.Counters()
	if n.Offload.Offered == 0 || n.Offload.NoRoom == 0 || n.RefusedBusy+n.RefusedFull != 0 {
		t.Fatalf("%+v; %d and %d refused", n.Offload, n.RefusedBusy, n.RefusedFull)
	}
	sent := x.sink.takeAll()
	if uint64(sent) != n.Offload.Offered || x.Counters().Offload.Sent != uint64(sent) {
		t.Fatalf("%d sent of %d", sent, n.Offload.Offered)
	}
	if n := x.Pools()[0]; n.DemotingBytes != 0 {
		t.Fatalf("%+v", n)
	}
	x.audit()
}

// A pool of which nearly all is in use evicts what is left for the room it is asked for,
// and does not keep it for a copy.
func TestAScarceRoomIsNotKeptForCopies(t *testing.T) {
	x := newSinking(t, hybrid(1), nil, poolOf(16))
	for i := range 15 {
		p := x.mid(i, 64, 8)
		x.publish(x.c, p)
		x.lease(x.c, p)
	}
	for i := range 20 {
		x.publish(x.c, x.mid(100+i, 64, 8))
		x.audit()
	}
	if n := x.Counters(); n.Offload.Offered != 0 || n.Offload.NoRoom != 19 {
		t.Fatalf("%+v", n.Offload)
	}
}

func TestASinkThatRefusesOrFailsCostsTheCopyOnly(t *testing.T) {
	for name, c := range map[string]struct {
		set   func(m *mapSink)
		count func(x *sinking) uint64
	}{
		"full":        {func(m *mapSink) { m.refuse = tier.ErrFull }, func(x *sinking) uint64 { return x.Counters().Offload.Refused[1] }},
		"busy":        {func(m *mapSink) { m.refuse = tier.ErrBusy }, func(x *sinking) uint64 { return x.Counters().Offload.Refused[0] }},
		"unavailable": {func(m *mapSink) { m.refuse = tier.ErrUnavailable }, func(x *sinking) uint64 { return x.Counters().Offload.Refused[3] }},
		"failed":      {func(m *mapSink) { m.spoil = errors.New("reset") }, func(x *sinking) uint64 { return x.Counters().Offload.Failed }},
		"corrupt":     {func(m *mapSink) { m.spoil = tier.ErrCorrupt }, func(x *sinking) uint64 { return x.Counters().CorruptInMemory }},
	} {
		t.Run(name, func(t *testing.T) {
			x := newSinking(t, hybrid(1), nil, poolOf(200))
			c.set(x.sink)
			p := x.mid(1, 64, 8)
			x.publish(x.c, p)
			x.dropAll()
			x.sink.takeAll()
			if c.count(x) != 1 || x.Counters().Offload.Sent != 0 {
				t.Fatalf("%+v", x.Counters().Offload)
			}
			x.wantUsed(0, 0)
			x.publish(x.c, p)
			x.wantHit(p)
		})
	}
}

func TestACheckpointIsSentBehindWhatItExtends(t *testing.T) {
	x := newSinking(t, hybrid(1), nil)
	x.sink.hinted = true
	parent := 0
	for _, end := range []int{16, 32, 48} {
		x.save(x.c, x.saveQuery(1, end, parent, tier.Exact), parent)
		parent = end
	}
	x.cat.Mu.Lock()
	o := x.cat.Objects.Names.Find(tier.Name{Kind: tier.Exact, Key: hashOf(1, 48)}, x.profileOfLocked(), x.cat.Objects.Tenants[tenantA])
	x.move.Evictor.EvictLocked(only{o.Pool.Evict, o.ID}, move.ForRoom, nil)
	x.cat.Mu.Unlock()
	x.cat.Launch()
	x.audit()
	if n := x.sink.takeAll(); n != 3 {
		t.Fatalf("%d nodes are sent", n)
	}
	var want []tier.Name
	for _, end := range []int{16, 32, 48} {
		want = append(want, tier.Name{Kind: tier.Exact, Key: hashOf(1, end)})
	}
	if !slices.Equal(x.sink.order, want) {
		t.Fatalf("in the order %v", x.sink.order)
	}
	x.audit()
	x.dropAll()
	if n := x.Counters().Offload; n.Elsewhere != 2 || x.sink.takeAll() != 0 {
		t.Fatalf("%+v", n)
	}
	x.wantUsed(0, 0)
}

func (b *bench) profileOfLocked() *objects.Profile { return (*b.cat.Profiles.Load())[0] }

func TestACheckpointIsNotSentWithoutWhatItExtends(t *testing.T) {
	x := newSinking(t, hybrid(1), nil)
	for _, end := range [][2]int{{16, 0}, {32, 16}} {
		x.save(x.c, x.saveQuery(1, end[0], end[1], tier.Exact), end[1])
	}
	x.sink.spoil = errors.New("reset")
	x.dropAll()
	if n := x.sink.takeAll(); n != 1 {
		t.Fatalf("%d nodes are sent", n)
	}
	if n := x.Counters().Offload; n.Failed != 1 || n.Sent != 0 || n.Sending != 0 {
		t.Fatalf("%+v", n)
	}
	x.dropAll()
	x.sink.takeAll()
	x.wantUsed(0, 0)
}

// What is next to leave is sent ahead, so that nothing is lost at the pace of the sink.
func TestNothingIsLostAtThePaceOfTheSink(t *testing.T) {
	x := newSinking(t, hybrid(1), nil, poolOf(40))
	x.sink.hinted = true
	ctx, cancel := context.WithCancel(x.ctx)
	ran := later(func() error { return x.Run(ctx) })
	t.Cleanup(func() { cancel(); x.must(<-ran) })
	var ps []piece
	for i := range 200 {
		ps = append(ps, x.mid(i, 64, 8))
		x.publish(x.c, ps[i])
		x.until("enough is sent ahead", func() bool {
			x.sink.takeAll()
			x.cat.Mu.Lock()
			defer x.cat.Mu.Unlock()
			return !x.move.Offloads.AheadLocked() && x.cat.Objects.Pools[0].Offloading == 0
		})
	}
	n := x.Counters()
	if n.Offload.NoRoom != 0 || n.Dropped < 150 {
		t.Fatalf("%+v, %d dropped", n.Offload, n.Dropped)
	}
	for _, p := range ps[:150] {
		if !x.sink.sent(p) {
			t.Fatalf("%x is lost", p.key[:4])
		}
	}
	if sent := n.Offload.Sent; sent > 180 {
		t.Fatalf("%d sent: what stays is sent too", sent)
	}
	x.audit()
}

// Everything goes to an outlet for everything, also what was too much at once.
func TestAllIsSentInTime(t *testing.T) {
	x := newSinking(t, hybrid(1), func(o *Outlet) { o.All = true }, poolOf(40))
	ctx, cancel := context.WithCancel(x.ctx)
	ran := later(func() error { return x.Run(ctx) })
	t.Cleanup(func() { cancel(); x.must(<-ran) })
	for i := range 30 {
		x.publish(x.c, x.mid(i, 64, 8))
	}
	x.until("everything is sent", func() bool { x.sink.takeAll(); return x.Counters().Offload.Sent == 30 })
	x.audit()
}

// The quota of a tenant bounds what it has on its way, as the pool does.
func TestWhatIsSentForAQuotaIsBounded(t *testing.T) {
	x := newSinking(t, hybrid(1), nil, poolOf(200), quota(20*48<<10))
	for i := range 60 {
		x.publish(x.c, x.mid(i, 64, 8))
		if x.audit(); x.cat.Objects.Tenants[tenantA].Offload > 20*48<<10/move.OffloadShare {
			t.Fatalf("%d bytes are being sent", x.cat.Objects.Tenants[tenantA].Offload)
		}
	}
	n := x.Counters()
	if n.Offload.Offered == 0 || n.EvictedQuota == 0 || n.RefusedQuota+n.RefusedBusy != 0 {
		t.Fatalf("%+v, %d for the quota", n.Offload, n.EvictedQuota)
	}
	x.sink.takeAll()
	x.audit()
}

func TestAtTheEndEverythingIsSent(t *testing.T) {
	x := newSinking(t, hybrid(1), nil)
	x.sink.most = 2
	var ps []piece
	for i := range 10 {
		ps = append(ps, x.mid(i, 64, 8))
		x.publish(x.c, ps[i])
	}
	for _, end := range [][2]int{{16, 0}, {32, 16}} {
		x.save(x.c, x.saveQuery(1, end[0], end[1], tier.Exact), end[1])
	}
	type answer struct {
		n   int
		err error
	}
	done := make(chan answer, 1)
	go func() { n, err := x.Offload(x.ctx); done <- answer{n, err} }()
	for {
		select {
		case a := <-done:
			if a.n != 12 || a.err != nil || len(x.sink.entries) != 12 {
				t.Fatalf("%d sent, %v", a.n, a.err)
			}
			for _, p := range ps {
				x.wantHit(p)
			}
			x.audit()
			return
		default:
			x.sink.take()
		}
	}
}

func TestTheEndIsBounded(t *testing.T) {
	x := newSinking(t, hybrid(1), nil)
	for i := range 3 {
		x.publish(x.c, x.mid(i, 64, 8))
	}
	ctx, cancel := context.WithTimeout(x.ctx, time.Millisecond)
	defer cancel()
	n, err := x.Offload(ctx)
	if x.wantErr(err, context.DeadlineExceeded); n != 0 {
		t.Fatalf("%d sent", n)
	}
}

// Only the last copy goes to an outlet that is for these, and only while it is a hit.
func TestLastCopiesAreThoseTheDiskDoesNotHold(t *testing.T) {
	last := &mapSink{entries: map[tier.Name]*sinkEntry{}, expect: tier.Hint{Latency: time.Microsecond, BytesPerSecond: farBytes}}
	x := newTwoTiers(t, hybrid(1), func(c *Config) { c.Outlets = []Outlet{{To: last, Last: true}} })
	last.b = x.bench
	t.Cleanup(func() { last.takeAll() })
	p, q := x.mid(1, 64, 8), x.mid(2, 64, 8)
	x.publish(x.c, p)
	x.writeOut() // p is on disk as well
	x.publish(x.c, q)
	offer := func(p piece, why move.Occasion) (how move.Verdict) {
		x.cat.Mu.Lock()
		defer x.cat.Mu.Unlock()
		_, how = x.move.Offloads.OffloadLocked(x.cat.Objects.Names.Find(tier.Name{Key: p.key}, x.profileOfLocked(), x.cat.Objects.Tenants[tenantA]), why, nil)
		return how
	}
	for _, why := range []move.Occasion{move.Published, move.UsedAgain, move.Leaving} {
		if offer(q, why) != move.Settled {
			t.Errorf("it is offered on occasion %d", why)
		}
	}
	for _, why := range []move.Occasion{move.Ahead, move.Flushing} {
		if offer(p, why) != move.Settled {
			t.Errorf("the disk has it, and it is offered on occasion %d", why)
		}
	}
	if offer(q, move.Ahead) != move.Sending {
		t.Fatal("the last copy is not offered")
	}
	x.cat.Launch()
	x.audit()
	x.wantHit(q)
	if last.takeAll() != 1 || !last.sent(q) {
		t.Fatal("it is not sent")
	}
	x.audit()
}

func TestSpareIsWhatMayComeWithoutALoss(t *testing.T) {
	x := newSinking(t, hybrid(1), nil, func(c *Config) { c.PublicBytes = 1 << 20 }, quota(300<<10))
	if n := x.Spare(0, tenantA); n != 300<<10 {
		t.Fatalf("%d bytes of a quota", n)
	}
	if n := x.Spare(0, tenantB); n != 1<<20*9/10 {
		t.Fatalf("%d bytes of a pool", n)
	}
	for i := range 5 {
		x.publish(x.c, x.mid(i, 64, 8))
	}
	used := x.Pools()[0].UsedBytes
	if n := x.Spare(0, tenantB); n != 1<<20*9/10-used {
		t.Fatalf("%d bytes beside %d", n, used)
	}
	for i := range 5 {
		x.publish(x.c, x.mid(10+i, 64, 8))
	}
	if n := x.Spare(0, tenantA); n > 60<<10 {
		t.Fatalf("%d bytes of a quota that is used", n)
	}
	if x.Spare(0, 99) != 0 {
		t.Fatal("a tenant that nobody knows has room")
	}
}
