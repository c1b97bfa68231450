package tiering

import (
	"errors"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/gpuipctest"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/hbm"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/stats"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/transfer"
)

// several is a bench below two accelerators.
type several struct {
	*twoAndHBM
	twins []*gpuipctest.Accelerator
	lost  []error // what the owners of the devices were told
}

const other tier.DeviceID = 2

func newSeveral(t testing.TB, id profile.Identity, options ...option) *several {
	t.Helper()
	s := &several{lost: make([]error, 2)}
	devices := func(c *Config) {
		s.twins, c.HBM = gpuipctest.NewAccelerators(t, c.Device, 2), nil
		for i, twin := range s.twins {
			c.HBM = append(c.HBM, hbm.Config{Device: twin, PublicBytes: 8 << 20, PrivateBytes: 8 << 20, PageBytes: 8192,
				Lost: func(why error) { s.lost[i] = why }})
		}
	}
	s.twoAndHBM = newTwoAndHBM(t, id, append([]option{devices}, options...)...)
	return s
}

// on asks for a rank's copy on a device.
func (s *several) on(d tier.DeviceID, p piece, rank int) Acquired {
	s.Helper()
	rows, err := s.c.AcquireResident(&AcquireQuery{Profile: s.id, Tenant: tenantA, Rank: rank, Digests: true, Keys: [][32]byte{p.key}, Device: d}, nil)
	s.must(err)
	return rows[0]
}

// raiseOn brings a rank's copy to a device and leases it there, with the right bytes.
func (s *several) raiseOn(d tier.DeviceID, p piece, rank int) Acquired {
	s.Helper()
	row := s.on(d, p, rank)
	if !row.Hit {
		s.carryHBM()
		row = s.on(d, p, rank)
	}
	if !row.Hit || row.Place != tier.PlaceHBM {
		s.Fatalf("rank %d on device %d: %+v\n%+v", rank, d, row, s.DeviceCounters()[d-1])
	}
	ref := gpuipc.Ref{Region: s.DeviceArena(d), Extents: row.Extents}
	got := make([]byte, ref.Len())
	s.must(s.twins[d-1].Load(s.ctx, got, ref))
	s.wantParts(&p.layout, contentOf(p, rank), got, row.Digests)
	return row
}

// placeFor is what a match tells a client on a device.
func (s *several) placeFor(d tier.DeviceID, p piece) tier.Place {
	s.Helper()
	var r MatchResult
	s.must(s.Match(&MatchQuery{Profile: s.id, Tenant: tenantA, Keys: [][32]byte{p.key}, Device: d}, &r))
	return r.Segments[0].Place
}

func (s *several) attach(rank int, d tier.DeviceID) (detach func()) {
	s.Helper()
	detach, err := s.AttachEngine(s.id, rank, d)
	s.must(err)
	return detach
}

func afterMatches(c *Config) {
	for i := range c.HBM {
		c.HBM[i].AfterMatch = true
	}
}

// A match by one rank's client brings each rank's share to the device of that rank, and
// says hbm once all of them are there.
func TestRanksReadTheirOwnDevices(t *testing.T) {
	s := newSeveral(t, hybrid(2), afterMatches)
	p := s.mid(1, 64, 8)
	s.publish(s.c, p)
	s.attach(0, device)
	detach := s.attach(1, other)
	if at := s.placeFor(device, p); at != tier.PlaceDRAM {
		t.Fatalf("place %d before a copy", at)
	}
	for _, h := range s.hbm {
		if h.Flights.Try(s.ctx, 0); h.Counters().Copies != 1 {
			t.Fatalf("device %d has %d copies", h.ID(), h.Counters().Copies)
		}
		if at, want := s.placeFor(device, p), [...]tier.Place{device: tier.PlaceDRAM, other: tier.PlaceHBM}[h.ID()]; at != want {
			t.Fatalf("place %d with a copy on device %d, want %d", at, h.ID(), want)
		}
	}
	if n := s.carryHBM(); n != 0 {
		t.Fatalf("%d more promotions", n)
	}
	s.raiseOn(device, p, 0)
	s.raiseOn(other, p, 1)
	if s.placeFor(other, p) != tier.PlaceHBM {
		t.Error("the client of the other rank is told otherwise")
	}
	list := s.DeviceCounters()
	if a, b := list[0], list[1]; a.HitSegments != 1 || b.HitSegments != 1 || a.Copies != 1 || b.Acquired != 1 || s.Counters().HBM.Acquired != 2 {
		t.Errorf("%+v\n%+v", a, b)
	}
	// The rank that has left is not waited for.
	s.must(s.c.Release(s.on(other, p, 1).Lease))
	detach()
	q := s.mid(2, 64, 8)
	s.publish(s.c, q)
	s.placeFor(device, q)
	s.carryHBM()
	if s.placeFor(device, q) != tier.PlaceHBM || s.DeviceCounters()[1].Copies != 1 {
		t.Error("a copy is made, or waited for, for a rank without engines")
	}
}

// Engines that are replicas of each other have copies of the same rank on several devices,
// each as its own client asks.
func TestReplicasHaveCopiesOnTheirDevices(t *testing.T) {
	s := newSeveral(t, hybrid(1), afterMatches)
	p := s.mid(1, 64, 8)
	s.publish(s.c, p)
	s.attach(0, device)
	s.attach(0, other)
	s.placeFor(other, p)
	s.carryHBM()
	if a, b := s.placeFor(device, p), s.placeFor(other, p); a != tier.PlaceDRAM || b != tier.PlaceHBM {
		t.Fatalf("places %d and %d", a, b)
	}
	s.carryHBM() // the match of the first asked for its own
	if s.placeFor(device, p) != tier.PlaceHBM {
		t.Fatal("no copy for the replica that asked")
	}
	first, second := s.raiseOn(device, p, 0), s.raiseOn(other, p, 0)
	if info, _ := s.Segment(p.key); info.HBM != 1 {
		t.Errorf("%d ranks have copies", info.HBM)
	}
	s.must(s.Evict(p.key))
	if n := s.Counters().HBM; n.Copies != 0 || n.Dropped[stats.DropRemoved] != 2 {
		t.Errorf("%d copies are left, %d were removed", n.Copies, n.Dropped[stats.DropRemoved])
	}
	s.must(s.c.Release(first.Lease))
	s.must(s.c.Release(second.Lease))
	s.audit()
}

// A device that is lost in the middle of promotions and leases costs its own.
func TestALostDeviceCostsItsOwnCopies(t *testing.T) {
	s := newSeveral(t, hybrid(2), afterMatches)
	p, q := s.mid(1, 64, 8), s.mid(2, 40, 4)
	s.publish(s.c, p)
	s.publish(s.c, q)
	s.attach(0, device)
	s.attach(1, other)
	held, stays := s.raiseOn(device, p, 0), s.raiseOn(other, p, 1)
	s.on(device, q, 0) // both wanted
	s.on(other, q, 1)
	s.twins[0].Lose()
	s.carryHBM()
	a, b := s.DeviceCounters()[0], s.DeviceCounters()[1]
	if a.Lost != 1 || a.Copies != 0 || a.Dropped[stats.DropLost] != 1 || a.Promotions[transfer.Lost] != 1 {
		t.Errorf("the lost one: %+v", a)
	}
	if b.Lost != 0 || b.Copies != 2 || b.Promotions[transfer.Done] != 2 || b.Dropped[stats.DropLost] != 0 {
		t.Errorf("the other: %+v", b)
	}
	if !errors.Is(s.lost[0], gpuipc.ErrUnavailable) || s.lost[1] != nil {
		t.Errorf("told %v and %v", s.lost[0], s.lost[1])
	}
	if row := s.on(device, p, 0); row.Hit || row.Promoting || row.Reason != tier.ReasonEvicted {
		t.Errorf("on the lost device: %+v", row)
	}
	s.raiseOn(other, q, 1)
	// A rank that can have no copy any more is not waited for.
	if at := s.placeFor(other, p); at != tier.PlaceHBM {
		t.Errorf("place %d on the device that is left", at)
	}
	if at := s.placeFor(device, s.mid(3, 40, 4)); at != tier.PlaceNone {
		t.Errorf("place %d of nothing", at)
	}
	s.must(s.c.Release(held.Lease))
	s.must(s.c.Release(stays.Lease))
	s.must(s.c.Release(s.acquire(s.c, 0, p).Lease))
	s.audit()
}

func TestAPlanOverTwoDevicesIsInvalid(t *testing.T) {
	s := newSeveral(t, hybrid(1))
	first, last := s.piece(1, profile.FirstSpec(33)), s.mid(2, 40, 4)
	s.publish(s.c, first)
	s.publish(s.c, last)
	leases := []tier.LeaseID{s.raiseOn(device, first, 0).Lease, s.raiseOn(other, last, 0).Lease}
	pl := plan.Plan{End: 33, Spans: []plan.Span{{Kind: plan.SpanSegment, Lease: leases[0], Count: 33}}}
	if at, err := s.c.Plans().PlaceOfPlan(plan.From{}, &pl); at != tier.PlaceHBM || err != nil {
		t.Fatalf("place %d, %v", at, err)
	}
	begin, n := last.spec.Interior()
	pl.End += begin + n
	pl.Spans = append(pl.Spans, plan.Span{Kind: plan.SpanRecompute, Start: 33, Count: begin}, plan.Span{Kind: plan.SpanSegment, Lease: leases[1], Start: 33 + begin, Count: n})
	_, err := s.c.Plans().PlaceOfPlan(plan.From{}, &pl)
	s.wantErr(err, tier.ErrInvalid)

	// An answer on another device than the leases.
	region, err := s.twins[1].NewRegion(gpuipc.RegionSpec{Name: "slot", Bytes: 1 << 20, Access: gpuipc.ClientWrites})
	s.must(err)
	q := &plan.ComposeQuery{Scope: plan.Scope{Profile: s.id, Tenant: tenantA}, Layer: profile.AllLayers}
	q.Plan = plan.Plan{End: 33, Spans: pl.Spans[:1]}
	bytes, err := s.geometry().ComposeBytes(q)
	s.must(err)
	q.Out = gpuipc.Ref{Region: region, Extents: []gpuipc.Extent{{Len: bytes}}}
	s.wantErr(s.c.Plans().Compose(s.ctx, q), tier.ErrInvalid)
	if n := s.Counters().HBM; n.Lost != 0 || n.Copies != 2 {
		t.Errorf("after a caller's mistake: %+v", n)
	}
	s.must(region.Close())
}

func TestDevicesThatThereAreNot(t *testing.T) {
	s := newSeveral(t, hybrid(1))
	for _, d := range []tier.DeviceID{0, 3, 1 << 31} {
		_, err := s.c.AcquireResident(&AcquireQuery{Profile: s.id, Tenant: tenantA, Device: d}, nil)
		s.wantErr(err, tier.ErrUnavailable)
		_, err = s.c.LoadResident(&LoadQuery{Profile: s.id, Tenant: tenantA, Accept: tier.Exact, Device: d})
		s.wantErr(err, tier.ErrUnavailable)
		_, err = s.AttachEngine(s.id, 0, d)
		s.wantErr(err, tier.ErrUnavailable)
		if s.NeedsHBMPromotion(&AcquireQuery{Profile: s.id, Tenant: tenantA, Device: d}) || s.DeviceArena(d) != nil {
			t.Errorf("device %d is there", d)
		}
	}
	var r MatchResult
	s.wantErr(s.Match(&MatchQuery{Profile: s.id, Tenant: tenantA, Device: 3}, &r), tier.ErrUnavailable)
}

// A device that does not answer while its memory is made holds up neither the start nor
// the other, and what it gives later is given back.
func TestADeviceThatHangsAtTheStartCostsItself(t *testing.T) {
	var hung *gpuipctest.Stall
	s := newSeveral(t, hybrid(1), func(c *Config) {
		hung = c.HBM[0].Device.(*gpuipctest.Accelerator).Stall(t, gpuipctest.OpAttachHost, 1)
		c.HBM[0].OpenTimeout = 20 * time.Millisecond
	})
	if !errors.Is(s.lost[0], tier.ErrUnavailable) || s.lost[1] != nil {
		t.Errorf("told %v and %v", s.lost[0], s.lost[1])
	}
	p := s.mid(1, 40, 4)
	s.publish(s.c, p)
	s.must(s.c.Release(s.raiseOn(other, p, 0).Lease))
	if row := s.on(device, p, 0); row.Hit || row.Promoting {
		t.Errorf("on the device that hangs: %+v", row)
	}
	hung.Release()
}

func TestAMatchOnADeviceAllocatesNothing(t *testing.T) {
	s := newSeveral(t, hybrid(2))
	p, q := s.mid(1, 64, 8), s.mid(2, 64, 8)
	s.publish(s.c, p)
	s.publish(s.c, q)
	s.attach(0, device)
	s.attach(1, other)
	s.raiseOn(device, p, 0)
	s.raiseOn(other, p, 1)
	query := &MatchQuery{Profile: s.id, Tenant: tenantA, Keys: [][32]byte{p.key, q.key}, Device: device}
	var r MatchResult
	s.must(s.Match(query, &r))
	if r.Segments[0].Place != tier.PlaceHBM || r.Segments[1].Place != tier.PlaceDRAM {
		t.Fatalf("places %d and %d", r.Segments[0].Place, r.Segments[1].Place)
	}
	if n := testing.AllocsPerRun(100, func() { s.must(s.Match(query, &r)) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
