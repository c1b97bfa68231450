package connector

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/connector/internal/link"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/connector/wire/seqpacket"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/policy/profile/profiletest"
)

var background = context.Background()

// slack is what a loaded machine may add to a bound. What a deadline does not end
// takes for ever.
const slack = 5 * time.Second

// within fails the test when f takes longer than d and the slack.
func within(t *testing.T, d time.Duration, f func()) {
	t.Helper()
	start := time.Now()
	f()
	if took := time.Since(start); took > d+slack {
		t.Errorf("took %v, want at most %v", took, d)
	}
}

func matchOne(m *Model) error {
	var found Found
	err := m.Match(background, &MatchQuery{Keys: make([]profile.SegmentKey, 1)}, &found)
	if err == nil && !found.Segments[0].Hit() {
		err = errors.New("a miss")
	}
	if err != nil && (len(found.Segments) != 1 || found.Segments[0].Hit()) {
		err = fmt.Errorf("a hit in spite of %w", err)
	}
	return err
}

func waitReady(t *testing.T, m *Model) {
	t.Helper()
	ctx, cancel := context.WithTimeout(background, 10*time.Second)
	defer cancel()
	must(t, m.WaitReady(ctx))
}

// brief is a context that ends soon: of calls that are not answered in time, where others
// of the same client have all the time that they need.
func brief(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(background, 200*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// waitLost waits until the client has lost so many daemons. It may have found the next one
// by then.
func waitLost(t *testing.T, c *Client, times uint64) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); c.Counters().Lost < times; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("lost %d daemons, not %d", c.Counters().Lost, times)
		}
	}
}

func TestWithoutDaemonEverythingIsAMiss(t *testing.T) {
	leakFree(t)
	f := newFake(t)
	c := open(t, f)
	m := register(t, c, Binding{})
	within(t, 0, func() {
		if err := matchOne(m); !errors.Is(err, ErrUnavailable) {
			t.Errorf("match: %v", err)
		}
		if _, err := m.Acquire(background, make([]profile.SegmentKey, 1), AcquireOptions{}); !errors.Is(err, ErrUnavailable) {
			t.Errorf("acquire: %v", err)
		}
		if _, _, err := m.Load(background, profile.PrefixHash{}, Exact, AcquireOptions{}); !errors.Is(err, ErrUnavailable) {
			t.Errorf("load: %v", err)
		}
		if _, err := m.Compose(background, &ComposeQuery{}); !errors.Is(err, ErrUnavailable) {
			t.Errorf("compose: %v", err)
		}
		if _, err := c.Stats(background); !errors.Is(err, ErrUnavailable) {
			t.Errorf("stats: %v", err)
		}
	})
	if _, ok := m.Salt(); ok || m.Ready() == nil || c.Attached() || c.Epoch() != 0 {
		t.Error("attached to nothing")
	}
	f.start()
	waitReady(t, m)
	must(t, matchOne(m))
	if salt, ok := m.Salt(); !ok || string(salt) != "salt of " {
		t.Fatalf("salt %q, %v", salt, ok)
	}
}

func TestMatchCarriesQueryAndAnswer(t *testing.T) {
	f := startFake(t)
	asked := make(chan *wire.MatchRequest, 1)
	f.on(wire.OpMatch, func(r *request) {
		r.body = append([]byte(nil), r.body...)
		asked <- decode[wire.MatchRequest](r)
		if r.h.Tenant != 2 || r.h.Deadline == 0 {
			t.Errorf("tenant %d, deadline %d", r.h.Tenant, r.h.Deadline)
		}
		r.reply(&wire.MatchReply{
			PrefixTokens: 64, PrefixIndex: 1, PrefixFlags: wire.AcceptSpliced, PrefixReason: wire.ReasonEvicted, PrefixTier: wire.TierDisk,
			Status: []uint8{wire.StatusMiss, wire.StatusHit}, Tier: []uint8{0, wire.TierDisk},
			Reason: []uint8{wire.ReasonRefused, 0}, Tokens: []uint32{0, 77},
		})
	})
	c := open(t, f, func(o *Options) { o.Tenants = []Tenant{{Name: "a"}, {Name: "b", Token: "x"}} })
	m := register(t, c, Binding{Tenant: "b"})
	var found Found
	q := MatchQuery{
		Accept: Exact | Spliced, Positions: []uint32{32, 64, 96}, Prefixes: make([]profile.PrefixHash, 3),
		Keys: []profile.SegmentKey{{1}, {2}},
	}
	must(t, m.Match(background, &q, &found))
	if got := <-asked; got.Profile != 7 || got.Accept != 3 || len(got.Positions) != 3 || got.Positions[2] != 96 || got.Keys[1] != q.Keys[1] {
		t.Errorf("request %+v", got)
	}
	want := Found{PrefixTokens: 64, PrefixIndex: 1, PrefixKind: Spliced, PrefixStates: 64, PrefixReason: wire.ReasonEvicted, PrefixTier: wire.TierDisk}
	if want.Segments = found.Segments; !reflect.DeepEqual(found, want) {
		t.Errorf("found %+v, want %+v", found, want)
	}
	if s := found.Segments[0]; s.Hit() || s.Reason != wire.ReasonRefused {
		t.Errorf("first key %+v", s)
	}
	if s := found.Segments[1]; !s.Hit() || s.Tokens != 77 || s.Tier != wire.TierDisk {
		t.Errorf("second key %+v", s)
	}
}

func TestAcquireAndLoadWaitAsLongAsTheyAreTold(t *testing.T) {
	f := startFake(t)
	told := make(chan time.Duration, 2)
	deadline := func(r *request) {
		told <- time.Duration(r.h.Deadline) * time.Microsecond
		standard(r)
	}
	f.on(wire.OpAcquire, deadline)
	f.on(wire.OpLoad, deadline)
	m := register(t, open(t, f), Binding{}) // Lookup is 1 s
	for _, wait := range []time.Duration{0, 20 * time.Second} {
		o := AcquireOptions{Wait: wait}
		rows, err := m.Acquire(background, make([]profile.SegmentKey, 1), o)
		must(t, err)
		rows[0].Lease.Release()
		if _, ok, err := m.Load(background, profile.PrefixHash{}, Exact, o); ok || err != nil {
			t.Fatalf("%v, %v", ok, err)
		}
		for range 2 {
			if got := <-told; got <= wait/2 || got > max(wait, time.Second) {
				t.Errorf("deadline %v with a wait of %v", got, wait)
			}
		}
	}
}

func TestLongMatchIsSplit(t *testing.T) {
	f, _, m := opened(t)
	const n = 2*matchRows + 5
	q := MatchQuery{Keys: make([]profile.SegmentKey, n), Positions: make([]uint32, matchRows+3), Prefixes: make([]profile.PrefixHash, matchRows+3)}
	for i := range q.Positions {
		q.Positions[i] = uint32(16 * (i + 1))
	}
	var found Found
	must(t, m.Match(background, &q, &found))
	for i, s := range found.Segments {
		if !s.Hit() {
			t.Fatalf("key %d of %d: %+v", i, n, s)
		}
	}
	if found.PrefixTokens != 16*(matchRows+3) || found.PrefixIndex != matchRows+2 {
		t.Fatalf("prefix of %d tokens, index %d", found.PrefixTokens, found.PrefixIndex)
	}
	if got := f.count(wire.OpMatch); got != 3 {
		t.Fatalf("%d requests, want 3", got)
	}
}

func TestRestartIsFoundWithinASecond(t *testing.T) {
	f, c, m := opened(t)
	other := register(t, c, Binding{Engine: "other"})
	leases, err := m.Acquire(background, make([]profile.SegmentKey, 1), AcquireOptions{Digests: true})
	if err != nil || leases[0].Err != nil {
		t.Fatal(err, leases)
	}
	old := leases[0].Lease
	defer old.Release()
	slot, err := m.Compose(background, &ComposeQuery{Layer: AllLayers})
	must(t, err)
	epoch := c.Epoch()
	f.stop()
	waitLost(t, c, 1)
	if err := matchOne(m); !errors.Is(err, ErrUnavailable) {
		t.Fatalf("while down: %v", err)
	}
	f.epoch++
	down := time.Now()
	f.start()
	waitReady(t, m)
	waitReady(t, other)
	if took := time.Since(down); took > time.Second+slack {
		t.Errorf("attached %v after the start", took)
	}
	if c.Epoch() == epoch {
		t.Error("same epoch")
	}
	must(t, matchOne(m))
	// The process lives, as after a connection that it ended: what was leased may
	// be somebody else's by now.
	if old.Valid() || old.Part(0) != nil || slot.Valid() || slot.Bytes() != nil {
		t.Error("bytes of a connection that ended")
	}
	if err := old.Verify(); !errors.Is(err, ErrGone) {
		t.Errorf("verify: %v", err)
	}
	if err := old.Read(0, make([]byte, old.Layout().Parts[0].Len)); !errors.Is(err, ErrGone) {
		t.Errorf("read: %v", err)
	}
	plan := Plan{End: heldTokens, Spans: []Span{{Lease: old, Count: heldTokens}}}
	if _, err := m.Compose(background, &ComposeQuery{Layer: AllLayers, Plan: plan}); !errors.Is(err, ErrGone) {
		t.Errorf("compose of an old lease: %v", err)
	}
	if _, err := m.Compose(background, &ComposeQuery{Layer: AllLayers, From: From{Slot: slot}}); !errors.Is(err, ErrGone) {
		t.Errorf("compose from an old slot: %v", err)
	}
	slot.Release()
	old.Release()
	old.Release()
	if f.count(wire.OpRelease) != 0 {
		t.Error("an old lease was released at the new daemon")
	}
	if n := c.Counters(); n.Attached != 2 || n.Lost != 1 {
		t.Errorf("%+v", n)
	}
}

// TestADroppedClientGoesOnSendingUntilItsLastRelease: by that the daemon knows how
// long it must not touch the pages.
func TestADroppedClientGoesOnSendingUntilItsLastRelease(t *testing.T) {
	f := startFake(t)
	left := make(chan struct{}, 2)
	drop := func(r *request) {
		if err := r.conn.CloseWrite(); err != nil {
			t.Error(err)
		}
		// Nothing comes any more; what ends this is the client's own end.
		if _, _, err := r.conn.Recv(make([]byte, 8)); !errors.Is(err, seqpacket.ErrClosed) {
			t.Error(err)
		}
		left <- struct{}{}
	}
	c := open(t, f)
	m := register(t, c, Binding{})
	rows, err := m.Acquire(background, make([]profile.SegmentKey, 2), AcquireOptions{})
	must(t, err)
	f.on(wire.OpMatch, drop)
	if err := matchOne(m); !errors.Is(err, ErrUnavailable) {
		t.Fatal(err)
	}
	f.on(wire.OpMatch, nil)
	waitReady(t, m) // over another connection
	rows[0].Lease.Release()
	select {
	case <-left:
		t.Fatal("the client left while it held a lease")
	default:
	}
	rows[1].Lease.Release()
	<-left
}

// TestLeaseOfADeadDaemonStaysReadable: nobody can write memory whose only writer
// is dead, so what was leased of it stays good.
func TestLeaseOfADeadDaemonStaysReadable(t *testing.T) {
	leakFree(t)
	path, kill := spawnFake(t)
	c, err := Open(Options{Socket: path, Timeouts: Timeouts{Lookup: 10 * time.Second}})
	must(t, err)
	defer c.Close()
	m := register(t, c, Binding{})
	rows, err := m.Acquire(background, make([]profile.SegmentKey, 1), AcquireOptions{Digests: true})
	must(t, err)
	l := rows[0].Lease
	r, err := m.enter()
	must(t, err)
	known := r.a.KnowsPeer()
	r.a.Release()
	if !known {
		t.Skip("this kernel does not tell the process behind a socket (SO_PEERPIDFD)")
	}
	kill()
	waitLost(t, c, 1)
	if !l.Valid() || len(l.Part(0)) == 0 {
		t.Error("no bytes")
	}
	if err := l.Verify(); err != nil {
		t.Error(err)
	}
	for i, p := range l.Layout().Parts {
		if err := l.Read(i, make([]byte, p.Len)); err != nil {
			t.Error(err)
		}
	}
	l.Release()
	if l.Valid() {
		t.Error("valid after release")
	}
}

func TestStalledDaemonCostsTheDeadline(t *testing.T) {
	f, c, m := opened(t, func(o *Options) { o.Timeouts.Lookup = 500 * time.Millisecond })
	release := f.hold(wire.OpMatch)
	within(t, 500*time.Millisecond, func() {
		if err := matchOne(m); !errors.Is(err, ErrLate) {
			t.Errorf("got %v", err)
		}
	})
	ctx, cancel := context.WithTimeout(background, 100*time.Millisecond)
	defer cancel()
	within(t, 100*time.Millisecond, func() {
		if err := m.Match(ctx, &MatchQuery{}, &Found{}); !errors.Is(err, ErrLate) {
			t.Errorf("got %v", err)
		}
	})
	f.await(wire.OpMatch)
	f.await(wire.OpMatch)
	release()
	for c.Counters().LateReplies < 2 {
		if err := matchOne(m); !harmless(err) {
			t.Fatal(err)
		}
	}
	answeredAgain(t, m)
	if n := c.Counters(); n.Late < 2 || n.Lost != 0 || n.Unknown != 0 {
		t.Errorf("%+v", n)
	}
}

func TestLateLeasesAreGivenBack(t *testing.T) {
	f := startFake(t)
	c := open(t, f, func(o *Options) {
		o.Timeouts.Lookup = 10 * time.Millisecond
		o.Timeouts.Transfer = 10 * time.Millisecond
	})
	m := register(t, c, Binding{})
	released, aborted := make(chan []uint64, 10), make(chan []uint64, 10)
	f.on(wire.OpRelease, func(r *request) {
		released <- append([]uint64(nil), decode[wire.ReleaseRequest](r).Leases...)
		standard(r)
	})
	f.on(wire.OpAbort, func(r *request) {
		aborted <- append([]uint64(nil), decode[wire.AbortRequest](r).Reservations...)
		standard(r)
	})
	steps := []struct {
		op   wire.Op
		call func() error
		ids  []uint64
		from chan []uint64
	}{
		{wire.OpAcquire, func() error {
			_, err := m.Acquire(background, make([]profile.SegmentKey, 2), AcquireOptions{})
			return err
		}, []uint64{1000, 1001}, released},
		{wire.OpCompose, func() error { _, err := m.Compose(background, &ComposeQuery{}); return err }, []uint64{900}, released},
		{wire.OpRotate, func() error { _, err := m.Rotate(background, &RotateQuery{}); return err }, []uint64{901}, released},
		{wire.OpReserve, func() error { _, err := m.Put(background, putQuery(t, 20)); return err }, []uint64{500}, aborted},
	}
	for _, step := range steps {
		release := f.hold(step.op)
		if err := step.call(); !errors.Is(err, ErrLate) {
			t.Fatalf("%s: %v", step.op, err)
		}
		f.await(step.op)
		release()
		if got := <-step.from; fmt.Sprint(got) != fmt.Sprint(step.ids) {
			t.Fatalf("%s: gave back %v, want %v", step.op, got, step.ids)
		}
	}
}

func TestGarbageEndsTheConnectionNotTheClient(t *testing.T) {
	ok := func(r *request) []byte {
		h := wire.Header{Kind: wire.Reply, Op: r.h.Op, Request: r.h.Request, Epoch: r.f.epoch}
		frame, _ := wire.AppendFrame(nil, &h, &wire.MatchReply{Status: []uint8{1}, Tier: []uint8{1}, Reason: []uint8{0}, Tokens: []uint32{5}})
		return frame
	}
	set := func(at int, v byte) answer {
		return func(r *request) {
			frame := ok(r)
			frame[at] = v
			r.send(frame)
		}
	}
	rows := map[string]answer{
		"short":    func(r *request) { r.send([]byte("SPLC")) },
		"noise":    func(r *request) { r.send(bytes.Repeat([]byte{0xa5}, 200)) },
		"version":  set(4, 9),
		"request":  set(5, 0),
		"other op": set(6, byte(wire.OpLoad)),
		"epoch":    set(16, 0xff),
		"length":   set(32, 0xff),
		"column":   set(56, 0xff),
		"more rows": func(r *request) {
			r.reply(&wire.MatchReply{Status: make([]uint8, 2), Tier: make([]uint8, 2), Reason: make([]uint8, 2), Tokens: make([]uint32, 2)})
		},
		"prefix index": func(r *request) {
			r.reply(&wire.MatchReply{PrefixTokens: 5, PrefixIndex: 9, Status: []uint8{1}, Tier: []uint8{1}, Reason: []uint8{0}, Tokens: []uint32{5}})
		},
		"too long": func(r *request) { r.send(make([]byte, wire.MaxFrame+8)) },
		"request 0": func(r *request) {
			r.send(wire.AppendError(nil, &wire.Header{Code: wire.Invalid, Epoch: r.f.epoch}, "what?"))
		},
		"descriptors": func(r *request) { r.reply(&wire.StatsReply{}, 0) },
		"stale":       refuse(wire.Stale, "another start"),
	}
	for name, bad := range rows {
		t.Run(name, func(t *testing.T) {
			f, c, m := opened(t)
			f.on(wire.OpMatch, bad)
			if err := matchOne(m); !errors.Is(err, ErrUnavailable) && !errors.Is(err, ErrStale) {
				t.Fatalf("got %v", err)
			}
			waitLost(t, c, 1)
			f.on(wire.OpMatch, nil)
			waitReady(t, m)
			must(t, matchOne(m))
			if n := c.Counters(); n.Lost != 1 || n.Attached != 2 || (n.Malformed == 0) != (name == "stale") {
				t.Errorf("%+v", n)
			}
		})
	}
}

func TestReplyToNobodyIsCounted(t *testing.T) {
	f, c, m := opened(t)
	f.on(wire.OpMatch, func(r *request) {
		other := *r
		other.h.Request += 1 << 16
		standard(&other)
		standard(r)
		standard(r)
	})
	for range 3 {
		must(t, matchOne(m))
	}
	if n := c.Counters(); n.Unknown < 3 || n.Lost != 0 {
		t.Errorf("%+v", n)
	}
}

func TestHelloThatCannotBeUsed(t *testing.T) {
	rows := map[string]answer{
		"denied":  refuse(wire.Denied, "not you"),
		"garbage": func(r *request) { r.send([]byte("hello")) },
		"no descriptors": func(r *request) {
			r.reply(&wire.HelloReply{Version: 1, BootEpoch: 5, MaxInFlight: 1, Tenants: make([]wire.TenantGrant, 1)})
		},
		"two": func(r *request) {
			r.reply(&wire.HelloReply{Version: 1, BootEpoch: 5, MaxInFlight: 1, Tenants: make([]wire.TenantGrant, 1)}, 0, 1)
		},
		"not memory": func(r *request) {
			r.reply(&wire.HelloReply{Version: 1, BootEpoch: 5, MaxInFlight: 1, ArenaBytes: 4096, Tenants: make([]wire.TenantGrant, 1)}, 0, 1, 2)
		},
		"version": func(r *request) { r.reply(&wire.HelloReply{Version: 2}) },
		"hang up": func(r *request) { r.conn.Close() },
		"turned away": func(r *request) {
			r.send(wire.AppendError(nil, &wire.Header{Op: wire.OpHello, Code: wire.Busy}, "full house"))
			r.conn.Close()
		},
	}
	for name, bad := range rows {
		t.Run(name, func(t *testing.T) {
			f := startFake(t)
			f.on(wire.OpHello, bad)
			c := open(t, f)
			m := register(t, c, Binding{})
			if err := matchOne(m); !errors.Is(err, ErrUnavailable) {
				t.Fatalf("got %v", err)
			}
			f.on(wire.OpHello, nil)
			waitReady(t, m)
		})
	}
}

func TestHelloSilenceIsBounded(t *testing.T) {
	f := startFake(t)
	f.on(wire.OpHello, silence)
	within(t, 20*time.Millisecond, func() { open(t, f, func(o *Options) { o.Timeouts.Attach = 20 * time.Millisecond }) })
}

// A daemon tells how far off hits are; of one that does not they may be by the tolerance.
func TestMatchTellsErrors(t *testing.T) {
	for name, said := range map[string]wire.MatchEstimates{
		"told":     {Present: true, Micros: []uint32{0, 0, 0}, Error: []float64{0, 0.0125, 0}},
		"not told": {},
	} {
		t.Run(name, func(t *testing.T) {
			f := startFake(t)
			f.features.Store(wire.FeaturePacked | wire.FeatureEstimates)
			f.on(wire.OpMatch, func(r *request) {
				r.reply(&wire.MatchReply{
					Status: []uint8{wire.StatusMiss, wire.StatusHit, wire.StatusHit}, Tier: []uint8{0, wire.TierDRAM, wire.TierDRAM},
					Reason: []uint8{wire.ReasonUnknown, 0, 0}, Tokens: []uint32{0, 77, 78}, Estimates: said,
				})
			})
			id := profiletest.TwoLayers(1)
			id.Tolerance, id.RowTolerance = 0.02, 0.01
			m, err := open(t, f).Register(profiletest.New(id), Binding{})
			must(t, err)
			waitReady(t, m)
			var found Found
			must(t, m.Match(background, &MatchQuery{Keys: make([]profile.SegmentKey, 3)}, &found))
			want := []float64{0, 0.02, 0.02}
			if said.Present {
				want = said.Error
			}
			for i, row := range found.Segments {
				if row.Error != want[i] {
					t.Errorf("%s: key %d is off by %v, want %v", name, i, row.Error, want[i])
				}
			}
		})
	}
}

// A daemon that knows primers is asked for both variants; an older one gets no primer, and what it
// finds without one is left out where the query accepts no other variant.
func TestMatchNamesPrimersToThoseWhoKnowThem(t *testing.T) {
	leakFree(t)
	primer := profile.NewPrimerID([]uint32{1, 2})
	known := wire.MatchKnown{
		Present: true, Starts: []uint32{0, 10, 60}, Lengths: []uint32{10, 40, 40}, Keys: make([][32]byte, 3), Tiers: make([]uint8, 3), Interiors: make([]uint32, 3),
	}
	for name, row := range map[string]struct {
		features uint64
		primers  wire.MatchPrimers // of the reply
		either   bool
		starts   []int
		other    bool
		fails    bool
	}{
		"known":           {wire.FeaturePrimers, wire.MatchPrimers{Present: true, Variants: []uint8{0, 1}, Primed: []uint8{0, 0, 1}}, false, []int{0, 10, 60}, true, false},
		"not known":       {0, wire.MatchPrimers{}, false, []int{0, 10}, false, false},
		"not known, any":  {0, wire.MatchPrimers{}, true, []int{0, 10, 60}, false, false},
		"too few":         {wire.FeaturePrimers, wire.MatchPrimers{Present: true, Variants: []uint8{0, 0}, Primed: []uint8{1}}, true, nil, false, true},
		"miss of another": {wire.FeaturePrimers, wire.MatchPrimers{Present: true, Variants: []uint8{1, 0}, Primed: []uint8{0, 0, 0}}, true, nil, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			f := startFake(t)
			f.features.Store(row.features | wire.FeaturePrompt | wire.FeatureKnown)
			asked := make(chan wire.MatchPrimersQuery, 1)
			f.on(wire.OpMatch, func(r *request) {
				r.body = append([]byte(nil), r.body...)
				asked <- decode[wire.MatchRequest](r).Primers
				r.reply(&wire.MatchReply{
					Status: []uint8{wire.StatusMiss, wire.StatusHit}, Tier: []uint8{0, wire.TierDRAM}, Reason: make([]uint8, 2), Tokens: []uint32{0, 7},
					Known: known, Primers: row.primers,
				})
			})
			m := register(t, open(t, f), Binding{})
			q := MatchQuery{
				Keys: []profile.SegmentKey{{1}, {2}}, Others: []profile.SegmentKey{{3}, {4}}, Prompt: make([]uint32, 100),
				Primer: primer, PrimedFrom: 50, Either: row.either,
			}
			var found Found
			err := m.Match(background, &q, &found)
			if got, want := <-asked, (wire.MatchPrimersQuery{
				Present: true, Primer: primer, PrimedFrom: 50, Either: flag(row.either), Others: [][32]byte{{3}, {4}},
			}); row.features != 0 && !reflect.DeepEqual(got, want) || row.features == 0 && got.Present {
				t.Errorf("asked with %+v, want %+v", got, want)
			}
			if (err != nil) != row.fails {
				t.Fatal(err)
			}
			if row.fails {
				return
			}
			var starts []int
			for _, k := range found.Known {
				starts = append(starts, k.Start)
				if k.Primed != (row.features != 0 && k.Start == 60) {
					t.Errorf("%+v", k)
				}
			}
			if !slices.Equal(starts, row.starts) || found.Segments[0].Other || found.Segments[1].Other != row.other {
				t.Errorf("found %v, %+v", starts, found.Segments)
			}
		})
	}
}

// Nothing is published, planned or computed after a primer with a daemon that knows none.
func TestPrimersNeedADaemonThatKnowsThem(t *testing.T) {
	leakFree(t)
	f := startFake(t)
	watched := make(chan bool, 1)
	f.on(wire.OpWatch, func(r *request) {
		watched <- decode[wire.WatchRequest](r).Primers.Present
		r.reply(&wire.WatchReply{})
	})
	m := register(t, open(t, f), Binding{})
	spec, ok := m.Profile().MidSpec(64, 4)
	if !ok {
		t.Fatal("64 tokens have no interior")
	}
	spec.Primer = profile.NewPrimerID([]uint32{1})
	ids := make([]uint32, 64)
	source := Source{Fill: func(profile.Part, int, int64, []byte) error { return nil }}
	if _, err := m.Put(background, &PutQuery{Spec: spec, Tokens: ids, Source: source}); !errors.Is(err, ErrUnsupported) {
		t.Errorf("put: %v", err)
	}
	if _, err := m.PlanSegments(background, &ParallelQuery{Segments: []SegmentIDs{{spec, ids}}}); !errors.Is(err, ErrUnsupported) {
		t.Errorf("plan: %v", err)
	}
	if _, err := m.WatchJobs(background, &WorkerQuery{Jobs: 1, Primers: []profile.PrimerID{spec.Primer}}); err != nil || <-watched {
		t.Errorf("watch: %v", err)
	}
	if _, err := m.WatchJobs(background, &WorkerQuery{Jobs: 1, Primers: make([]profile.PrimerID, wire.MaxPrimers+1)}); !errors.Is(err, ErrInvalid) {
		t.Errorf("watch: %v", err)
	}
	left := spec.Left(40)
	if left.Primer != spec.Primer {
		t.Error("the first piece of a segment has another primer")
	}
}

// Jobs belong to the caller: later replies, in memory that calls reuse, change nothing in them.
func TestJobsOutliveTheirCall(t *testing.T) {
	f := startFake(t)
	const tokens = 64
	number := uint32(0)
	f.on(wire.OpWatch, func(r *request) {
		number++
		r.reply(&wire.WatchReply{
			Jobs: []uint64{uint64(number)}, Keys: make([][32]byte, 1), Roles: []uint8{0}, Heads: []uint32{0}, Tails: []uint32{0}, Begins: []uint32{0},
			Lefts: make([][32]byte, 1), Micros: []uint32{number}, Tokens: []uint32{tokens}, IDs: slices.Repeat([]uint32{number}, tokens),
			Withdrawn: []uint64{uint64(number)},
		})
	})
	m := register(t, open(t, f), Binding{})
	var list []Jobs
	for range 20 {
		jobs, err := m.WatchJobs(background, &WorkerQuery{Jobs: 1})
		if err != nil || len(jobs.New) != 1 {
			t.Fatal(jobs, err)
		}
		list = append(list, jobs)
	}
	for i, jobs := range list {
		n := uint32(i + 1)
		if !slices.Equal(jobs.New[0].Tokens, slices.Repeat([]uint32{n}, tokens)) || !slices.Equal(jobs.Withdrawn, []uint64{uint64(n)}) {
			t.Errorf("answer %d has changed: %+v", n, jobs)
		}
	}
}

func TestRefusedProfile(t *testing.T) {
	f := startFake(t)
	f.on(wire.OpProfile, refuse(wire.Invalid, "segment bytes 1, want 2"))
	c := open(t, f)
	_, err := c.Register(testProfile(), Binding{})
	if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "segment bytes 1, want 2") {
		t.Fatalf("got %v", err)
	}
	// One that is only slow is tried again.
	f.on(wire.OpProfile, refuse(wire.Unavailable, "starting"))
	m := register(t, c, Binding{})
	if err := m.Ready(); !errors.Is(err, ErrUnavailable) {
		t.Fatalf("got %v", err)
	}
	f.on(wire.OpProfile, nil)
	f.await(wire.OpProfile)
	waitReady(t, m)
}

func TestRegisterChecksItsArguments(t *testing.T) {
	leakFree(t)
	c := open(t, newFake(t))
	p := testProfile()
	for _, b := range []Binding{
		{Tenant: "nobody"}, {Rank: 1}, {Rank: -1}, {BlockTokens: -1}, {Engine: strings.Repeat("x", wire.MaxName+1)}, {Memory: &Memory{Bytes: 5}},
	} {
		if _, err := c.Register(p, b); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", b, err)
		}
	}
	if _, err := c.Register(nil, Binding{}); !errors.Is(err, ErrInvalid) {
		t.Errorf("no profile: %v", err)
	}
	for range maxModels {
		register(t, c, Binding{})
	}
	if _, err := c.Register(p, Binding{}); !errors.Is(err, ErrFull) {
		t.Errorf("one more than %d: %v", maxModels, err)
	}
}

func TestOptionsListEveryMistake(t *testing.T) {
	_, err := Open(Options{
		Name: strings.Repeat("x", 300), StagingBytes: -1,
		Tenants: []Tenant{{Name: "a"}, {Name: "a"}}, Timeouts: Timeouts{Lookup: -1},
	})
	if !errors.Is(err, ErrInvalid) {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{"Name has 300", "name \"a\" twice", "StagingBytes -1", "Timeouts.Lookup"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q lacks %q", err, want)
		}
	}
}

func TestCallersShareTheSocket(t *testing.T) {
	f := startFake(t)
	// Answers come in pairs, the later request first.
	var mu sync.Mutex
	var kept *request
	f.on(wire.OpMatch, func(r *request) {
		mu.Lock()
		defer mu.Unlock()
		if kept == nil {
			copied := *r
			copied.body = append([]byte(nil), r.body...)
			kept = &copied
			return
		}
		standard(r)
		standard(kept)
		kept = nil
	})
	// Stats lets one go that finds no partner.
	f.on(wire.OpStats, func(r *request) {
		mu.Lock()
		defer mu.Unlock()
		if kept != nil {
			standard(kept)
			kept = nil
		}
		standard(r)
	})
	c := open(t, f)
	m := register(t, c, Binding{})
	const callers, rounds = 8, 100
	var wg, flush sync.WaitGroup
	done := make(chan struct{})
	flush.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			if _, err := c.Stats(background); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for i := range callers {
		wg.Go(func() {
			var found Found
			for round := range rounds {
				n := 1 + (i*rounds+round)%40
				positions := []uint32{uint32(i*rounds + round + 1)}
				q := MatchQuery{Keys: make([]profile.SegmentKey, n), Positions: positions, Prefixes: make([]profile.PrefixHash, 1)}
				if err := m.Match(background, &q, &found); err != nil {
					t.Error(err)
					return
				}
				if len(found.Segments) != n || found.PrefixTokens != int(positions[0]) {
					t.Errorf("%d keys, prefix %d: got the answer for %d, %d", n, positions[0], len(found.Segments), found.PrefixTokens)
					return
				}
			}
		})
	}
	wg.Wait()
	close(done)
	flush.Wait()
	if n := c.Counters(); n.Unknown+n.Late+n.Lost != 0 {
		t.Errorf("%+v", n)
	}
}

func TestFullTableIsBusyAndRecovers(t *testing.T) {
	leakFree(t)
	f := newFake(t)
	f.maxInFlight = 8
	f.start()
	c := open(t, f, func(o *Options) { o.Timeouts.Lookup = time.Second })
	m := register(t, c, Binding{})
	release := f.hold(wire.OpMatch)
	errs := make(chan error, 10)
	for range cap(errs) {
		go func() { errs <- matchOne(m) }()
	}
	late, busy := 0, 0
	for range cap(errs) {
		switch err := <-errs; {
		case errors.Is(err, ErrLate):
			late++
		case errors.Is(err, ErrBusy):
			busy++
		default:
			t.Fatal(err)
		}
	}
	if want := 8 - link.OwnEntries; late != want || busy != cap(errs)-want {
		t.Fatalf("%d late, %d busy", late, busy)
	}
	release()
	answeredAgain(t, m)
}

// answeredAgain waits until the daemon is known to answer.
func answeredAgain(t *testing.T, m *Model) {
	t.Helper()
	for start := time.Now(); ; {
		err := matchOne(m)
		if err == nil {
			return
		}
		if !harmless(err) || time.Since(start) > 10*time.Second {
			t.Fatal(err)
		}
	}
}

func TestSilentDaemonCostsFewDeadlines(t *testing.T) {
	f, c, m := opened(t, func(o *Options) { o.Timeouts.Lookup = 50 * time.Millisecond })
	release := f.hold(wire.OpMatch)
	for range link.StallCalls {
		if err := matchOne(m); !errors.Is(err, ErrLate) {
			t.Fatal(err)
		}
	}
	calls, stalled := uint64(0), time.Now()
	within(t, 0, func() {
		for ; calls < 1000 && time.Since(stalled) < time.Second/2; calls++ { // after a second one call is let through
			if err := matchOne(m); !errors.Is(err, ErrUnavailable) {
				t.Fatal(err)
			}
		}
	})
	if n := c.Counters(); n.Late != link.StallCalls || n.Stalled != calls || n.Lost != 0 {
		t.Errorf("%+v", n)
	}
	release()
	answeredAgain(t, m)
}

func TestAnswerInTimeReadLateIsNotLate(t *testing.T) {
	f, _, m := opened(t)
	r, err := m.enter()
	must(t, err)
	defer r.a.Release()
	send := func() *link.Call {
		k := r.a.Get(background, wire.OpStats, time.Hour)
		must(t, r.a.Start(background, k, 0, &wire.StatsRequest{}, nil))
		f.await(wire.OpStats)
		k.Deadline = time.Now().Add(-time.Second) // this process was held up
		return k
	}
	k := send()
	if _, err := r.a.Result(background, k); err != nil {
		t.Errorf("as the reader: %v", err)
	}
	r.a.Put(k)
	// The same while somebody else holds the token, who gives it back at last.
	k = send()
	stop := r.a.BeReader()
	go stop()
	if _, err := r.a.Result(background, k); err != nil {
		t.Errorf("as a follower: %v", err)
	}
	r.a.Put(k)
}

func TestDaemonThatDoesNotReadIsLate(t *testing.T) {
	f, _, m := opened(t, func(o *Options) { o.Timeouts.Lookup = 10 * time.Millisecond })
	block := make(chan struct{})
	f.on(wire.OpMatch, func(*request) { <-block })
	q := MatchQuery{Keys: make([]profile.SegmentKey, matchRows), Positions: make([]uint32, matchRows), Prefixes: make([]profile.PrefixHash, matchRows)}
	for range 20 {
		within(t, 10*time.Millisecond, func() {
			if err := m.Match(background, &q, &Found{}); err == nil || !harmless(err) {
				t.Fatalf("got %v", err)
			}
		})
	}
	close(block)
}

func TestDeathAnswersAllCallers(t *testing.T) {
	f, _, m := opened(t, func(o *Options) { o.Timeouts.Lookup = 30 * time.Second })
	f.on(wire.OpMatch, silence)
	errs := make(chan error, 5)
	for range cap(errs) {
		go func() { errs <- matchOne(m) }()
	}
	for range cap(errs) {
		f.await(wire.OpMatch)
	}
	f.stop()
	for range cap(errs) {
		if err := <-errs; !errors.Is(err, ErrUnavailable) {
			t.Fatalf("got %v", err)
		}
	}
}

func TestCloseAnswersAllCallers(t *testing.T) {
	f, c, m := opened(t, func(o *Options) { o.Timeouts.Lookup = 30 * time.Second })
	leases, err := m.Acquire(background, make([]profile.SegmentKey, 1), AcquireOptions{Digests: true})
	must(t, err)
	f.on(wire.OpMatch, silence)
	errs := make(chan error, 5)
	for range cap(errs) {
		go func() { errs <- matchOne(m) }()
	}
	for range cap(errs) {
		f.await(wire.OpMatch)
	}
	within(t, 0, func() { c.Close() })
	for range cap(errs) {
		if err := <-errs; !errors.Is(err, ErrUnavailable) {
			t.Fatalf("got %v", err)
		}
	}
	if err := matchOne(m); !errors.Is(err, ErrUnavailable) {
		t.Errorf("match: %v", err)
	}
	if _, err := c.Register(testProfile(), Binding{}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("register: %v", err)
	}
	if err := c.WaitAttached(background); !errors.Is(err, ErrUnavailable) {
		t.Errorf("wait: %v", err)
	}
	// Leases do not outlive the client.
	if err := leases[0].Lease.Verify(); !errors.Is(err, ErrGone) {
		t.Errorf("verify: %v", err)
	}
	leases[0].Lease.Release()
	c.Close()
}

func TestCancelledContext(t *testing.T) {
	f, c, m := opened(t, func(o *Options) { o.Timeouts.Transfer = 30 * time.Second })
	release := f.hold(wire.OpCompose)
	ctx, cancel := context.WithCancel(background)
	errs := make(chan error, 1)
	go func() {
		_, err := m.Compose(ctx, &ComposeQuery{})
		errs <- err
	}()
	f.await(wire.OpCompose)
	cancel()
	if err := <-errs; !errors.Is(err, ErrCanceled) {
		t.Fatalf("got %v", err)
	}
	f.await(wire.OpCancel) // the daemon is told, too
	release()
	f.await(wire.OpRelease)
	if n := c.Counters(); n.Canceled != 1 || n.GaveBack != 1 {
		t.Errorf("%+v", n)
	}
}

func TestStats(t *testing.T) {
	c := open(t, startFake(t))
	stats, err := c.Stats(background)
	if err != nil || len(stats) != 2 || stats[1] != (Stat{"b", 2}) {
		t.Fatalf("%v, %v", stats, err)
	}
}

func TestEveryCodeHasItsOwnKind(t *testing.T) {
	seen := map[error]wire.Code{}
	for code := wire.Miss; code <= wire.Quota; code++ {
		err := link.Kind(code)
		if other, twice := seen[err]; err == nil || twice {
			t.Errorf("%v maps to %v, as %v does", code, err, other)
		}
		if err.Error() != code.String() {
			t.Errorf("%v maps to %v", code, err)
		}
		seen[err] = code
	}
	if link.Kind(wire.OK) != nil || !errors.Is(link.Kind(999), ErrUnsupported) {
		t.Error("ok or a later code")
	}
	if err := link.Refusal(wire.OpMatch, wire.Full, []byte("text")); err.Error() != "match: text: full" || !errors.Is(err, ErrFull) {
		t.Errorf("got %v", err)
	}
}
