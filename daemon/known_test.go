package daemon

import (
	"slices"
	"testing"

	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/policy/profile"
)

// A client that has cut nothing is told where held segments stand, whatever became of
// the daemon and of the order of its tenants meanwhile.
func TestSegmentsAreFoundByTheTokensOfAPrompt(t *testing.T) {
	leakCheck(t)
	config := withDisk(t)
	p := testProfile(1)
	first := newDocument(p, nil, 1, 100, profile.RoleFirst)
	one, two := newDocument(p, nil, 2, 64, profile.RoleMid), newDocument(p, nil, 3, 300, profile.RoleMid)
	other, _ := p.MidSpec(64, 4)
	const filler = 6000 // tokens, so that the search is a job
	long := newDocument(p, nil, 4, filler, profile.RoleFirst)
	prompt := slices.Concat(first.tokens, two.tokens, []uint32{1, 2, 3}, one.tokens, long.tokens, two.tokens)
	_, oneInside := other.Interior()
	_, twoInside := two.spec.Interior()
	at := func(tier uint8) []connector.KnownSegment {
		return []connector.KnownSegment{
			{Start: 0, Tokens: 100, Key: first.key, Tier: tier, Interior: 100},
			{Start: 100, Tokens: 300, Key: two.key, Tier: tier, Interior: twoInside},
			{Start: 403, Tokens: 64, Key: one.key, Tier: tier, Interior: oneInside},
			{Start: 467 + filler, Tokens: 300, Key: two.key, Tier: tier, Interior: twoInside},
		}
	}
	ask := func(m *connector.Model, q connector.MatchQuery) []connector.KnownSegment {
		t.Helper()
		var found connector.Found
		q.SeamTokens = 4
		if err := m.Match(t.Context(), &q, &found); err != nil || found.Untried != 0 {
			t.Fatalf("%v, %d untried", err, found.Untried)
		}
		return found.Known
	}
	for _, want := range [][]connector.KnownSegment{at(wire.TierDRAM), at(wire.TierDisk)} {
		r := startDaemon(t, config, nil)
		c, m := openClient(t, r.Socket(), p, connector.Binding{BlockTokens: 16})
		if want[0].Tier == wire.TierDRAM {
			for _, d := range []*document{first, one, two} {
				put(t, m, d)
			}
		}
		if got := ask(m, connector.MatchQuery{Prompt: prompt}); !slices.Equal(got, want) {
			t.Fatalf("got %v, want %v", got, want)
		}
		if got := ask(m, connector.MatchQuery{Prompt: prompt[:460], Begin: 99}); !slices.Equal(got, want[1:2]) {
			t.Fatalf("a part: %v, want %v", got, want[1:2])
		}
		if got := ask(m, connector.MatchQuery{Keys: []profile.SegmentKey{one.key}}); len(got) > 0 {
			t.Fatalf("not asked, told of %v", got)
		}
		for _, known := range want[:3] {
			rows, err := m.Acquire(t.Context(), []profile.SegmentKey{known.Key}, connector.AcquireOptions{})
			if err != nil || rows[0].Err != nil {
				t.Fatalf("acquire %v: %v", known, err)
			}
			rows[0].Lease.Release()
		}
		if want[0].Tier == wire.TierDisk { // in memory as well now, and found once
			if got := ask(m, connector.MatchQuery{Prompt: prompt}); !slices.Equal(got, at(wire.TierDRAM)) {
				t.Fatalf("after they were read: %v", got)
			}
		}
		c.Close()
		r.stop()
		config.Tenants = slices.Clone(config.Tenants)
		slices.Reverse(config.Tenants)
	}
}

// What stands before the end of a prefix that is found need not be found again.
func TestSegmentsAreFoundBehindThePrefix(t *testing.T) {
	r := startDaemon(t, testConfig(t), nil)
	p := testProfile(1)
	c := attachWith(t, r.Socket(), wire.FeaturePrompt|wire.FeatureKnown)
	c.register(p)
	d := newDocument(p, nil, 5, 64, profile.RoleMid)
	c.publish(d)
	root, leaf := c.saveChain(p)
	prefix := newDocument(p, nil, 99, 64, profile.RoleFirst) // whose checkpoints saveChain saves
	prompt := slices.Concat(prefix.tokens[:32], d.tokens, d.tokens)
	m := c.knownRequest(prompt)
	m.Accept, m.Positions, m.Prefixes = wire.AcceptExact, []uint32{32, 64}, [][32]byte{root.hash, leaf.hash}
	var reply wire.MatchReply
	c.call(wire.OpMatch, m, &reply)
	if !reply.Known.Present || reply.PrefixTokens != 64 || !slices.Equal(reply.Known.Starts, []uint32{96}) {
		t.Fatalf("behind %d tokens: %v", reply.PrefixTokens, reply.Known)
	}
	m.Accept = 0
	c.call(wire.OpMatch, m, &reply)
	if !slices.Equal(reply.Known.Starts, []uint32{32, 96}) || reply.Known.Reason != wire.ReasonNone {
		t.Fatalf("without a prefix: %v", reply.Known)
	}
	c.call(wire.OpMatch, &wire.MatchRequest{Profile: c.profile, Keys: [][32]byte{d.key}}, &reply)
	if reply.Known.Present {
		t.Fatal("a client that does not ask is answered")
	}
}

// knownRequest asks about a prompt that it puts into staging.
func (c *rawClient) knownRequest(prompt []uint32) *wire.MatchRequest {
	c.stageIDs(64, prompt)
	return &wire.MatchRequest{
		Profile: c.profile, Prompt: wire.MatchPrompt{Present: true, Tokens: uint32(len(prompt)), TokenOff: 64},
		Known: wire.MatchKnownQuery{Present: true, SeamTokens: 4},
	}
}

func TestKnownRefusesWhatMakesNoSense(t *testing.T) {
	r := startDaemon(t, testConfig(t), nil)
	c := attachWith(t, r.Socket(), wire.FeaturePrompt|wire.FeatureKnown)
	c.register(testProfile(1))
	ids := make([]uint32, 100)
	for _, row := range []struct {
		name string
		edit func(m *wire.MatchRequest)
		part string
	}{
		{"no prompt", func(m *wire.MatchRequest) { m.Prompt = wire.MatchPrompt{} }, "not in staging"},
		{"its length only", func(m *wire.MatchRequest) { m.Prompt.TokenOff = wire.None }, "not in staging"},
		{"no tokens", func(m *wire.MatchRequest) { m.Prompt.Tokens = 0 }, "a prompt of 0 tokens"},
		{"too many", func(m *wire.MatchRequest) { m.Prompt.Tokens = wire.MaxPrompt + 1 }, "a prompt of 1048577 tokens"},
		{"beside staging", func(m *wire.MatchRequest) { m.Prompt.TokenOff = c.hello.StagingBytes - 396 }, "is not inside the staging"},
		{"begin", func(m *wire.MatchRequest) { m.Known.Begin = 101 }, "from token 101 on"},
		{"seams", func(m *wire.MatchRequest) { m.Known.SeamTokens = 1<<32 - 1 }, "seams of 4294967295"},
	} {
		t.Run(row.name, func(t *testing.T) {
			m := c.knownRequest(ids)
			row.edit(m)
			c.refused(wire.OpMatch, m, wire.Invalid, row.part)
		})
	}
	plain := attach(t, r.Socket())
	plain.register(testProfile(1))
	plain.refused(wire.OpMatch, plain.knownRequest(ids), wire.Invalid, "has not asked for that feature")
}
