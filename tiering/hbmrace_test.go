package tiering

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Clients that come, read and die at any time, tiers that are too small, promotions
// that run and a device that is lost in the middle: no row may name other bytes than
// its key's, and in the end nothing is held.
func TestManyClientsOfHBM(t *testing.T) {
	x := newTwoAndHBM(t, hybrid(1), realTime, func(c *Config) {
		c.PublicBytes, c.HBM[0].PublicBytes, c.HBM[0].PrivateBytes = 400<<10, 200<<10, 1<<20
		c.HBM[0].AfterMatch, c.HBM[0].Promotions = true, 3
		c.WriteBehind, c.SweepEvery = true, 5*time.Millisecond
	})
	detach, err := x.AttachEngine(x.id, 0, device)
	x.must(err)
	defer detach()
	x.running()
	var ps []piece
	for i := range 16 {
		ps = append(ps, x.mid(i, 40+i, 4))
	}
	var fills sync.Mutex // staging is one
	ctx, cancel := context.WithCancel(x.ctx)
	defer cancel()
	var clients sync.WaitGroup
	for n := range 4 {
		clients.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(n), 5))
			for turn := range 60 {
				if n == 0 && turn == 45 {
					x.twin.Lose()
				}
				c := x.NewSession("client")
				x.raceOnce(ctx, c, rng, ps, &fills)
				c.Close()
			}
		})
	}
	clients.Wait()
	x.awaitRest()
	x.audit()
	n := x.Counters()
	if n.Leases != 0 || n.HBM.Lost != 1 || n.HBM.Copies != 0 || n.HBM.Acquired == 0 || n.HBM.Composed == 0 {
		t.Errorf("%d leases are left, lost %d, %d copies, %d acquired, %d composed", n.Leases, n.HBM.Lost, n.HBM.Copies, n.HBM.Acquired, n.HBM.Composed)
	}
	for _, pool := range x.Pools()[2:] {
		if pool.UsedBytes != 0 {
			t.Errorf("the %s pool of HBM still holds %d bytes of %d objects", pool.Name, pool.UsedBytes, pool.Objects)
		}
	}
}

// awaitRest waits until nothing moves any more: flights, and copies whose flight was
// ended by the loss of the device while their bytes still moved. Goroutines of Run
// have no event for this.
func (x *twoAndHBM) awaitRest() {
	x.Helper()
	for start := time.Now(); ; time.Sleep(time.Millisecond) {
		n := x.Counters()
		moving := n.Promoting != 0 || n.HBM.Promoting != 0 || n.Writing != 0
		for _, pool := range x.Pools() {
			moving = moving || pool.PendingBytes != 0
		}
		if !moving {
			return
		}
		if time.Since(start) > time.Minute {
			x.Fatalf("%d promotions, %d into HBM and %d writes do not end", n.Promoting, n.HBM.Promoting, n.Writing)
		}
	}
}

// raceOnce is a short life of a client.
func (x *twoAndHBM) raceOnce(ctx context.Context, c *Session, rng *rand.Rand, ps []piece, fills *sync.Mutex) {
	p := ps[rng.IntN(len(ps))]
	fills.Lock()
	if r, err := c.Reserve(x.reserveQuery(p, 0)); err == nil {
		data := contentOf(p, 0)
		for i, part := range p.layout.Parts {
			if _, err := c.Commit(ctx, x.item(r.ID, i, 0, data[part.Off:part.Off+part.Len])); err != nil {
				x.Errorf("commit: %v", err)
			}
		}
	}
	fills.Unlock()
	var m MatchResult
	x.noError(x.Match(&MatchQuery{Profile: x.id, Tenant: tenantA, Keys: [][32]byte{p.key}, Device: device}, &m))
	wait, stop := context.WithTimeout(ctx, 50*time.Millisecond)
	defer stop()
	rows, err := c.AwaitAcquireResident(wait, x.acquireQuery(p, ps[rng.IntN(len(ps))]), nil)
	if err != nil {
		x.Errorf("acquire: %v", err)
		return
	}
	row := rows[0]
	if !row.Hit {
		return
	}
	if rng.IntN(4) == 0 {
		_ = x.Evict(p.key) // the lease keeps what it names
	}
	got := make([]byte, p.layout.Bytes)
	err = x.acc.Load(ctx, got, gpuipc.Ref{Region: x.DeviceArena(device), Extents: row.Extents})
	if errors.Is(err, gpuipc.ErrUnavailable) {
		return // lost
	}
	x.noError(err)
	want := contentOf(p, 0)
	for i, part := range p.layout.Parts {
		if string(got[part.Off:part.Off+part.Len]) != string(want[part.Off:part.Off+part.Len]) {
			x.Errorf("segment %x part %d has other bytes", p.key[:4], i)
		}
	}
	x.raceCompose(ctx, c, p, row.Lease)
	if rng.IntN(2) == 0 {
		x.noError(c.Release(row.Lease)) // else with the session
	}
}

// raceCompose moves a state over a segment in HBM, in a slot of its own.
func (x *twoAndHBM) raceCompose(ctx context.Context, c *Session, p piece, id tier.LeaseID) {
	head, n := p.spec.Interior()
	q := &plan.ComposeQuery{Scope: plan.Scope{Profile: x.id, Tenant: tenantA}, Layer: profile.AllLayers, From: plan.From{Kind: plan.FromState}, Plan: plan.Plan{
		Begin: head, End: head + n, Spans: []plan.Span{{Kind: plan.SpanSegment, Lease: id, Start: head, Count: n}}}}
	bytes, err := x.geometry().StateBytes(profile.AllLayers)
	x.noError(err)
	slot, err := x.acc.NewRegion(gpuipc.RegionSpec{Name: "slot", Bytes: 2 * bytes, Access: gpuipc.ClientWrites})
	if err != nil {
		return // lost
	}
	q.From.State = gpuipc.Ref{Region: slot, Extents: []gpuipc.Extent{{Off: 0, Len: bytes}}}
	q.Out = gpuipc.Ref{Region: slot, Extents: []gpuipc.Extent{{Off: bytes, Len: bytes}}}
	if err := c.Plans().Compose(ctx, q); err != nil && !errors.Is(err, tier.ErrUnavailable) {
		x.Errorf("compose: %v", err)
	}
	x.noError(slot.Close())
}

// noError is must for goroutines that are not the test's.
func (b *bench) noError(err error) {
	b.Helper()
	if err != nil {
		b.Error(err)
	}
}
