package daemon

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/policy/profile"
)

// stageTokens writes ids 0, 1, … into staging.
func (c *rawClient) stageTokens(off uint64, n int) {
	ids := make([]uint32, n)
	for i := range ids {
		ids[i] = uint32(i)
	}
	c.stageIDs(off, ids)
}

// stageIDs writes token ids into staging.
func (c *rawClient) stageIDs(off uint64, ids []uint32) {
	for i, id := range ids {
		binary.LittleEndian.PutUint32(c.staging.Bytes()[off+4*uint64(i):], id)
	}
}

func TestAdviseRefusesWhatMakesNoSense(t *testing.T) {
	r := startDaemon(t, testConfig(t), nil)
	c := attach(t, r.Socket())
	c.register(testProfile(1))
	c.stageTokens(64, 100)
	staging := c.hello.StagingBytes
	good := func() *wire.AdviseRequest {
		return &wire.AdviseRequest{Profile: c.profile, Record: 1, Tokens: 100, TokenOff: 64}
	}
	for _, row := range []struct {
		name string
		edit func(m *wire.AdviseRequest)
		part string
	}{
		{"no tokens", func(m *wire.AdviseRequest) { m.Tokens = 0 }, "prompt of 0 tokens"},
		{"huge", func(m *wire.AdviseRequest) { m.Tokens = 1<<32 - 1 }, "a prompt of 4294967295 tokens"},
		{"tokens out of staging", func(m *wire.AdviseRequest) { m.TokenOff = staging - 396 }, "is not inside the staging"},
		{"offset beyond all", func(m *wire.AdviseRequest) { m.TokenOff = 1<<64 - 4 }, "is not inside the staging"},
		{"record", func(m *wire.AdviseRequest) { m.Record = 2 }, "record 2"},
		{"profile", func(m *wire.AdviseRequest) { m.Profile = 99 }, "profile 99 is not registered"},
		{"output", func(m *wire.AdviseRequest) { m.Output = 101 }, "101 of 100 tokens generated"},
		{"block", func(m *wire.AdviseRequest) { m.BlockTokens = 1<<32 - 1 }, "block of"},
		{"checkpoints", func(m *wire.AdviseRequest) { m.MaxCheckpoints = 1025 }, "1025 checkpoints, most 1024"},
		{"prefix", func(m *wire.AdviseRequest) { m.PrefixTokens = 101 }, "prefix of 101"},
		{"prefix tier", func(m *wire.AdviseRequest) { m.PrefixTier = 5 }, "prefix in place 5"},
		{"buffer", func(m *wire.AdviseRequest) { m.BufferTokens = 101 }, "buffer of 101"},
		{"seams", func(m *wire.AdviseRequest) { m.SeamTokens = 101 }, "seams of 101"},
		{"cuts out of order", func(m *wire.AdviseRequest) { m.Cuts = []uint32{5, 4} }, "cut at 4 after 5"},
		{"cut beyond", func(m *wire.AdviseRequest) { m.Cuts = []uint32{101} }, "cut at 101"},
		{"segments overlap", func(m *wire.AdviseRequest) {
			m.SegmentBegin, m.SegmentTokens, m.SegmentStatus, m.SegmentTier = []uint32{0, 5}, []uint32{6, 5}, []uint8{0, 0}, []uint8{0, 0}
		}, "segment [5, +5) after 6"},
		{"segment wraps", func(m *wire.AdviseRequest) {
			m.SegmentBegin, m.SegmentTokens, m.SegmentStatus, m.SegmentTier = []uint32{1<<32 - 1}, []uint32{2}, []uint8{0}, []uint8{0}
		}, "segment ["},
		{"status", func(m *wire.AdviseRequest) {
			m.SegmentBegin, m.SegmentTokens, m.SegmentStatus, m.SegmentTier = []uint32{0}, []uint32{2}, []uint8{3}, []uint8{0}
		}, "status 3"},
		{"sample", func(m *wire.AdviseRequest) {
			m.SampleBegin, m.SampleEnd, m.SampleMicros = []uint32{9}, []uint32{9}, []uint32{5}
		}, "prefill of [9, 9)"},
		{"sample without time", func(m *wire.AdviseRequest) {
			m.SampleBegin, m.SampleEnd, m.SampleMicros = []uint32{0}, []uint32{9}, []uint32{0}
		}, "in 0 ms"},
	} {
		t.Run(row.name, func(t *testing.T) {
			c.t = t
			m := good()
			row.edit(m)
			c.refused(wire.OpAdvise, m, wire.Invalid, row.part)
		})
	}
	c.t = t
	m := good()
	m.SegmentBegin = []uint32{1}
	c.refused(wire.OpAdvise, m, wire.Invalid, "segment tokens: 0 rows, want 1")
	h := c.header(wire.OpAdvise)
	h.Tenant = 2 // of the configuration, and not of this connection
	c.sendHeader(&h, good())
	if code, _, _ := c.await(h.Request); code != wire.Denied {
		t.Errorf("another tenant: %v", code)
	}
	var a wire.AdviseReply
	c.call(wire.OpAdvise, good(), &a)
	if s := r.store.Advisor().Stats(); s.Asked != 1 || s.Recorded != 1 {
		t.Errorf("%+v", s)
	}
}

// An advise that looks the prompt up finds what match finds, and advises as if it were told.
func TestAdviseLooksUp(t *testing.T) {
	r := startDaemon(t, testConfig(t), nil)
	_, m := openClient(t, r.Socket(), testProfile(1), connector.Binding{BlockTokens: 16})
	held := newDocument(testProfile(1), nil, 7, 300, profile.RoleMid)
	put(t, m, held)
	const lookup = wire.FeatureLookup | wire.FeaturePrimers | wire.FeatureSplices | wire.FeatureLosses
	c := attachWith(t, r.Socket(), lookup)
	c.register(testProfile(1))
	c.stageTokens(64, 1000)
	missing := [32]byte{1}
	ask := func() *wire.AdviseRequest {
		return &wire.AdviseRequest{
			Profile: c.profile, Tokens: 1000, TokenOff: 64, SeamTokens: 32, SegmentBegin: []uint32{0, 300, 600}, SegmentTokens: []uint32{300, 300, 300},
			SegmentStatus: make([]uint8, 3), SegmentTier: make([]uint8, 3),
			Limit: wire.AdviseLimit{Present: true, MaxLoss: 1},
		}
	}
	one := ask()
	one.Match = wire.AdviseMatch{
		Present: true, Accept: wire.AcceptExact, Positions: []uint32{16}, Prefixes: [][32]byte{{9}},
		Keys: [][32]byte{missing, held.key, missing}, Others: [][32]byte{{}, {}, held.key}, Primed: []uint8{0, 3, 2},
	}
	var at wire.AdviseReply
	c.call(wire.OpAdvise, one, &at)
	var match wire.MatchReply
	c.call(wire.OpMatch, &wire.MatchRequest{
		Profile: c.profile, Accept: wire.AcceptExact, Positions: one.Match.Positions, Prefixes: one.Match.Prefixes, Keys: one.Match.Keys,
		Primers: wire.MatchPrimersQuery{Present: true, Others: one.Match.Others},
	}, &match)
	got := &at.Match
	if !got.Present || !slices.Equal(got.Status, match.Status) || !slices.Equal(got.Tier, match.Tier) || !slices.Equal(got.Reason, match.Reason) ||
		!slices.Equal(got.Tokens, match.Tokens) || !slices.Equal(got.Variants, match.Primers.Variants) || got.PrefixTokens != match.PrefixTokens ||
		!slices.Equal(got.Status, []uint8{wire.StatusMiss, wire.StatusHit, wire.StatusHit}) {
		t.Errorf("%+v\n%+v", got, match)
	}
	two := ask()
	two.SegmentStatus, two.SegmentTier = match.Status, match.Tier
	two.SeamTokens = 2 * (300 - match.Tokens[1])
	two.Limit.Primed = 1 // the third hit is the variant that its key is not: primed, too
	var apart wire.AdviseReply
	c.call(wire.OpAdvise, two, &apart)
	at.Match = wire.AdviseMatched{}
	if !reflect.DeepEqual(at, apart) {
		t.Errorf("%+v\n%+v", at, apart)
	}
	two.Match = wire.AdviseMatch{Present: true, Keys: [][32]byte{missing}, Primed: []uint8{0}}
	c.refused(wire.OpAdvise, two, wire.Invalid, "1 keys for 3 segments")
	two.Match.Keys = [][32]byte{missing, missing, missing}
	c.refused(wire.OpAdvise, two, wire.Invalid, "primed")
	old := attach(t, r.Socket())
	old.register(testProfile(1))
	one.Profile = old.profile
	one.Limit.Present = false
	old.refused(wire.OpAdvise, one, wire.Invalid, "feature lookup")
}

func TestAdviseOverTheSocket(t *testing.T) {
	r := withAdmin(t, nil)
	c, m := openClient(t, r.Socket(), testProfile(1), connector.Binding{BlockTokens: 16})
	ctx := context.Background()
	prompt := func(name uint32, shared, own int) []uint32 {
		var ids []uint32
		for i := range shared {
			ids = append(ids, uint32(i))
		}
		for i := range own {
			ids = append(ids, name<<20+uint32(i))
		}
		return ids
	}
	ask := func(q *connector.AdviseQuery) connector.Advice {
		t.Helper()
		a, err := m.Advise(ctx, q)
		must(t, err)
		return a
	}
	first := ask(&connector.AdviseQuery{Tokens: prompt(1, 2000, 50), Record: true, Samples: []connector.Sample{{End: 2050, Took: 100 * time.Millisecond}}})
	if first.SeenTokens != 0 || first.Way != wire.WayRecompute || len(first.Predicted) != 4 || first.Predicted[1] >= 0 {
		t.Errorf("%+v", first)
	}
	second := ask(&connector.AdviseQuery{Tokens: prompt(2, 2000, 50), Record: true})
	if second.SeenTokens != 2000 || len(second.Checkpoints) == 0 ||
		second.Checkpoints[0] != (connector.CheckpointAdvice{Tokens: 2000, Save: true, Why: wire.WhyBranch, Reason: wire.AdviceSeen, Value: second.Checkpoints[0].Value}) {
		t.Errorf("%+v", second)
	}
	// Longer than what the reader looks at itself.
	long := ask(&connector.AdviseQuery{Tokens: prompt(3, 16<<10, 1000), Record: true})
	again := ask(&connector.AdviseQuery{Tokens: prompt(4, 16<<10, 1000), Found: &connector.Found{PrefixTokens: 2000, PrefixTier: wire.TierDRAM}})
	if long.SeenTokens != 2000 || again.SeenTokens != 16<<10 || again.Way != wire.WayPrefix {
		t.Errorf("%+v\n%+v", long, again)
	}
	eventually(t, "the prefill was learned", func() bool { return r.store.Advisor().Stats().Samples == 1 })
	fingerprint := testProfile(1).Fingerprint()
	r.wantMetrics(t,
		`spliced_advice_total 4`, `spliced_advice_prompts_total{result="remembered"} 3`, `spliced_advice_ways_total{way="prefix"} 1`,
		fmt.Sprintf("spliced_prefill_samples_total{profile=\"%x\"} 1", fingerprint[:6]), `spliced_prompt_tree_scopes 1`,
		`spliced_requests_total{code="ok",op="advise"} 4`,
	)
	c.Close()
	r.atRest()
}

func TestTenantsDoNotHearOfEachOthersPrompts(t *testing.T) {
	r := startDaemon(t, testConfig(t), nil)
	open, guarded := attach(t, r.Socket()), attach(t, r.Socket(), wire.TenantName{Name: "guarded", Token: "open sesame"})
	seen := func(c *rawClient) uint32 {
		c.stageTokens(0, 500)
		var a wire.AdviseReply
		c.call(wire.OpAdvise, &wire.AdviseRequest{Profile: c.profile, Record: 1, Tokens: 500}, &a)
		return a.SeenTokens
	}
	open.register(testProfile(1))
	guarded.register(testProfile(1))
	if n := seen(open); n != 0 {
		t.Errorf("%d tokens seen of the first prompt", n)
	}
	if n := seen(guarded); n != 0 {
		t.Errorf("%d tokens of another tenant's prompt", n)
	}
	if a, b := seen(open), seen(guarded); a != 500 || b != 500 {
		t.Errorf("%d and %d tokens of their own prompts", a, b)
	}
}

func TestAdviceBeginsAnewAfterARestart(t *testing.T) {
	config := testConfig(t)
	r := startDaemon(t, config, nil)
	c, m := openClient(t, config.Socket, testProfile(1), connector.Binding{})
	q := &connector.AdviseQuery{Tokens: make([]uint32, 1000), Record: true}
	for want := range 2 {
		if a, err := m.Advise(context.Background(), q); err != nil || a.SeenTokens != 1000*want {
			t.Fatalf("%+v, %v", a, err)
		}
	}
	r.stop()
	eventually(t, "the client knows", func() bool { return !c.Attached() })
	if _, err := m.Advise(context.Background(), q); !errors.Is(err, connector.ErrUnavailable) {
		t.Errorf("advice without a daemon: %v", err)
	}
	r = startDaemon(t, config, nil)
	eventually(t, "the client is back", func() bool { return m.Ready() == nil })
	if a, err := m.Advise(context.Background(), q); err != nil || a.SeenTokens != 0 {
		t.Errorf("%+v, %v", a, err)
	}
	c.Close()
	r.atRest()
}

// TestAdviceNumbersAreThoseOfTheProtocol holds three packages to one numbering.
func TestAdviceNumbersAreThoseOfTheProtocol(t *testing.T) {
	for number, reason := range map[uint8]cost.Reason{
		wire.AdviceNone: cost.ReasonNone, wire.AdviceSeen: cost.ReasonSeen, wire.AdviceCheap: cost.ReasonCheap, wire.AdviceAsked: cost.ReasonAsked,
		wire.AdviceReturning: cost.ReasonReturning, wire.AdviceShort: cost.ReasonShort, wire.AdviceCold: cost.ReasonCold,
		wire.AdviceThin: cost.ReasonThin, wire.AdviceLarge: cost.ReasonLarge, wire.AdviceNoGain: cost.ReasonNoGain,
	} {
		if number != uint8(reason) {
			t.Errorf("%s is %d on the wire, %d in the cost model", reason.Code(), number, reason)
		}
	}
	if wire.WayRecompute != uint8(cost.WayRecompute) || wire.WayPrefix != uint8(cost.WayPrefix) || wire.WaySplice != uint8(cost.WaySplice) ||
		wire.WayReplay != uint8(cost.WayReplay) || cost.Ways > wire.MaxWays {
		t.Error("ways differ")
	}
}

// withSplices is attach for a client that reports walks.
func withSplices(t *testing.T, r *running) *rawClient {
	c := attachWith(t, r.Socket(), wire.FeatureSplices)
	c.register(testProfile(1))
	return c
}

// A prompt of two segments in memory, 900 of its tokens between them and behind them.
func twoSegments(c *rawClient) *wire.AdviseRequest {
	return &wire.AdviseRequest{
		Profile: c.profile, Tokens: 4900, TokenOff: 64, SeamTokens: 32,
		SegmentBegin: []uint32{0, 2100}, SegmentTokens: []uint32{2000, 2000},
		SegmentStatus: []uint8{uint8(wire.StatusHit), uint8(wire.StatusHit)}, SegmentTier: []uint8{wire.TierDRAM, wire.TierDRAM},
	}
}

// walks reports walks over some rows at so many microseconds a row.
func walks(c *rawClient, micros int) *wire.AdviseRequest {
	m := twoSegments(c)
	m.Measured.Present = true
	for i := range 20 {
		rows := 40 + 10*i
		m.Measured.WalkRows = append(m.Measured.WalkRows, uint32(rows))
		m.Measured.WalkPlaced = append(m.Measured.WalkPlaced, 1600)
		m.Measured.WalkMicros = append(m.Measured.WalkMicros, uint32(micros*(rows+100)))
	}
	return m
}

func TestTheWayFollowsTheWalksThatEnginesReport(t *testing.T) {
	r := startDaemon(t, testConfig(t), nil)
	c := withSplices(t, r)
	c.stageTokens(64, 4900)
	ask := func(m *wire.AdviseRequest) (a wire.AdviseReply) {
		t.Helper()
		c.call(wire.OpAdvise, m, &a)
		return a
	}
	predicted := func(a wire.AdviseReply) float64 { return a.WayMicros[wire.WaySplice-1] }
	guess := ask(twoSegments(c))
	if guess.Way != wire.WaySplice || guess.Splice != (wire.AdviseSplice{Present: true, Segments: 2}) {
		t.Fatalf("by the guess: way %d, %+v", guess.Way, guess.Splice)
	}
	taken := uint64(0)
	for _, row := range []struct {
		name   string
		micros int
		way    uint8
	}{{"slow", 5000, wire.WayRecompute}, {"fast", 20, wire.WaySplice}} {
		for range 5 { // outweighs what came before
			ask(walks(c, row.micros))
			taken += 20
			eventually(t, "the walks were learnt", func() bool { return r.store.Advisor().Stats().Samples == taken })
		}
		a := ask(twoSegments(c))
		if a.Way != row.way {
			t.Errorf("%s walks: way %d by %v", row.name, a.Way, a.WayMicros)
		}
		if slow := row.micros > 1000; slow != (predicted(a) > predicted(guess)) {
			t.Errorf("%s walks: a splice of %.0f µs, guessed %.0f", row.name, predicted(a), predicted(guess))
		}
	}
	c.close()
	r.atRest()
}

// A client that did not agree on walks sends none, and is told of no splice.
func TestWalksComeFromClientsThatAgreedOnThem(t *testing.T) {
	r := startDaemon(t, testConfig(t), nil)
	c := attach(t, r.Socket())
	c.register(testProfile(1))
	c.stageTokens(64, 4900)
	c.refused(wire.OpAdvise, walks(c, 20), wire.Invalid, "not asked for that feature")
	var a wire.AdviseReply
	c.call(wire.OpAdvise, twoSegments(c), &a)
	if a.Way != wire.WaySplice || a.Splice.Present {
		t.Errorf("way %d, %+v", a.Way, a.Splice)
	}
	c.close()
	knows := withSplices(t, r)
	knows.stageTokens(64, 4900)
	m := walks(knows, 20)
	m.Measured.WalkRows[3], m.Measured.WalkPlaced[3] = 0, 0
	knows.refused(wire.OpAdvise, m, wire.Invalid, "walk of [0, 0)")
	knows.close()
	r.atRest()
}
