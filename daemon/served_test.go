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

func same(t *testing.T, want, got any) {
	t.Helper()
	if !reflect.DeepEqual(want, got) {
		t.Fatalf("got %+v, want %+v", got, want)
	}
}

func TestServedRequestsAddUp(t *testing.T) {
	leakCheck(t)
	d := startDaemon(t, testConfig(t), nil)
	p := testProfile(1)
	c, other := attach(t, d.Socket()), attach(t, d.Socket(), guarded)
	c.register(p)
	other.register(p)
	m := splicedRequest()
	c.served(m)
	number := c.served(m)
	other.served(wire.ServedRequest{Way: wire.WayRecompute, Tokens: 7, PrefixReason: wire.ReasonUnknown})

	got, err := d.view.Request(number)
	if err != nil {
		t.Fatal(err)
	}
	seam := func(begin, end int) api.Span {
		return api.Span{Begin: begin, End: end, From: api.FromComputed, Tier: "disk", Reason: "seam", Key: &api.Digest{1}}
	}
	want := []api.Span{
		{Begin: 0, End: 10, From: api.FromEngine},
		{Begin: 10, End: 30, From: api.FromPrefix, Tier: "dram"},
		seam(30, 34),
		{Begin: 34, End: 66, From: api.FromSegment, Tier: "disk", Key: &api.Digest{1}},
		seam(66, 70),
		{Begin: 70, End: 90, From: api.FromComputed, Reason: "evicted", Key: &api.Digest{2}},
		{Begin: 90, End: 100, From: api.FromComputed, Reason: "new"},
	}
	same(t, want, got.Spans)
	if got.Name != "cmpl?[2J7" || got.Trace != "4bf92f3577b34da6a3ce929d0e0e4736" || got.TTFTMillis != 40 || got.WaitMillis != 2 || len(got.Ways) != 3 {
		t.Fatalf("%+v", got)
	}
	prefill := d.store.Prefill(1)
	if saved := prefill.Marginal(10, 100) - prefill.Marginal(62, 100) - 2; got.SavedMillis != saved {
		t.Fatalf("saved %v, want %v", got.SavedMillis, saved)
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

func TestServedThatCannotBeIsRefused(t *testing.T) {
	leakCheck(t)
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
		{"behind token 70", func(m *wire.ServedRequest) { m.Begins[1] = 69 }},
		{"row 1: tokens [70, 70)", func(m *wire.ServedRequest) { m.Counts[1] = 0 }},
		{"32 tokens from 29 on", func(m *wire.ServedRequest) { m.At[0] = 29 }},
		{"behind a prefix of 35", func(m *wire.ServedRequest) { m.Prefix = 25 }},
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
		c.served(splicedRequest())
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
	leakCheck(t)
	d := startDaemon(t, testConfig(t), nil)
	c := attach(t, d.Socket())
	c.register(testProfile(1))
	before := d.sample()
	c.served(splicedRequest())
	after := d.sample()
	if after.Requests-before.Requests != 1 || after.Prompt-before.Prompt != 100 || after.At.Before(before.At) || after.At.Sub(before.At) > time.Minute {
		t.Fatalf("before %+v, after %+v", before, after)
	}
	o := d.view.Overview("")
	if o.Usage.Requests != 1 || o.History.StepSeconds != 10 || len(o.History.Series["prompt_tokens"]) != len(o.History.At) || !o.Status.Ready {
		t.Fatalf("%+v", o)
	}
}
