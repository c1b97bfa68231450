package daemon

import (
	"reflect"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/policy/profile"
)

// served tells of a request and answers its number.
func (c *rawClient) served(m wire.ServedRequest) uint64 {
	c.t.Helper()
	m.Profile = c.profile
	var r wire.ServedReply
	c.call(wire.OpServed, &m, &r)
	return r.Number
}

// splicedRequest is a prompt of 100 tokens: 10 of the engine's, 20 of a checkpoint, 32 of
// the first segment's 40, 8 beside them, 20 of a segment that is missed and 10 of a question.
func splicedRequest() wire.ServedRequest {
	return wire.ServedRequest{
		Way: wire.WaySplice, Tokens: 100, Engine: 10, Prefix: 20, PrefixTier: wire.TierDRAM, PrefixReason: wire.ReasonNone,
		ReadBytes: 4096, MatchMicros: 300, WaitMicros: 2000, FirstMicros: 40_000, WayMicros: []float64{90e3, 80e3, 50e3},
		Begins: []uint32{30, 70}, Counts: []uint32{40, 20}, At: []uint32{34, 0}, Reused: []uint32{32, 0},
		Tiers: []uint8{wire.TierDisk, wire.TierNone}, Reasons: []uint8{wire.ReasonNone, wire.ReasonEvicted}, Keys: [][32]byte{{1}, {2}},
		Request: "cmpl\x1b[2J7", Trace: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
	}
}

// lookedUp is splicedRequest of a prompt whose prefix and first segment are there, and were
// looked up by this connection.
func (c *rawClient) lookedUp() wire.ServedRequest {
	c.t.Helper()
	p := testProfile(1)
	doc, prefix := newDocument(p, c.hello.Tenants[0].Salt, 77, 40, profile.RoleMid), [32]byte{77}
	var found wire.MatchReply
	for {
		q := &wire.MatchRequest{Profile: c.profile, Accept: wire.AcceptExact, Positions: []uint32{30}, Prefixes: [][32]byte{prefix}, Keys: [][32]byte{doc.key}}
		c.call(wire.OpMatch, q, &found)
		if found.PrefixTokens == 30 && found.Status[0] == wire.StatusHit {
			break
		}
		c.publish(doc)
		c.keep(p, prefix, 30, wire.AcceptExact)
	}
	m := splicedRequest()
	m.Keys[0] = doc.key
	return m
}

func same(t *testing.T, want, got any) {
	t.Helper()
	if !reflect.DeepEqual(want, got) {
		t.Fatalf("got %+v, want %+v", got, want)
	}
}

func TestServedRequestsAddUp(t *testing.T) {
	d := startDaemon(t, testConfig(t), nil)
	p := testProfile(1)
	c, other := attach(t, d.Socket()), attach(t, d.Socket(), guarded)
	c.register(p)
	other.register(p)
	c.served(c.lookedUp())
	m := c.lookedUp()
	number := c.served(m)
	other.served(wire.ServedRequest{Way: wire.WayRecompute, Tokens: 7, PrefixReason: wire.ReasonUnknown})

	got, err := d.view.Request(number)
	must(t, err)
	seam := func(begin, end int) api.Span {
		return api.Span{Begin: begin, End: end, From: api.FromComputed, Tier: "disk", Reason: "seam", Key: (*api.Digest)(&m.Keys[0])}
	}
	want := []api.Span{
		{Begin: 0, End: 10, From: api.FromEngine},
		{Begin: 10, End: 30, From: api.FromPrefix, Tier: "dram"},
		seam(30, 34),
		{Begin: 34, End: 66, From: api.FromSegment, Tier: "disk", Key: (*api.Digest)(&m.Keys[0])},
		seam(66, 70),
		{Begin: 70, End: 90, From: api.FromComputed, Reason: "evicted", Key: &api.Digest{2}},
		{Begin: 90, End: 100, From: api.FromComputed, Reason: "new"},
	}
	same(t, want, got.Spans)
	if got.Name != "cmpl?[2J7" || got.Trace != "4bf92f3577b34da6a3ce929d0e0e4736" || got.TTFTMillis != 40 || got.WaitMillis != 2 || len(got.Ways) != 3 {
		t.Fatalf("%+v", got)
	}
	prefill, _ := d.store.Prefill(1)
	if saved := prefill.Marginal(10, 100) - prefill.Marginal(62, 100) - 2; got.SavedMillis != saved || got.SavedBy != api.SavedByGuess {
		t.Fatalf("saved %v by %s, want %v by a guess", got.SavedMillis, got.SavedBy, saved)
	}
	events := d.eventsOf(api.EventRequest)
	if len(events) != 3 || events[1].Why != api.WaySplice || events[1].Tokens != 100 || events[1].Bytes != 4096 || events[2].Tenant != "guarded" {
		t.Fatalf("%+v", events)
	}
	listed := d.view.Requests(api.RequestQuery{Limit: 2})
	if len(listed) != 2 || listed[0].Tenant != "guarded" || listed[1].ID != number || listed[1].Spans != nil {
		t.Fatalf("%+v", listed)
	}
	if only := d.view.Requests(api.RequestQuery{Limit: 10, Way: api.WaySplice, Tenant: "default"}); len(only) != 2 {
		t.Fatalf("%+v", only)
	}

	rows := d.view.Usage()
	if len(rows) != 2 {
		t.Fatalf("%+v", rows)
	}
	u := rows[0]
	same(t, map[string]uint64{"seam": 16, "evicted": 40, "new": 20}, u.Missed)
	if u.Requests != 2 || u.Prompt != 200 || u.Engine != 20 || u.Prefix != 40 || u.Reused != 64 || u.Computed != 76 || u.Seam != 16 || u.Ways[api.WaySplice] != 2 {
		t.Fatalf("%+v", u)
	}
	if ratio := u.HitRatio(); ratio != 104.0/180 {
		t.Fatalf("hit ratio %v", ratio)
	}
	same(t, map[string]uint64{"unknown": 7}, rows[1].Missed)
}

func TestServedIsInTheMetrics(t *testing.T) {
	d := startDaemon(t, testConfig(t), nil)
	c := attach(t, d.Socket())
	c.register(testProfile(1))
	c.served(c.lookedUp())
	c.served(splicedRequest()) // of a prompt that it has not looked up
	c.match([32]byte{1})
	slow := wire.ServedRequest{Way: wire.WayRecompute, Tokens: 7, PrefixReason: wire.ReasonUnknown, WaitMicros: 5e6}
	c.served(slow)
	list, err := d.registry.Gather()
	must(t, err)
	got := map[string]float64{}
	for _, f := range list {
		for _, m := range f.Metric {
			name := f.GetName()
			for _, l := range m.Label {
				if l.GetName() == "from" || l.GetName() == "reason" || l.GetName() == "way" {
					name += " " + l.GetValue()
				}
			}
			got[name] = m.GetCounter().GetValue()
			if h := m.GetHistogram(); h != nil {
				got[name] = float64(h.GetSampleCount())
			}
		}
	}
	for name, want := range map[string]float64{
		"spliced_served_tokens_total engine": 10, "spliced_served_tokens_total prefix": 20, "spliced_served_tokens_total segment": 32,
		"spliced_served_tokens_total computed": 45, "spliced_served_missed_tokens_total seam": 8, "spliced_served_missed_tokens_total evicted": 20,
		"spliced_served_missed_tokens_total unknown": 7, "spliced_served_missed_tokens_total declined": 0,
		"spliced_served_requests_total splice": 1, "spliced_served_requests_total recompute": 1, "spliced_served_lost_seconds_total": 5,
		"spliced_served_unverified_total": 1, "spliced_served_unverified_tokens_total": 100,
		"spliced_served_ttft_seconds": 1, // the other did not tell
	} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s is %v (told: %v), want %v", name, v, ok, want)
		}
	}
}

func TestServedThatCannotBeIsRefused(t *testing.T) {
	d := startDaemon(t, testConfig(t), nil)
	c := attach(t, d.Socket())
	c.register(testProfile(1))
	for _, one := range []struct {
		text   string
		change func(*wire.ServedRequest)
	}{
		{"way 0", func(m *wire.ServedRequest) { m.Way = 0 }},
		{"way 5", func(m *wire.ServedRequest) { m.Way = wire.WayReplay + 1 }},
		{"a prompt of 0 tokens", func(m *wire.ServedRequest) { m.Tokens = 0 }},
		{"a prompt of", func(m *wire.ServedRequest) { m.Tokens = profile.MaxTokens + 1 }},
		{"tokens of the engine's", func(m *wire.ServedRequest) { m.Engine = 1<<32 - 1 }},
		{"row 1: tokens [70, 101)", func(m *wire.ServedRequest) { m.Counts[1] = 31 }},
		{"after token 70", func(m *wire.ServedRequest) { m.Begins[1] = 69 }},
		{"row 1: tokens [70, 70)", func(m *wire.ServedRequest) { m.Counts[1] = 0 }},
		{"32 tokens from 29 on", func(m *wire.ServedRequest) { m.At[0] = 29 }},
		{"after a prefix of 35", func(m *wire.ServedRequest) { m.Prefix = 25 }},
		{"37 tokens from 34 on", func(m *wire.ServedRequest) { m.Reused[0] = 37 }},
		{"4294967295 tokens from 34 on", func(m *wire.ServedRequest) { m.Reused[0] = 1<<32 - 1 }},
		{"row 0: tier 9", func(m *wire.ServedRequest) { m.Tiers[0] = 9 }},
		{"row 0: tier 3, reason 9", func(m *wire.ServedRequest) { m.Reasons[0] = 9 }},
		{"prefix in tier 2, reason 9", func(m *wire.ServedRequest) { m.PrefixReason = 9 }},
		{"predicted to take -1", func(m *wire.ServedRequest) { m.WayMicros[0] = -1 }},
		{`traceparent "00-xyz"`, func(m *wire.ServedRequest) { m.Trace = "00-xyz" }},
		{"traceparent", func(m *wire.ServedRequest) { m.Trace = "00-00000000000000000000000000000000-00f067aa0ba902b7-01" }},
		{"profile 99", func(m *wire.ServedRequest) { m.Profile = 99 }},
	} {
		m := splicedRequest()
		m.Profile = c.profile
		one.change(&m)
		c.refused(wire.OpServed, &m, wire.Invalid, one.text)
	}
	if rows := d.view.Usage(); len(rows) != 0 {
		t.Fatalf("counted %+v", rows)
	}
}

func TestSumsOfServedSurviveRestarts(t *testing.T) {
	leakCheck(t)
	config := withDisk(t)
	want := api.Usage{}
	for range 3 {
		d := startDaemon(t, config, nil)
		c := attach(t, d.Socket())
		c.register(testProfile(1))
		c.served(c.lookedUp())
		eventually(t, "the sums of earlier starts", func() bool {
			rows := d.view.Usage()
			return len(rows) == 1 && rows[0].Requests == want.Requests+1
		})
		want = d.view.Usage()[0]
		c.close()
		d.stop()
	}
	if want.Requests != 3 || want.Prompt != 300 || want.Missed["evicted"] != 60 || want.Profile == "" {
		t.Fatalf("%+v", want)
	}
}

func TestHistoryHasWhatWasServed(t *testing.T) {
	d := startDaemon(t, testConfig(t), nil)
	c := attach(t, d.Socket())
	c.register(testProfile(1))
	before := d.sample()
	c.served(c.lookedUp())
	after := d.sample()
	if after.Requests-before.Requests != 1 || after.Prompt-before.Prompt != 100 || after.At.Before(before.At) || after.At.Sub(before.At) > time.Minute {
		t.Fatalf("before %+v, after %+v", before, after)
	}
	o := d.view.Overview("")
	if o.Usage.Requests != 1 || o.History.StepSeconds != 10 || len(o.History.Series["prompt_tokens"]) != len(o.History.At) || !o.Status.Ready {
		t.Fatalf("%+v", o)
	}
}

// What a connection says it reused without having been told that it is there is in no sums.
func TestReportsAreCheckedAgainstWhatTheirConnectionFound(t *testing.T) {
	d := startDaemon(t, testConfig(t), nil)
	c, other := attach(t, d.Socket()), attach(t, d.Socket())
	p := testProfile(1)
	c.register(p)
	other.register(p)
	honest := c.lookedUp()
	doc := newDocument(p, c.hello.Tenants[0].Salt, 77, 40, profile.RoleMid)
	unverified := func(from *rawClient, m wire.ServedRequest) bool {
		t.Helper()
		r, err := d.view.Request(from.served(m))
		must(t, err)
		return r.Unverified
	}
	change := func(f func(*wire.ServedRequest)) wire.ServedRequest {
		m := splicedRequest()
		m.Keys = [][32]byte{honest.Keys[0], {2}}
		f(&m)
		return m
	}
	noPrefix := func(m *wire.ServedRequest) { m.Engine, m.Prefix, m.WaitMicros = 0, 0, 0 }
	for name, m := range map[string]wire.ServedRequest{
		"what another connection found":  change(func(*wire.ServedRequest) {}),
		"a segment that nobody has":      change(func(m *wire.ServedRequest) { noPrefix(m); m.Keys[0] = [32]byte{9} }),
		"a prefix that nobody has":       change(func(m *wire.ServedRequest) { m.Reused[0] = 0 }),
		"waits of a prompt not asked of": {Way: wire.WayRecompute, Tokens: 7, PrefixReason: wire.ReasonUnknown, WaitMicros: 1e9},
	} {
		if !unverified(other, m) {
			t.Errorf("%s is verified", name)
		}
	}
	if unverified(c, honest) {
		t.Error("what was found is not verified")
	}
	if !unverified(c, honest) {
		t.Error("one lookup is reported twice")
	}
	// A lease verifies as a match does, and both of one request count once.
	lease := func() { c.release(c.lease(doc)) }
	lease()
	c.match(doc.key)
	once := change(noPrefix)
	once.At[0], once.Begins[0] = 34, 30
	if unverified(c, once) || !unverified(c, once) {
		t.Error("a match and a lease verify another number of reports than one")
	}
	c.refused(wire.OpMatch, &wire.MatchRequest{
		Profile: c.profile, Keys: [][32]byte{doc.key}, Prompt: wire.MatchPrompt{Present: true, Tokens: 8}, Known: wire.MatchKnownQuery{Present: true},
	}, wire.Invalid, "has not asked for that feature")
	if !unverified(c, once) {
		t.Error("what a refused lookup found is verified")
	}
	lease()
	more := change(func(m *wire.ServedRequest) { noPrefix(m); m.At[0], m.Reused[0] = 30, 33 })
	if !unverified(c, more) {
		t.Error("more tokens than the segment has are verified")
	}
	if hits := d.view.Usage()[0]; hits.Requests != 2 || hits.Prefix != 20 || hits.Reused != 64 || hits.Unverified != 8 || hits.UnverifiedTokens != 707 {
		t.Errorf("%+v", hits)
	}
	if computed := (wire.ServedRequest{Way: wire.WayRecompute, Tokens: 7, PrefixReason: wire.ReasonUnknown}); unverified(other, computed) {
		t.Error("what says that it reused nothing needs no lookup")
	}
}

// Of nobody's reports the list of the last requests is full.
func TestReportsDoNotPushOthersOutOfTheList(t *testing.T) {
	d := startDaemon(t, testConfig(t), nil)
	c, other := attach(t, d.Socket()), attach(t, d.Socket(), guarded)
	p := testProfile(1)
	c.register(p)
	other.register(p)
	honest, theirs := c.served(c.lookedUp()), other.served(wire.ServedRequest{Way: wire.WayRecompute, Tokens: 7})
	for range 60 {
		c.served(splicedRequest())
	}
	listed := map[uint64]bool{}
	for _, r := range d.view.Requests(api.RequestQuery{Limit: 40}) {
		listed[r.ID] = true
	}
	if len(listed) != 40 || !listed[honest] || !listed[theirs] {
		t.Errorf("%d requests, the honest one among them: %v, the other tenant's: %v", len(listed), listed[honest], listed[theirs])
	}
}
