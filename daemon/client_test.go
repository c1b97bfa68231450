package daemon

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/settings"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/gpuipctest"
	"github.com/spliced-kv/spliced/policy/profile"
)

// openClient attaches the real client and registers p.
func openClient(t testing.TB, socket string, p *profile.Profile, b connector.Binding, tenants ...connector.Tenant) (*connector.Client, *connector.Model) {
	t.Helper()
	return openWith(t, connector.Options{Socket: socket, Tenants: tenants}, p, b)
}

// openWith does so with other options.
func openWith(t testing.TB, o connector.Options, p *profile.Profile, b connector.Binding) (*connector.Client, *connector.Model) {
	t.Helper()
	o.Name, o.Timeouts = "test", connector.Timeouts{Lookup: patience, Transfer: patience, Attach: patience}
	c, err := connector.Open(o)
	must(t, err)
	t.Cleanup(func() { c.Close() })
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	must(t, c.WaitAttached(ctx))
	m, err := c.Register(p, b)
	if err == nil {
		err = m.WaitReady(ctx)
	}
	must(t, err)
	return c, m
}

func put(t testing.TB, m *connector.Model, d *document) {
	t.Helper()
	stored, err := m.Put(context.Background(), &connector.PutQuery{Spec: d.spec, Tokens: d.tokens, Source: connector.Source{Parts: partsOf(d)}})
	if err != nil || !stored.Published {
		t.Fatalf("put: published %v, %v", stored.Published, err)
	}
}

func partsOf(d *document) [][]byte {
	var parts [][]byte
	for _, p := range d.layout.Parts {
		parts = append(parts, d.bytes[p.Off:p.Off+p.Len])
	}
	return parts
}

// get acquires one segment and checks its bytes.
func get(t testing.TB, m *connector.Model, d *document) *connector.Lease {
	t.Helper()
	rows, err := m.Acquire(context.Background(), []profile.SegmentKey{d.key}, connector.AcquireOptions{Digests: true})
	if err != nil || rows[0].Err != nil {
		t.Fatalf("acquire: %v, %v", err, rows)
	}
	l := rows[0].Lease
	must(t, l.Verify())
	for i, part := range partsOf(d) {
		if !bytes.Equal(l.Part(i), part) {
			t.Fatalf("part %d differs from what was put", i)
		}
	}
	return l
}

func TestTheClientDoesTheWholeWay(t *testing.T) {
	r := startDaemon(t, testConfig(t), nil)
	p := testProfile(1)
	c, m := openClient(t, r.Socket(), p, connector.Binding{})
	ctx := context.Background()
	first, mid := newDocument(p, nil, 1, 64, profile.RoleFirst), newDocument(p, nil, 2, 64, profile.RoleMid)
	put(t, m, first)
	put(t, m, mid)
	var found connector.Found
	must(t, m.Match(ctx, &connector.MatchQuery{Keys: []profile.SegmentKey{first.key, mid.key, {9}}}, &found))
	if !found.Segments[0].Hit() || !found.Segments[1].Hit() || found.Segments[2].Hit() {
		t.Errorf("found %+v", found.Segments)
	}
	a, b := get(t, m, first), get(t, m, mid)

	// [first 64][head of mid, computed][interior of mid][its tail and 6 more].
	begin, count := mid.spec.Interior()
	head := connector.Span{Start: 64, Count: begin, Input: fill(p.SeamLayout(profile.AllLayers), rand.New(rand.NewPCG(3, 3)))}
	plan := connector.Plan{End: 64 + 64 + 6, Spans: []connector.Span{
		{Lease: a, Start: 0, Count: 64}, head, {Lease: b, Start: 64 + begin, Count: count},
		{Start: 64 + begin + count, Count: 64 - begin - count + 6}}}
	states, err := m.Compose(ctx, &connector.ComposeQuery{Layer: connector.AllLayers, Plan: plan})
	must(t, err)
	if want := p.StatesLayout(profile.AllLayers, 2).Bytes; int64(len(states.Bytes())) != want {
		t.Errorf("states of %d bytes, want %d", len(states.Bytes()), want)
	}
	whole := bytes.Clone(states.Bytes())

	// The same walked in two steps, the second beginning from the first's slot.
	l := p.StatesLayout(0, 1)
	left, err := m.Compose(ctx, &connector.ComposeQuery{Layer: 0, Plan: connector.Plan{End: 64 + begin, Spans: plan.Spans[:2]}})
	must(t, err)
	right, err := m.Compose(ctx, &connector.ComposeQuery{Layer: 0,
		From: connector.From{Slot: left, SlotOff: l.Parts[1].Off},
		Plan: connector.Plan{Begin: 64 + begin, End: plan.End, Spans: plan.Spans[2:]}})
	must(t, err)
	final := p.StatesLayout(0, 2).Parts[2]
	if !bytes.Equal(right.Bytes()[l.Parts[1].Off:][:final.Len], whole[final.Off:][:final.Len]) {
		t.Error("two steps end in another state than one")
	}
	// Into a slot that is there already, and it stays the same slot.
	again, err := m.Compose(ctx, &connector.ComposeQuery{Layer: connector.AllLayers, Plan: plan, Into: states})
	if err != nil || !bytes.Equal(again.Bytes(), whole) {
		t.Errorf("into the same slot: %v", err)
	}
	plan.Spans[1].Input = nil
	rows, err := m.Rotate(ctx, &connector.RotateQuery{Layer: connector.AllLayers, Plan: plan})
	if err != nil || rows.Rows != 64+count {
		t.Fatalf("rotate: %v", err)
	}
	connector.Release(a, b)
	connector.Release(left, right, again, rows)
	c.Close()
	r.atRest()
}

func TestClientsAttachAgainAfterARestart(t *testing.T) {
	config := testConfig(t)
	r := startDaemon(t, config, nil)
	p := testProfile(1)
	c, m := openClient(t, config.Socket, p, connector.Binding{})
	d := newDocument(p, nil, 1, 64, profile.RoleFirst)
	put(t, m, d)
	held := get(t, m, d)
	before := r.epoch
	r.stop()

	// Away: a miss at once. What is leased stays as it was or is refused; this
	// daemon's process lives, so its memory is not known to be still.
	eventually(t, "the client knows", func() bool { return !c.Attached() })
	if _, err := m.Acquire(context.Background(), []profile.SegmentKey{d.key}, connector.AcquireOptions{}); !errors.Is(err, connector.ErrUnavailable) {
		t.Errorf("acquire without a daemon: %v", err)
	}
	if b := held.Part(1); b != nil && !bytes.Equal(b, partsOf(d)[1]) {
		t.Error("leased memory changed when the daemon went away")
	}

	started := time.Now()
	r = startDaemon(t, config, nil)
	if r.epoch == before {
		t.Error("the same epoch twice")
	}
	eventually(t, "the client is back", func() bool { return m.Ready() == nil })
	t.Logf("attached again %v after the start", time.Since(started))
	var found connector.Found
	if err := m.Match(context.Background(), &connector.MatchQuery{Keys: []profile.SegmentKey{d.key}}, &found); err != nil || found.Segments[0].Hit() {
		t.Errorf("after the restart: %v, %+v", err, found.Segments)
	}
	put(t, m, d)
	get(t, m, d).Release()
	if b := held.Part(1); b != nil && !bytes.Equal(b, partsOf(d)[1]) {
		t.Error("leased memory of the former daemon changed")
	}
	held.Release()
	c.Close()
	r.atRest()
}

func TestAStalledDaemonCostsABoundedWait(t *testing.T) {
	leakCheck(t)
	device := gpuipctest.HostDevice(t, gpuipc.HostOptions{Workers: 1})
	r := startDaemon(t, testConfig(t), device)
	p := testProfile(1)
	c, m := openClient(t, r.Socket(), p, connector.Binding{})
	d := newDocument(p, nil, 1, 64, profile.RoleFirst)
	put(t, m, d)
	lease := get(t, m, d)
	stall := device.Stall(t, gpuipc.OpCompose, 1)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	begun := time.Now()
	_, err := m.Compose(ctx, &connector.ComposeQuery{Layer: 0, Plan: connector.Plan{End: 70, Spans: []connector.Span{{Lease: lease, Count: 64}, {Start: 64, Count: 6}}}})
	if !errors.Is(err, connector.ErrLate) && !errors.Is(err, connector.ErrCanceled) {
		t.Errorf("compose: %v", err)
	}
	if waited := time.Since(begun); waited > patience/2 {
		t.Errorf("waited %v", waited)
	}
	// Others are served meanwhile.
	get(t, m, d).Release()
	stall.Release()
	lease.Release()
	c.Close()
	r.atRest()
}

// Many clients do everything at once while some of them leave in the middle.
func TestManyClientsComeAndGo(t *testing.T) {
	config := testConfig(t)
	config.Arena = 2 * settings.MiB              // small: eviction happens
	config.ConnectionMemory = 256 * settings.MiB // those that left keep theirs until it is noticed
	r := startDaemon(t, config, nil)
	p := testProfile(1)
	var served atomic.Int64
	var all sync.WaitGroup
	for worker := range 6 {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(worker), 5))
			for round := range 4 {
				c, m := openClient(t, r.Socket(), p, connector.Binding{})
				for range 20 {
					if oneRequest(t, m, p, rng) {
						served.Add(1)
					}
				}
				if round%2 == 0 {
					c.Close()
				} else {
					leaveAbruptly(t, r.Socket())
				}
			}
		})
	}
	all.Wait()
	if served.Load() == 0 {
		t.Error("nothing was served")
	}
}

// oneRequest publishes or reads a random document; any code of contention is
// fine, wrong bytes are not.
func oneRequest(t *testing.T, m *connector.Model, p *profile.Profile, rng *rand.Rand) bool {
	d := newDocument(p, nil, rng.Uint64N(40), 64, profile.RoleFirst)
	ctx := context.Background()
	rows, err := m.Acquire(ctx, []profile.SegmentKey{d.key}, connector.AcquireOptions{Digests: true})
	if err != nil {
		t.Errorf("acquire: %v", err)
		return false
	}
	if rows[0].Lease == nil {
		_, err := m.Put(ctx, &connector.PutQuery{Spec: d.spec, Tokens: d.tokens, Source: connector.Source{Parts: partsOf(d)}})
		if err != nil && !errors.Is(err, connector.ErrExists) && !errors.Is(err, connector.ErrFull) {
			t.Errorf("put: %v", err)
		}
		return false
	}
	defer rows[0].Lease.Release()
	if err := rows[0].Lease.Verify(); err != nil {
		t.Error(err)
	}
	for i, part := range partsOf(d) {
		if !bytes.Equal(rows[0].Lease.Part(i), part) {
			t.Errorf("part %d differs", i)
		}
	}
	slot, err := m.Compose(ctx, &connector.ComposeQuery{Layer: 0, Plan: connector.Plan{End: 70, Spans: []connector.Span{{Lease: rows[0].Lease, Count: 64}, {Start: 64, Count: 6}}}})
	if err != nil {
		t.Errorf("compose: %v", err)
		return false
	}
	slot.Release()
	return true
}

// leaveAbruptly attaches, begins something and closes the socket.
func leaveAbruptly(t *testing.T, socket string) {
	p := testProfile(1)
	c := attach(t, socket)
	c.register(p)
	d := newDocument(p, nil, 1000, 64, profile.RoleFirst)
	if id, code := c.reserve(d, 0); code == wire.OK {
		c.send(wire.OpCommit, c.commitRequest(id, d.layout, d.bytes))
	}
	c.close()
}
