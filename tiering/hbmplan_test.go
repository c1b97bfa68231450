package tiering

import (
	"errors"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/gpuipctest"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/stats"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// devices are what the tests of plans run on.
var devices = map[string]accelerator{"double": ofHostDevices, "fake driver": ofFakeDriver}

func eachDevice(t *testing.T, test func(t *testing.T, open accelerator)) {
	for name, open := range devices {
		t.Run(name, func(t *testing.T) { test(t, open) })
	}
}

func TestBuffersInHBMReplayWhatDecodingGives(t *testing.T) {
	eachDevice(t, func(t *testing.T, open accelerator) {
		b := newBenchAbove(t, open, hybrid(1))
		c := b.NewSession("engine")
		saved := b.save(c, b.saveQuery(1, 20, 0, tier.Exact), 0)[0]
		loaded := b.loadPrefix(c, hashOf(1, 20), tier.Exact)
		d := b.decode(0, 12, 3, b.stripped(saved, 20))
		q := d.appendQuery(0, 20, 0, 4)
		q.Base, q.Capacity = plan.From{Kind: plan.FromCheckpoint, Lease: loaded.Lease}, 6
		st, err := c.Plans().Append(b.ctx, q)
		b.must(err)
		if at := c.Plans().PlaceOf(st.Buffer); at != tier.PlaceHBM {
			t.Fatalf("the buffer lies in place %d", at)
		}
		b.must(c.Release(loaded.Lease))
		_, err = c.Plans().Accept(d.acceptQuery(st.Buffer, 4))
		b.must(err)
		d.replays(c, st.Buffer, 20, 0, false)
		d.replays(c, st.Buffer, 23, 3, true) // the base is now the buffer's own
		_, err = c.Plans().Append(b.ctx, d.appendQuery(st.Buffer, 24, 4, 5))
		b.must(err)
		_, err = c.Plans().Accept(d.acceptQuery(st.Buffer, 3))
		b.must(err)
		d.replays(c, st.Buffer, 27, 7, false)
		b.audit()
		if pools := b.Pools(); pools[1].LeasedBytes != 0 || pools[3].LeasedBytes == 0 {
			t.Fatalf("buffers: pools[1].LeasedBytes %v, want 0; pools[3].LeasedBytes %v, want other than 0", pools[1].LeasedBytes, pools[3].LeasedBytes)
		}
		b.must(c.Release(st.Buffer))
		if pools := b.Pools(); pools[3].LeasedBytes != 0 || b.Counters().HBM.Replayed != 3 {
			t.Fatalf("after the release: %v, want pools[3].LeasedBytes == 0, b.Counters().HBM.Replayed == 3", pools[3])
		}
	})
}

func TestAPlanInTwoPlacesIsInvalid(t *testing.T) {
	b := newBenchAbove(t, ofHostDevices, hybrid(1))
	c := b.NewSession("c")
	first, last := b.mid(2, 64, 8), b.mid(3, 40, 4)
	b.publish(c, first)
	b.publish(c, last)
	pr := b.lay(c, profile.AllLayers, 0, 0, first, last)
	q := &plan.ComposeQuery{Scope: plan.Scope{Profile: b.id, Tenant: tenantA}, Layer: profile.AllLayers, Plan: pr.plan}
	bytes, err := b.geometry().ComposeBytes(q)
	b.must(err)
	q.Out = b.slot(0, bytes)
	b.must(c.Plans().Compose(b.ctx, q))
	if at, err := c.Plans().PlaceOfPlan(q.From, &q.Plan); at != tier.PlaceHBM || err != nil {
		t.Fatalf("plan of HBM: place %d, %v", at, err)
	}
	for i := range q.Plan.Spans {
		if q.Plan.Spans[i].Kind == plan.SpanSegment {
			q.Plan.Spans[i].Lease = b.acquire(c, 0, first).Lease
			break
		}
	}
	b.wantErr(c.Plans().Compose(b.ctx, q), tier.ErrInvalid)
	_, err = c.Plans().PlaceOfPlan(q.From, &q.Plan)
	b.wantErr(err, tier.ErrInvalid)
	if at, err := c.Plans().PlaceOfPlan(plan.From{}, &plan.Plan{}); at != tier.PlaceNone || err != nil {
		t.Fatalf("plan of nothing: place %d, %v", at, err)
	}

	// An answer elsewhere than the leases changes nothing and loses nothing.
	pr = b.lay(c, profile.AllLayers, 0, 0, first, last)
	q.Plan, q.Out = pr.plan, b.put(b.commits, 0, make([]byte, bytes))
	b.wantErr(c.Plans().Compose(b.ctx, q), tier.ErrInvalid)
	if n := b.Counters().HBM; n.Lost != 0 || n.Copies != 2 {
		t.Fatalf("after a caller's mistake: Lost %v, want 0; Copies %v, want 2", n.Lost, n.Copies)
	}
}

// Whatever runs into the lost device takes all copies with it, and memory goes on.
func TestAPlanThatFindsTheDeviceLostDropsAllCopies(t *testing.T) {
	for _, op := range []gpuipc.Op{gpuipctest.OpComposeAll, gpuipctest.OpRotateAll} {
		b := newBenchAbove(t, ofHostDevices, hybrid(1))
		twin := b.acc.(*gpuipctest.Accelerator)
		c := b.NewSession("c")
		p := b.piece(1, profile.FirstSpec(33))
		b.publish(c, p)
		id := b.lease(c, p)
		q := &plan.AssembleQuery{Scope: plan.Scope{Profile: b.id, Tenant: tenantA}, Plan: plan.Plan{End: 33, Spans: []plan.Span{{Kind: plan.SpanSegment, Lease: id, Count: 33}}}}
		bytes, _, err := b.geometry().AssembleBytes(q)
		b.must(err)
		q.Dest.Out = b.slot(0, bytes)
		for _, refused := range []error{errors.New("not now"), gpuipc.ErrUnavailable} {
			twin.Fail(op, 1, refused)
			if err := c.Plans().Assemble(b.ctx, q); !errors.Is(err, tier.ErrUnavailable) {
				t.Fatal(err)
			}
			if n := b.Counters().HBM; n.Lost != 0 || n.Copies != 1 {
				t.Fatalf("a device that refused one request was lost to all: Lost %v, want 0; Copies %v, want 1", n.Lost, n.Copies)
			}
		}
		twin.Lose()
		b.wantErr(c.Plans().Assemble(b.ctx, q), tier.ErrUnavailable)
		if n := b.Counters().HBM; n.Lost != 1 || n.Copies != 0 || n.Dropped[stats.DropLost] != 1 {
			t.Fatalf("Lost %v, want 1; Copies %v, want 0; Dropped[stats.DropLost] %v, want 1", n.Lost, n.Copies, n.Dropped[stats.DropLost])
		}
		b.audit()
		b.must(c.Release(id))
		b.wantHit(p)
		b.must(c.Release(b.acquire(c, 0, p).Lease))
	}
}
