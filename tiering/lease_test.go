package tiering

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/internal/catalog"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/stats"
	"github.com/spliced-kv/spliced/tiering/tier"
)

func bounds(leases int) option {
	return func(c *Config) { c.MaxLeases = leases }
}

func TestLeasedDescribesAllRanks(t *testing.T) {
	b := newBench(t, hybrid(2))
	c, d := b.NewSession("c"), b.NewSession("d")
	p := b.mid(1, 64, 8)
	b.publish(c, p)
	id := b.lease(c, p)
	o, err := c.Leased(id)
	b.must(err)
	if o.Key != p.key || o.Spec != p.spec || o.Tenant != tenantA || o.Profile != b.profile || len(o.Shares) != 2 || len(o.Tokens) != p.spec.Tokens {
		t.Errorf("described as %+v", o)
	}
	for rank, share := range o.Shares {
		if n := b.profile.SegmentLayout(o.End - o.Begin).Bytes; share.Ref.Len() != n || share.Ref.Region != b.Arena() || len(share.Digests) == 0 {
			t.Errorf("rank %d: %d bytes of %d with %d digests", rank, share.Ref.Len(), n, len(share.Digests))
		}
	}
	_, err = d.Leased(id)
	b.wantErr(err, tier.ErrGone)
	b.must(c.Release(id))
	_, err = c.Leased(id)
	b.wantErr(err, tier.ErrGone)
	if id, found, ok := b.FindProfile(b.profile.Fingerprint()); !ok || id != b.id || found != b.profile {
		t.Errorf("profile %d, %v", id, ok)
	}
	if _, _, ok := b.FindProfile(profile.Fingerprint{}); ok {
		t.Error("an unknown profile is found")
	}
}

// composeOne is a plan of one mid segment between two recomputed spans.
func (b *bench) composeOne(p piece, id tier.LeaseID) *plan.ComposeQuery {
	b.Helper()
	head, n := p.spec.Interior()
	q := &plan.ComposeQuery{Scope: plan.Scope{Profile: b.id, Tenant: tenantA}, Layer: profile.AllLayers, Plan: plan.Plan{End: p.spec.Tokens, Spans: []plan.Span{
		{Kind: plan.SpanRecompute, Start: 0, Count: head, Input: b.seam(profile.AllLayers, 1)},
		{Kind: plan.SpanSegment, Lease: id, Start: head, Count: n},
		{Kind: plan.SpanRecompute, Start: head + n, Count: p.spec.Tail},
	}}}
	bytes, err := b.geometry().ComposeBytes(q)
	b.must(err)
	q.Out = b.slot(0, bytes)
	return q
}

// seam stages a (T, S) for a recomputed span.
func (b *bench) seam(layer int, seed uint64) gpuipc.Ref {
	b.Helper()
	l := b.profile.SeamLayout(layer)
	return b.stage(int64(seed)<<16, content(&l, seed))
}

// poolOf makes the public pool hold n segments of 64 tokens of hybrid(1), with
// their token ids.
func poolOf(n int64) option {
	return func(c *Config) { c.PublicBytes = n*48<<10 + 4096 }
}

func TestUseNoticesExpiryBeforeTheSweep(t *testing.T) {
	b := newBench(t, hybrid(1))
	c := b.NewSession("c")
	p := b.mid(1, 64, 8)
	b.publish(c, p)
	rows, err := c.Acquire(&AcquireQuery{Profile: b.id, Tenant: tenantA, TTL: time.Second, Keys: [][32]byte{p.key}}, nil)
	b.must(err)
	b.clock.advance(time.Second - 1)
	b.must(c.Plans().Compose(b.ctx, b.composeOne(p, rows[0].Lease)))
	b.clock.advance(1)
	b.wantErr(c.Plans().Compose(b.ctx, b.composeOne(p, rows[0].Lease)), tier.ErrGone)
}

func TestLeaseTimeIsCutToTheMaximum(t *testing.T) {
	b := newBench(t, hybrid(1))
	c := b.NewSession("c")
	p := b.mid(1, 64, 8)
	b.publish(c, p)
	_, err := c.Acquire(&AcquireQuery{Profile: b.id, Tenant: tenantA, TTL: 24 * time.Hour, Keys: [][32]byte{p.key}}, nil)
	b.must(err)
	b.clock.advance(time.Hour)
	b.Sweep()
	if n := b.Counters().LeasesExpired; n != 1 {
		t.Fatalf("%d leases expired after the maximum of an hour", n)
	}
}

func TestSessionCloseGivesEverythingBack(t *testing.T) {
	b := newBench(t, hybrid(1))
	c := b.NewSession("c")
	p, q := b.mid(1, 64, 8), b.mid(2, 64, 8)
	b.publish(c, p)
	b.lease(c, p)
	b.lease(c, p)
	b.clock.advance(time.Minute)
	b.Sweep()
	b.lease(c, p)
	_, err := c.Reserve(b.reserveQuery(q, 0))
	b.must(err)
	_, err = c.Save(b.saveQuery(1, 64, 0, tier.Exact))
	b.must(err)
	c.Close()
	b.wantUsed(b.cost(p), 0)
	if leases, fills := c.Holdings(); leases+fills != 0 {
		t.Fatalf("%d leases and %d reservations after Close", leases, fills)
	}
	counters := b.Counters()
	if counters.Leases+counters.Quarantined != 0 || counters.Aborted[stats.CauseDeath] != 2 {
		t.Fatalf("Leases+counters.Quarantined %v, want 0; Aborted[stats.CauseDeath] %v, want 2", counters.Leases+counters.Quarantined, counters.Aborted[stats.CauseDeath])
	}
	b.wantHit(p)
	b.wantMiss(q, tier.ReasonAborted)
	c.Close() // twice is fine
	_, err = c.Reserve(b.reserveQuery(q, 0))
	b.wantErr(err, tier.ErrGone)
	rows, err := c.Acquire(&AcquireQuery{Profile: b.id, Tenant: tenantA, Keys: [][32]byte{p.key}}, nil)
	b.must(err)
	b.wantErr(rows[0].Err, tier.ErrGone)
	_, err = c.Load(&LoadQuery{Profile: b.id, Tenant: tenantA, Accept: tier.Exact})
	b.wantErr(err, tier.ErrGone)
}

// A session with more to give back than one critical section takes.
func TestCloseOfManyLeases(t *testing.T) {
	b := newBench(t, hybrid(1))
	c := b.NewSession("c")
	p := b.mid(1, 64, 8)
	b.publish(c, p)
	for range 3*catalog.HoldRows + 7 {
		b.lease(c, p)
	}
	b.clock.advance(time.Minute)
	for range catalog.HoldRows + 1 {
		b.lease(c, p)
	}
	b.Sweep()
	if n := b.Counters(); n.LeasesExpired != 3*catalog.HoldRows+7 || n.Leases != catalog.HoldRows+1 {
		t.Fatalf("%d expired, %d live", n.LeasesExpired, n.Leases)
	}
	c.Close()
	if n := b.Counters(); n.Leases+n.Quarantined != 0 {
		t.Fatalf("%d and %d leases left", n.Leases, n.Quarantined)
	}
	b.audit()
}

func TestRunSweepsUntilItsContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, hybrid(1), func(c *Config) { c.Now = time.Now })
		c := b.NewSession("c")
		p := b.mid(1, 64, 8)
		b.publish(c, p)
		b.lease(c, p)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- b.Run(ctx) }()
		time.Sleep(time.Minute - time.Second/2)
		synctest.Wait()
		if n := b.Counters().LeasesExpired; n != 0 {
			t.Fatalf("%d leases expired before their time", n)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if n := b.Counters().LeasesExpired; n != 1 {
			t.Fatalf("%d leases expired after their time, want 1", n)
		}
		cancel()
		b.must(<-done)
	})
}

func TestLeaseIDsAreNeverReused(t *testing.T) {
	b := newBench(t, hybrid(1))
	c := b.NewSession("c")
	p := b.mid(1, 64, 8)
	b.publish(c, p)
	seen := map[tier.LeaseID]bool{}
	for range 100 {
		for _, id := range []tier.LeaseID{b.lease(c, p), b.NewLeaseID()} {
			if seen[id] || id == 0 {
				t.Fatalf("lease id %d came twice", id)
			}
			seen[id] = true
		}
		c.Close()
		c = b.NewSession("c")
	}
}

// What sharing saves is what the second lease and those behind it would have copied; ranks
// that read their own shares share nothing.
func TestSharedBytesAreThoseOfLeasesBeyondTheFirst(t *testing.T) {
	b := newBench(t, hybrid(2))
	c, d := b.NewSession("c"), b.NewSession("d")
	p := b.mid(1, 64, 8)
	b.publish(c, p)
	share := p.layout.Bytes
	saved := func(want int64) {
		t.Helper()
		if got := b.Pools()[0].SavedBytes; got != want {
			t.Fatalf("%d bytes saved, want %d", got, want)
		}
	}
	ids := []tier.LeaseID{b.acquire(c, 0, p).Lease, b.acquire(c, 1, p).Lease}
	saved(0)
	b.acquire(d, 0, p)
	b.acquire(d, 1, p)
	saved(2 * share)
	b.must(c.Release(ids[0]))
	saved(share)
	d.Close()
	saved(0)
	_, err := c.Reserve(b.reserveQuery(p, 0))
	b.wantErr(err, tier.ErrExists)
	if n := b.Counters(); n.Exists != 1 || n.ExistsBytes != uint64(share) {
		t.Errorf("%d reservations of %d bytes were answered exists", n.Exists, n.ExistsBytes)
	}
}

func TestAgesOfLeasesAndOfWhatLeavesAreTold(t *testing.T) {
	b := newBench(t, hybrid(1))
	c := b.NewSession("c")
	p := b.mid(1, 64, 8)
	b.publish(c, p)
	b.clock.advance(time.Second)
	first := b.lease(c, p)
	b.lease(c, p)
	b.clock.advance(2 * time.Second)
	b.must(c.Release(first))
	b.clock.advance(time.Hour)
	b.Sweep()
	b.must(c.Release(first + 1)) // expired
	b.clock.advance(time.Minute)
	for seed := 2; b.Counters().EvictedRoom == 0; seed++ {
		b.publish(c, b.mid(seed, 64, 8))
	}
	type ages struct{ n, sum float64 }
	got := map[string]ages{}
	for _, h := range b.Durations() {
		var m dto.Metric
		b.must(h.Write(&m))
		name, _, _ := strings.Cut(strings.TrimPrefix(h.Desc().String(), `Desc{fqName: "spliced_`), `"`)
		for _, l := range m.Label {
			name += " " + l.GetValue()
		}
		got[name] = ages{float64(m.Histogram.GetSampleCount()), m.Histogram.GetSampleSum()}
	}
	for name, want := range map[string]ages{
		"lease_age_seconds released": {1, 2}, "lease_age_seconds expired": {1, 3602}, "reuse_age_seconds": {2, 1}, "eviction_age_seconds": {1, 3662},
	} {
		if got[name] != want {
			t.Errorf("%s: %v, want %v", name, got[name], want)
		}
	}
}

func TestAbandonedLeasesKeepTheirPagesUntilClose(t *testing.T) {
	b := newBench(t, hybrid(1))
	c, other := b.NewSession("client"), b.NewSession("other")
	p, pending := b.mid(1, 40, 4), b.mid(2, 40, 4)
	b.publish(c, p)
	rows, err := c.Acquire(&AcquireQuery{Profile: b.id, Tenant: tenantA, Keys: [][32]byte{p.key}}, nil)
	b.must(err)
	b.must(rows[0].Err)
	r, err := c.Reserve(b.reserveQuery(pending, 0))
	b.must(err)
	c.Abandon()
	c.Abandon()
	pool := b.Pools()[0]
	if pool.PendingBytes != 0 || pool.QuarantinedBytes == 0 {
		t.Errorf("pending %d, quarantined %d", pool.PendingBytes, pool.QuarantinedBytes)
	}
	// The object is held as before, for others too; the session does nothing new.
	if got, err := other.Acquire(&AcquireQuery{Profile: b.id, Tenant: tenantA, Keys: [][32]byte{p.key}}, nil); err != nil || !got[0].Hit {
		t.Errorf("another session: %v, %v, want err == nil, got[0].Hit", err, got)
	}
	other.Close()
	b.must(b.Evict(p.key))
	if pool := b.Pools()[0]; pool.UsedBytes == 0 {
		t.Error("pages of an abandoned lease were freed")
	}
	if _, err := c.Reserve(b.reserveQuery(pending, 0)); err == nil {
		t.Error("an abandoned session reserves")
	}
	b.wantErr(c.Abort(r.ID), tier.ErrGone)
	c.Close()
	if pool := b.Pools()[0]; pool.UsedBytes != 0 {
		t.Errorf("%d bytes used after Close", pool.UsedBytes)
	}
}
