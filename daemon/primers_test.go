package daemon

import (
	"errors"
	"slices"
	"testing"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/policy/profile"
)

// after returns the variant of a document after a primer, with other bytes.
func (d *document) after(primer profile.PrimerID) *document {
	out := *d
	out.spec.Primer = primer
	out.key = d.p.SegmentKey(nil, out.spec, d.tokens)
	out.bytes = slices.Clone(d.bytes)
	for i := range out.bytes {
		out.bytes[i] ^= 1
	}
	return &out
}

// Both variants of a segment are held beside each other, in memory and on disk, and a client says
// which one it prefers.
func TestSegmentsAreHeldInTwoVariants(t *testing.T) {
	leakCheck(t)
	config := withDisk(t)
	p := testProfile(1)
	primer := profile.NewPrimerID([]uint32{1, 2, 3})
	both, plain := newDocument(p, nil, 2, 64, profile.RoleMid), newDocument(p, nil, 3, 300, profile.RoleMid)
	second, only := both.after(primer), newDocument(p, nil, 4, 80, profile.RoleMid).after(primer)
	none := newDocument(p, nil, 5, 64, profile.RoleMid)
	prompt := slices.Concat([]uint32{9}, both.tokens, plain.tokens, both.tokens, only.tokens)
	for _, place := range []uint8{wire.TierDRAM, wire.TierDisk} {
		r := startDaemon(t, config, nil)
		c, m := openClient(t, r.Socket(), p, connector.Binding{BlockTokens: 16})
		if place == wire.TierDRAM {
			for _, d := range []*document{both, plain, second, only} {
				put(t, m, d)
			}
		}
		var found connector.Found
		ask := func(q connector.MatchQuery) []connector.KnownSegment {
			t.Helper()
			q.SeamTokens = 4
			must(t, m.Match(t.Context(), &q, &found))
			return found.Known
		}
		before := r.counter("hit_segments_variant")
		ask(connector.MatchQuery{
			Keys:   []profile.SegmentKey{both.key, second.key, plain.after(primer).key, only.key, none.key},
			Others: []profile.SegmentKey{second.key, both.key, plain.key, {}, none.after(primer).key},
		})
		for i, want := range []struct{ hit, other bool }{{true, false}, {true, false}, {true, true}, {true, false}, {false, false}} {
			if row := found.Segments[i]; row.Hit() != want.hit || row.Other != want.other || row.Hit() && row.Tier != place {
				t.Errorf("tier %d, row %d: %+v, want hit %v, other variant %v", place, i, row, want.hit, want.other)
			}
		}
		if n := r.counter("hit_segments_variant") - before; n != 1 {
			t.Errorf("%v hits of another variant are counted, want 1", n)
		}
		at := func(start int, d *document) connector.KnownSegment {
			_, interior := d.spec.Interior()
			return connector.KnownSegment{
				Start: start, Tokens: d.spec.Tokens, Primed: d.spec.Primer != profile.PrimerID{}, Key: d.key, Tier: place, Interior: interior,
			}
		}
		for name, row := range map[string]struct {
			q    connector.MatchQuery
			want []connector.KnownSegment
		}{
			"as ever":  {connector.MatchQuery{}, []connector.KnownSegment{at(1, both), at(65, plain), at(365, both)}},
			"strictly": {connector.MatchQuery{Primer: primer, PrimedFrom: 20}, []connector.KnownSegment{at(1, both), at(365, second), at(429, only)}},
			"either":   {connector.MatchQuery{Primer: primer, PrimedFrom: 20, Either: true}, []connector.KnownSegment{at(1, both), at(65, plain), at(365, second), at(429, only)}},
		} {
			row.q.Prompt = prompt
			if got := ask(row.q); !slices.Equal(got, row.want) {
				t.Errorf("%s: got %v, want %v", name, got, row.want)
			}
		}
		listed, err := r.view.Segment(api.Digest(second.key))
		if err != nil || listed.Primer == nil || *listed.Primer != api.Digest(primer) {
			t.Errorf("listed with primer %v, %v", listed.Primer, err)
		}
		if listed, err := r.view.Segment(api.Digest(both.key)); err != nil || listed.Primer != nil {
			t.Errorf("listed with primer %v, %v", listed.Primer, err)
		}
		id := api.Digest(primer)
		for from, want := range map[int]int{0: 56 + 56 + 72, 300: 56 + 292 + 56 + 72, 430: 56 + 292 + 56} {
			q := &api.LocateQuery{
				Profile: p.Identity().Model, TokenIDs: prompt, Tokens: len(prompt), SeamTokens: 4, Primer: &id, PrimedFrom: from, Limit: 1,
				Segments: []api.LocateSegment{{Begin: 1, Tokens: 64}, {Begin: 65, Tokens: 300}, {Begin: 365, Tokens: 64}, {Begin: 429, Tokens: 80}},
			}
			if got, err := r.view.Locate(q); err != nil || got.Nodes[0].Tokens != want {
				t.Errorf("primed from token %d on: %+v, %v, want %d tokens", from, got, err, want)
			}
		}
		for _, d := range []*document{both, second, only} {
			get(t, m, d).Release()
		}
		c.Close()
		r.stop()
	}
}

// A client that has not agreed on primers names none and gets none.
func TestPrimersNeedTheirFeature(t *testing.T) {
	r := startDaemon(t, testConfig(t), nil)
	p := testProfile(1)
	primer := profile.NewPrimerID([]uint32{1})
	d := newDocument(p, nil, 1, 64, profile.RoleMid)
	_, m := openClient(t, r.Socket(), p, connector.Binding{})
	put(t, m, d.after(primer))

	old := attachWith(t, r.Socket(), wire.FeaturePrompt|wire.FeatureKnown)
	old.register(p)
	ids := [][32]byte{primer}
	reserve := old.reserveRequest(d.after(primer), 0)
	old.refused(wire.OpReserve, func() wire.Message {
		q := *reserve
		q.Primers = wire.ReservePrimers{Present: true, IDs: ids}
		return &q
	}(), wire.Invalid, "primers: the connection has not asked")
	if _, code := old.reserve(d.after(primer), 0); code != wire.Invalid {
		t.Errorf("a key after a primer without its name: %v", code)
	}
	match := &wire.MatchRequest{Profile: old.profile, Keys: [][32]byte{d.key}, Primers: wire.MatchPrimersQuery{Present: true, Others: ids}}
	old.refused(wire.OpMatch, match, wire.Invalid, "primers: the connection has not asked")
	plan := &wire.PlanRequest{Profile: old.profile, Keys: reserve.Keys, Roles: reserve.Roles, Heads: reserve.Heads, Tails: reserve.Tails, Tokens: reserve.Tokens}
	plan.Primers = wire.PlanPrimers{Present: true, IDs: ids}
	old.refused(wire.OpPlan, plan, wire.Invalid, "primers: the connection has not asked")
	old.refused(wire.OpWatch, &wire.WatchRequest{Profile: old.profile, Jobs: 1, Primers: wire.WatchPrimersQuery{Present: true, IDs: ids}},
		wire.Invalid, "primers: the connection has not asked")

	ask := old.knownRequest(d.tokens)
	ask.Prompt.Tokens, ask.Keys = 64, [][32]byte{d.key}
	old.stageIDs(64, append([]uint32{7}, d.tokens...)[:64])
	var reply wire.MatchReply
	old.call(wire.OpMatch, ask, &reply)
	if reply.Primers.Present || len(reply.Known.Starts) > 0 || reply.Status[0] != wire.StatusMiss {
		t.Errorf("a client that knows no primers is told %+v", reply)
	}
	put(t, m, d) // beside the other variant
}

// Nonsense is refused by name.
func TestPrimersThatMakeNoSense(t *testing.T) {
	r := startDaemon(t, testConfig(t), nil)
	c := attachWith(t, r.Socket(), wire.FeaturePrompt|wire.FeatureKnown|wire.FeaturePrimers)
	p := testProfile(1)
	c.register(p)
	first := newDocument(p, nil, 1, 64, profile.RoleFirst)
	reserve := c.reserveRequest(first, 0)
	reserve.Primers = wire.ReservePrimers{Present: true, IDs: [][32]byte{{1}}}
	var reply wire.ReserveReply
	if c.call(wire.OpReserve, reserve, &reply); wire.Code(reply.Codes[0]) != wire.Invalid {
		t.Errorf("a leading segment after a primer: %v", wire.Code(reply.Codes[0]))
	}
	match := &wire.MatchRequest{Profile: c.profile, Keys: make([][32]byte, 2), Primers: wire.MatchPrimersQuery{Present: true, Others: make([][32]byte, 1)}}
	c.refused(wire.OpMatch, match, wire.Invalid, "1 other variants of 2 keys")
	ask := c.knownRequest(make([]uint32, 100))
	ask.Primers = wire.MatchPrimersQuery{Present: true, Either: 2}
	c.refused(wire.OpMatch, ask, wire.Invalid, "either 2")
}

// Engines of other nodes compute segments after a primer if they have it, and say so.
func TestSegmentsAfterAPrimerAreComputedByEnginesThatHaveIt(t *testing.T) {
	s := sides(t, 1, nil, "a", "b", "c")
	docs := documents(4)
	for i := range docs[:3] {
		docs[i] = docs[i].after(profile.PrimerID{8})
	}
	b := s[1].works(t, docs, nil)
	s[2].works(t, documents(1), nil) // without the primer
	s[0].known(t, s[1:])
	p := plan(t, s[0], askFor(docs))
	if p.ID == 0 || len(p.Own) != 2 {
		t.Fatalf("%+v", p)
	}
	for i, x := range s[0].combine(t, docs, p) {
		if (x == wire.ProgressCommitted) != (p.Rows[i].Worker != 0) {
			t.Errorf("row %d of worker %d: progress %d", i, p.Rows[i].Worker, x)
		}
	}
	b.done(t, 2)
	if got := s[2].counter("parallel_jobs_taken"); got != 0 {
		t.Errorf("an engine without the primer was given %v jobs", got)
	}
	s[0].unleased(t)
	var many []*document
	for i := range wire.MaxPrimers + 1 {
		many = append(many, newDocument(testProfile(1), nil, uint64(i), 64, profile.RoleMid).after(profile.PrimerID{byte(1 + i)}))
	}
	if _, err := s[0].model.PlanSegments(t.Context(), askFor(many)); !errors.Is(err, connector.ErrInvalid) {
		t.Errorf("a plan with %d primers: %v", len(many), err)
	}
}
