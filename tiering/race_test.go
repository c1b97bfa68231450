package tiering

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/gpuipctest"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/transfer"
)

// crowdTest is several clients that fill, read, compose and die at once over too
// little memory. Each client has staging and slots of its own.
type crowdTest struct {
	*bench
	twin      *gpuipctest.Accelerator // whose copies are read instead of memory; lost in the middle
	pieces    []piece
	contents  [][2][]byte // by piece and rank
	published atomic.Int64
	composed  atomic.Int64
	corrupt   atomic.Int64
	runs      int
	closing   sync.WaitGroup
}

// wantOneOf: under a crowd an operation may fail, but only in these ways.
func (x *crowdTest) wantOneOf(what string, err error, kinds ...error) {
	for _, kind := range kinds {
		if errors.Is(err, kind) {
			return
		}
	}
	if err != nil {
		x.Errorf("%s: %v", what, err)
	}
}

func crowdOptions(c *Config) {
	c.PublicBytes, c.PrivateBytes, c.Now = 400<<10, 200<<10, time.Now
	c.LeaseTTL, c.FillTTL = 3*time.Millisecond, 20*time.Millisecond
}

func TestCrowdLeavesNothingBehind(t *testing.T) {
	x := &crowdTest{bench: newBench(t, hybrid(2), crowdOptions)}
	for x.run(150); !x.met() && x.runs < 50; {
		x.run(50)
	}
	x.wantMet()
}

// met tells whether all that a crowd does happened, which is chance.
func (x *crowdTest) met() bool {
	return x.published.Load() > 0 && x.composed.Load() > 0 && x.corrupt.Load() > 0
}

func (x *crowdTest) wantMet() {
	if !x.met() {
		x.Errorf("%d published, %d composed, %d corrupt: the crowd did nothing", x.published.Load(), x.composed.Load(), x.corrupt.Load())
	}
}

// The same over a tier that fails now and then and checks, at every call under
// the store's lock, that no tenant holds more than its quota.
func TestCrowdOverTwoTiersLeavesNothingBehind(t *testing.T) {
	var lower *mapTier
	x := &crowdTest{bench: newBench(t, hybrid(2), crowdOptions, below(&lower, 2<<20), writeBehind, readAhead, func(c *Config) {
		c.Tenants[0].QuotaBytes = 1500 << 10
		c.DefaultLevel, c.LowWater = tier.LevelLogged, 0.5
	})}
	lower.attach(x.bench, false)
	lower.queue = 5
	ctx, cancel := context.WithCancel(x.ctx)
	var runs sync.WaitGroup
	runs.Go(func() { _ = x.Run(ctx) })
	lower.troubled(ctx, func() { x.run(200) })
	for x.runs < 50 {
		if n := x.Counters(); x.met() && n.Written > 0 && n.Promotions[transfer.Done] > 0 && n.Acknowledged[tier.LevelLogged] > 0 {
			break
		}
		x.run(100)
	}
	x.wantMet()
	_, _ = x.Flush(x.ctx) // what a quota refuses is left
	cancel()
	runs.Wait()
	x.until("nothing is written or promoted", func() bool { n := x.Counters(); return n.Writing+n.Promoting == 0 })
	if n := x.Counters(); n.Written == 0 || n.Promotions[transfer.Done] == 0 || n.Acknowledged[tier.LevelLogged] == 0 {
		t.Errorf("%d written, %d promoted, %d acknowledged as logged", n.Written, n.Promotions[transfer.Done], n.Acknowledged[tier.LevelLogged])
	}
}

// The same over HBM, a device of which is lost in the middle.
func TestManyClientsOfHBM(t *testing.T) {
	h := newTwoAndHBM(t, hybrid(1), crowdOptions, writeBehind, func(c *Config) {
		c.HBM[0].PublicBytes, c.HBM[0].PrivateBytes, c.HBM[0].AfterMatch, c.HBM[0].Promotions = 200<<10, 1<<20, true, 3
		c.SweepEvery = 5 * time.Millisecond
		c.LeaseTTL, c.FillTTL = 50*time.Millisecond, time.Second // reading from the device takes longer
	})
	detach, err := h.AttachEngine(h.id, 0, device)
	h.must(err)
	defer detach()
	h.running()
	x := &crowdTest{bench: h.bench, twin: h.twin}
	x.run(60)
	x.until("nothing moves", func() bool {
		n := x.Counters() // the loss of a device may end flights before the bytes of their copies stop moving
		return n.Promoting+n.HBM.Promoting+n.Writing == 0 && !slices.ContainsFunc(x.Pools(), func(p PoolInfo) bool { return p.PendingBytes != 0 })
	})
	x.audit()
	if n := x.Counters(); n.Leases != 0 || n.HBM.Lost != 1 || n.HBM.Copies != 0 || n.HBM.Acquired == 0 || n.HBM.Composed == 0 {
		t.Errorf("%d leases are left, lost %d, %d copies, %d acquired, %d composed", n.Leases, n.HBM.Lost, n.HBM.Copies, n.HBM.Acquired, n.HBM.Composed)
	}
	for _, pool := range x.Pools()[2:] {
		if pool.UsedBytes != 0 {
			t.Errorf("the %s pool of HBM still holds %d bytes of %d objects", pool.Name, pool.UsedBytes, pool.Objects)
		}
	}
}

// troubled runs f while the tier keeps changing how it behaves, and mends it.
func (m *mapTier) troubled(ctx context.Context, f func()) {
	ctx, cancel := context.WithCancel(ctx)
	var trouble sync.WaitGroup
	trouble.Go(func() { m.trouble(ctx) })
	f()
	cancel()
	trouble.Wait()
	m.mu.Lock()
	m.refuse, m.unread, m.spoil = nil, nil, nil
	m.mu.Unlock()
}

// trouble changes how a tier behaves until ctx ends.
func (m *mapTier) trouble(ctx context.Context) {
	rng := rand.New(rand.NewPCG(9, 9))
	for ctx.Err() == nil {
		m.mu.Lock()
		m.refuse = []error{nil, nil, nil, nil, tier.ErrFull, tier.ErrUnavailable}[rng.IntN(6)]
		m.unread = []error{nil, nil, nil, nil, tier.ErrCorrupt, tier.ErrUnavailable}[rng.IntN(6)]
		m.spoil = []error{nil, nil, nil, nil, nil, tier.ErrUnavailable}[rng.IntN(6)]
		m.mu.Unlock()
		time.Sleep(100 * time.Microsecond)
	}
}

func (x *crowdTest) run(rounds int) {
	x.runs++
	x.pieces, x.contents = nil, nil
	for i := range 12 {
		p := x.mid(i, 40+i, 8)
		x.pieces = append(x.pieces, p)
		x.contents = append(x.contents, [2][]byte{contentOf(p, 0), contentOf(p, 1)}) // of two ranks, or of one
	}
	if testing.Short() {
		rounds = 50
	}
	all := make([]*crowdClient, 6)
	for i := range all {
		all[i] = x.client(i) // before any of them loses the device
	}
	ctx, cancel := context.WithCancel(x.ctx)
	var watchers, clients sync.WaitGroup
	watchers.Go(func() { x.watch(ctx) })
	for _, cl := range all {
		clients.Go(func() { cl.live(rounds) })
	}
	clients.Wait()
	x.closing.Wait()
	cancel()
	watchers.Wait()
	x.audit()
	for _, p := range x.Pools() {
		if x.cat.Config.Lower == nil && p.PendingBytes+p.LeasedBytes+p.QuarantinedBytes != 0 {
			x.Errorf("bytes held by nobody: x.cfg.Lower %v, want other than nil; PendingBytes+p.LeasedBytes+p.QuarantinedBytes %v, want 0", x.cat.Config.Lower, p.PendingBytes+p.LeasedBytes+p.QuarantinedBytes)
		}
	}
}

// watch asks what only looks, and sweeps.
func (x *crowdTest) watch(ctx context.Context) {
	q := &MatchQuery{Profile: x.id, Tenant: tenantA, Accept: tier.Exact, Positions: []uint32{16}, Prefixes: [][32]byte{hashOf(1, 16)}, Device: x.reads()}
	for _, p := range x.pieces {
		q.Keys = append(q.Keys, p.key)
	}
	var r MatchResult
	for ctx.Err() == nil {
		x.Sweep()
		if err := x.Match(q, &r); err != nil {
			x.Error(err)
		}
		for _, info := range x.Segments(SegmentFilter{}, nil, 100) {
			x.Segment(info.Key)
		}
		x.Checkpoints(CheckpointFilter{}, nil, 100)
		x.Pools()
		x.Counters()
		x.Profiles()
	}
}

// crowdClient is one client's own memory and choices.
type crowdClient struct {
	*crowdTest
	i     int
	rng   *rand.Rand
	base  int64 // of its share of staging, and of slots of the host
	slots gpuipc.Ref
	c     *Session
}

func (x *crowdTest) client(i int) *crowdClient {
	cl := &crowdClient{crowdTest: x, i: i, rng: rand.New(rand.NewPCG(uint64(i), 13)), base: int64(i) << 20, c: x.NewSession("crowd")}
	cl.slots = gpuipc.Ref{Region: x.slots, Extents: []gpuipc.Extent{{Off: cl.base, Len: 1 << 20}}}
	if x.twin != nil {
		slots, err := x.twin.NewRegion(gpuipc.RegionSpec{Name: "slots", Bytes: 1 << 20, Access: gpuipc.ClientWrites})
		if err != nil {
			x.Fatal(err)
		}
		cl.slots = gpuipc.Ref{Region: slots, Extents: []gpuipc.Extent{{Len: 1 << 20}}}
	}
	return cl
}

func (cl *crowdClient) live(rounds int) {
	x := cl.crowdTest
	if x.twin != nil {
		defer func() { x.noError(cl.slots.Region.Close()) }()
	}
	loses := x.twin != nil && cl.i == 0
	for turn := 0; turn < rounds || loses && turn < 100*rounds && x.Counters().HBM.Lost == 0; turn++ {
		if loses && turn >= rounds*3/4 && x.composed.Load() > 0 {
			x.twin.Lose()
		}
		switch n := cl.rng.IntN(20); {
		case n < 8:
			cl.fill(cl.rng.IntN(len(x.pieces)))
		case n < 12:
			cl.save(cl.rng.IntN(4))
		case n < 18:
			cl.compose(cl.rng.IntN(len(x.pieces)))
		case n < 19:
			_ = x.Evict(x.pieces[cl.rng.IntN(len(x.pieces))].key)
		default: // dies with whatever it holds, perhaps in the middle of its own work
			x.closing.Go(cl.c.Close)
			cl.c = x.NewSession("crowd")
		}
	}
	cl.c.Close()
}

func (cl *crowdClient) at(off int64, data []byte) gpuipc.Ref {
	ref := gpuipc.Ref{Region: cl.staging, Extents: []gpuipc.Extent{{Off: cl.base + off, Len: int64(len(data))}}}
	cl.noError(cl.dev.Store(cl.ctx, ref, data))
	return ref
}

func (cl *crowdClient) commit(r Reservation, l *profile.Layout, data []byte) {
	for i, part := range l.Parts {
		src := data[part.Off : part.Off+part.Len]
		item := CommitItem{Reservation: r.ID, Part: i, Digests: []uint64{gpuipc.DigestBytes(src)}, Src: cl.at(0, src)}
		if cl.rng.IntN(200) == 0 {
			item.Digests[0]++
		}
		got, err := cl.c.Commit(cl.ctx, item)
		cl.wantOneOf("commit", err, tier.ErrGone, tier.ErrCorrupt)
		if errors.Is(err, tier.ErrCorrupt) {
			cl.corrupt.Add(1)
		}
		if err != nil {
			return
		}
		if got.Published {
			cl.published.Add(1)
		}
		if d := got.Durable; d != nil {
			cl.closing.Go(func() { d.Wait(cl.ctx) })
		}
	}
}

func (cl *crowdClient) fill(n int) {
	for rank := range cl.profile.TPSize() {
		r, err := cl.c.Reserve(cl.reserveQuery(cl.pieces[n], rank))
		cl.wantOneOf("reserve", err, tier.ErrExists, tier.ErrFull, tier.ErrGone, tier.ErrBusy, tier.ErrQuota)
		if err == nil {
			cl.commit(r, &cl.pieces[n].layout, cl.contents[n][rank])
		}
	}
}

func (cl *crowdClient) save(n int) {
	q := cl.saveQuery(1, 16*(n+1), 16*n, tier.Exact)
	l := cl.profile.CheckpointLayout(16)
	for q.Rank = range cl.profile.TPSize() {
		r, err := cl.c.Save(q)
		cl.wantOneOf("save", err, tier.ErrExists, tier.ErrFull, tier.ErrGone, tier.ErrBusy, tier.ErrQuota)
		if err == nil {
			cl.commit(r, &l, content(&l, uint64(q.Rank)))
		}
	}
}

// compose leases a segment and composes with it while the lease may expire, be
// released or its segment be removed, or the device be lost: what comes back, if anything,
// must be the state that the segment gives.
func (cl *crowdClient) compose(n int) {
	p := cl.pieces[n]
	rank := cl.rng.IntN(cl.profile.TPSize())
	q := &AcquireQuery{Profile: cl.id, Tenant: tenantA, Rank: rank, Keys: [][32]byte{p.key}, Device: cl.reads()}
	await, arena, most := cl.c.AwaitAcquire, cl.Arena(), 3
	if cl.twin != nil {
		await, arena, most = cl.c.AwaitAcquireResident, cl.DeviceArena(device), 50
	}
	ctx, cancel := context.WithTimeout(cl.ctx, time.Duration(cl.rng.IntN(most))*time.Millisecond)
	defer cancel()
	cl.NeedsPromotion(q)
	rows, err := await(ctx, q, nil)
	cl.wantOneOf("acquire", err)
	if len(rows) == 0 || !rows[0].Hit {
		return
	}
	if cl.rng.IntN(4) == 0 {
		_ = cl.Evict(p.key) // the lease keeps what it names
	}
	leased := cl.read("a leased segment", gpuipc.Ref{Region: arena, Extents: rows[0].Extents})
	for i, part := range p.layout.Parts {
		if want := cl.contents[n][rank][part.Off : part.Off+part.Len]; leased != nil && !bytes.Equal(leased[part.Off:part.Off+part.Len], want) {
			cl.Errorf("segment %x part %d has other bytes", p.key[:4], i)
		}
	}
	layer := cl.profile.LinearLayers()[0] // no rope: the answer does not depend on the place
	bytesOut, err := cl.geometry().StateBytes(layer)
	cl.noError(err)
	zero, out := cl.slots.Slice(0, bytesOut), cl.slots.Slice(1<<19, bytesOut)
	_, tokens := p.spec.Interior()
	err = cl.c.Plans().Compose(cl.ctx, &plan.ComposeQuery{
		Scope: plan.Scope{Profile: cl.id, Tenant: tenantA, Rank: rank}, Layer: layer, From: plan.From{Kind: plan.FromState, State: zero}, Out: out,
		Plan: plan.Plan{Begin: 8, End: 8 + tokens, Spans: []plan.Span{{Kind: plan.SpanSegment, Lease: rows[0].Lease, Start: 8, Count: tokens}}},
	})
	if cl.twin != nil && errors.Is(err, tier.ErrUnavailable) {
		return // lost
	}
	cl.wantOneOf("compose", err, tier.ErrGone)
	if err == nil {
		cl.composed.Add(1)
		part := p.layout.Parts[p.layout.Find(layer, profile.PartS)]
		if got := cl.read("a state", out); got != nil && !bytes.Equal(got[:part.Len], cl.contents[n][rank][part.Off:part.Off+part.Len]) {
			cl.Error("a composed state is not that of the leased segment")
		}
	}
	if cl.rng.IntN(3) > 0 {
		cl.wantOneOf("release", cl.c.Release(rows[0].Lease))
	}
}

// read reads memory of the host or of the device; nil = that is lost.
func (cl *crowdClient) read(what string, ref gpuipc.Ref) []byte {
	out := make([]byte, ref.Len())
	err := cl.deviceOf(ref.Region).Load(cl.ctx, out, ref)
	if cl.twin != nil && errors.Is(err, gpuipc.ErrUnavailable) {
		return nil
	}
	cl.wantOneOf(what, err)
	return out
}

// noError is must for goroutines that are not the test's.
func (b *bench) noError(err error) {
	b.Helper()
	if err != nil {
		b.Error(err)
	}
}
