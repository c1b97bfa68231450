package view

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/valyala/fasthttp"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/daemon/settings"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/policy/profile/profiletest"
	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/costs"
	"github.com/spliced-kv/spliced/tiering/peer"
	"github.com/spliced-kv/spliced/tiering/peer/index"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// among is a node with a store and an index of what others hold, and no network.
type among struct {
	*View
	p      *profile.Profile
	owns   []*index.Own
	roster *roster
}

func newAmong(t testing.TB, others int) *among {
	t.Helper()
	device, err := gpuipc.Open(gpuipc.Options{Host: gpuipc.HostOptions{Workers: 1}})
	must(t, err)
	tenants := []tiering.Tenant{{ID: 1, Name: settings.DefaultTenant}}
	store, err := tiering.Open(tiering.Config{
		Device: device, PublicBytes: 1 << 20, PrivateBytes: 1 << 20, PageBytes: 4096, Tenants: tenants, Eviction: policy.NewLRU,
		Cost: costs.Priors{Prefill: cost.Prefill{Fixed: 10, PerToken: 1}},
	})
	must(t, err)
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
		if err := device.Close(); err != nil {
			t.Error(err)
		}
	})
	a := &among{p: profiletest.New(profiletest.TwoLayers(1)), roster: &roster{at: time.Now().Add(24 * time.Hour), self: "n0", peer: "10.0.0.0:7947", numbers: make([]int32, index.MaxNodes)}}
	if _, err := store.AddProfile(a.p); err != nil {
		t.Fatal(err)
	}
	names, err := peer.NewNames(make([]byte, 32), []peer.Tenant{{ID: 1, Name: settings.DefaultTenant}})
	must(t, err)
	for i := range a.roster.numbers {
		a.roster.numbers[i] = -1
	}
	for i := range others {
		a.owns = append(a.owns, index.NewOwn(uint64(i+1)))
		a.roster.numbers[i] = int32(i)
		a.roster.others = append(a.roster.others, holder{name: fmt.Sprintf("n%d", i+1), number: index.Node(i), prefix: -1})
	}
	m := &Members{Names: names, Index: index.New(index.Config{})}
	m.recent.Store(a.roster)
	a.View = New(Options{Config: &settings.Config{Node: "n0"}, Store: store, Tenants: tenants, Members: m})
	return a
}

// holds has another node hold something.
func (a *among) holds(node int, name tier.Name) {
	tag, ok := a.o.Members.Names.Tag(&tier.Want{Name: name, Fingerprint: a.p.Fingerprint(), Tenant: 1})
	if !ok {
		panic("no tag")
	}
	a.owns[node-1].Add(tag)
}

func (a *among) follow(t testing.TB) {
	t.Helper()
	x := a.o.Members.Index
	for i, own := range a.owns {
		for more := true; more; {
			var err error
			if more, err = x.Apply(index.Node(i), own.Delta(nil, x.Position(index.Node(i)))); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func (a *among) ask(t testing.TB, q api.LocateQuery) map[string]api.LocatedNode {
	t.Helper()
	q.Profile = a.p.Identity().Model
	must(t, q.Validate())
	got, err := a.Locate(&q)
	must(t, err)
	nodes := map[string]api.LocatedNode{"best": {Node: got.Best}}
	for _, n := range got.Nodes {
		nodes[n.Node] = n
	}
	return nodes
}

func keyNumber(i int) *api.Digest { return &api.Digest{0: byte(i >> 8), 1: byte(i), 2: 7} }

// A prompt of 1,000 tokens: a prefix of 200 or 400, and two segments behind.
func thousand() api.LocateQuery {
	return api.LocateQuery{
		Tokens:   1000,
		Prefixes: []api.LocatePrefix{{Hash: *keyNumber(200), Tokens: 200}, {Hash: *keyNumber(400), Tokens: 400}},
		Segments: []api.LocateSegment{{Begin: 400, Tokens: 300, Key: keyNumber(1), Excluded: 16}, {Begin: 700, Tokens: 200, Key: keyNumber(2), Excluded: 16}},
	}
}

func checkpoint(kind tier.CheckpointKind, tokens int) tier.Name {
	return tier.Name{Kind: kind, Key: *keyNumber(tokens)}
}

func TestNodesAreComparedByWhatTheyHold(t *testing.T) {
	a := newAmong(t, 4)
	a.holds(1, checkpoint(tier.Exact, 200))
	a.holds(1, checkpoint(tier.Spliced, 400))
	a.holds(2, checkpoint(tier.Exact, 200))
	a.holds(2, tier.Name{Key: *keyNumber(1)})
	a.holds(3, tier.Name{Key: *keyNumber(1)})
	a.holds(3, tier.Name{Key: *keyNumber(2)})
	a.follow(t)
	nodes := a.ask(t, thousand())
	for name, want := range map[string]api.LocatedNode{
		"n0": {PeerTokens: 400 + 284 + 184}, "n1": {PrefixTokens: 400, PeerTokens: 284 + 184}, "n2": {PrefixTokens: 200, SegmentTokens: 284, PeerTokens: 200 + 184},
		"n3": {SegmentTokens: 284 + 184, PeerTokens: 400}, "n4": {PeerTokens: 400 + 284 + 184},
	} {
		n := nodes[name]
		if n.PrefixTokens != want.PrefixTokens || n.SegmentTokens != want.SegmentTokens || n.Tokens != want.PrefixTokens+want.SegmentTokens || n.PeerTokens != want.PeerTokens {
			t.Errorf("%s: %+v, want %+v", name, n, want)
		}
		// 868 tokens but for the claim of a splice, and for seams, whose rows are walked.
		near := n.SavedWithPeersMillis >= 868-64-32 && n.SavedWithPeersMillis <= 868-64
		// Without a prefix, n3 would walk 400 rows to get to its segments.
		if saves := n.PrefixTokens > 0; n.Share != float64(n.Tokens)/1000 || !near || saves != (n.SavedMillis > 0) {
			t.Errorf("%s: %+v", name, n)
		}
	}
	if nodes["best"].Node != "n1" && nodes["best"].Node != "n3" { // by what has to be fetched
		t.Errorf("the best is %s", nodes["best"].Node)
	}

	exact := thousand()
	exact.Accept = "exact"
	nodes = a.ask(t, exact)
	if n1, n3 := nodes["n1"], nodes["n3"]; n1.PrefixTokens != 200 || n1.SegmentTokens != 0 || n3.Tokens != 0 || n3.PeerTokens != 200 {
		t.Errorf("exact only: %+v, %+v", n1, n3)
	}
}

// The speed of who would send decides whether something is worth being fetched; who is
// left alone sends nothing.
func TestFetchesAreJudgedByTheirSource(t *testing.T) {
	a := newAmong(t, 3)
	a.holds(1, tier.Name{Key: *keyNumber(1)})
	a.follow(t)
	a.roster.others[0].link = cost.Link{Fixed: 400, PerByte: 1e-9} // more than computing 284 tokens takes
	leading := api.LocateQuery{Tokens: 1000, Segments: []api.LocateSegment{{Tokens: 300, Key: keyNumber(1), Excluded: 16}}}
	if n := a.ask(t, leading)["n2"]; n.PeerTokens != 0 || n.SavedWithPeersMillis != 0 {
		t.Errorf("from a slow one: %+v", n)
	}
	a.holds(3, tier.Name{Key: *keyNumber(1)})
	a.follow(t)
	a.roster.others[2].link = cost.Link{Fixed: 100, PerByte: 1e-9}
	if n := a.ask(t, leading)["n2"]; n.PeerTokens != 284 || n.SavedWithPeersMillis < 100 || n.SavedWithPeersMillis > 284-100-64 {
		t.Errorf("from the faster of two: %+v", n)
	}
	a.roster.others[2].shut = true
	if n := a.ask(t, leading)["n2"]; n.PeerTokens != 0 {
		t.Errorf("from one that is left alone: %+v", n)
	}
}

func TestLocateListsTheBestAndItself(t *testing.T) {
	a := newAmong(t, 40)
	for i := 1; i <= 40; i++ {
		a.holds(i, tier.Name{Key: *keyNumber(1)})
	}
	a.follow(t)
	q := thousand()
	q.Limit = 5
	nodes := a.ask(t, q)
	if _, ok := nodes["n0"]; !ok || len(nodes) != 6 || nodes["best"].Node == "n0" {
		t.Errorf("%v", nodes)
	}
}

func TestBlockEndsAreBounded(t *testing.T) {
	for _, r := range []struct{ tokens, block int }{{0, 16}, {15, 16}, {16, 16}, {16 * api.MaxLocatePrefixes, 16}, {16*api.MaxLocatePrefixes + 16, 16}, {api.MaxLocateTokens, 1}, {api.MaxLocateTokens, 16}} {
		ends := blockEnds(r.tokens, r.block)
		last := 0
		for _, end := range ends {
			if end <= last || end > r.tokens || end%r.block != 0 {
				t.Fatalf("%+v: %d behind %d", r, end, last)
			}
			last = end
		}
		if want := min(r.tokens/r.block, api.MaxLocatePrefixes); len(ends) != want || want > 0 && last != r.tokens/r.block*r.block {
			t.Errorf("%+v: %d ends up to %d", r, len(ends), last)
		}
	}
}

// located is a node of 16 and a question of 32 segments, of which each node holds a third.
func located(b *testing.B) (*among, api.LocateQuery) {
	a := newAmong(b, 15)
	rng := rand.New(rand.NewPCG(1, 1))
	q := api.LocateQuery{Profile: a.p.Identity().Model, Tokens: 32 * 512}
	for i := range 32 {
		q.Segments = append(q.Segments, api.LocateSegment{Begin: 512 * i, Tokens: 512, Key: keyNumber(i), Excluded: 16})
		for node := 1; node <= 15; node++ {
			if rng.IntN(3) == 0 {
				a.holds(node, tier.Name{Key: *keyNumber(i)})
			}
		}
	}
	for _, own := range a.owns {
		for range 100_000 {
			own.Add(rng.Uint64())
		}
	}
	a.follow(b)
	return a, q
}

func BenchmarkLocate(b *testing.B) {
	a, q := located(b)
	b.Run("keys=32/nodes=16", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			asked := q
			must(b, asked.Validate())
			if _, err := a.Locate(&asked); err != nil {
				b.Fatal(err)
			}
		}
	})
	byTokens := api.LocateQuery{Profile: q.Profile, BlockTokens: 16, SeamTokens: 8, TokenIDs: make([]uint32, q.Tokens)}
	for i := range byTokens.TokenIDs {
		byTokens.TokenIDs[i] = uint32(i)
	}
	for i := range 32 {
		byTokens.Segments = append(byTokens.Segments, api.LocateSegment{Begin: 512 * i, Tokens: 512})
	}
	b.Run("tokens=16384/nodes=16", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			asked := byTokens
			must(b, asked.Validate())
			if _, err := a.Locate(&asked); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkLocateOverTCP is what routers get: one question after another on each of
// four connections for each processor.
func BenchmarkLocateOverTCP(b *testing.B) {
	const token = "0123456789abcdef"
	a, q := located(b)
	start := NewStart(api.Status{}, func() string { return "" })
	s, err := api.New(api.Options{Shown: api.Shown{Node: start, Catalogue: a.View, Canaries: start, Control: start}, Metrics: prometheus.NewRegistry(), Log: zerolog.Nop(), Tokens: api.Tokens{RouterToken: token}})
	must(b, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(b, err)
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, api.Listener{Listener: l}) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			b.Error(err)
		}
	}()
	body, err := json.Marshal(&q)
	must(b, err)
	client := fasthttp.HostClient{Addr: l.Addr().String(), MaxConns: 64}
	defer client.CloseIdleConnections()
	b.SetParallelism(4)
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		var req fasthttp.Request
		var res fasthttp.Response
		req.SetRequestURI("http://" + l.Addr().String() + "/api/v1/locate")
		req.Header.SetMethod(fasthttp.MethodPost)
		req.Header.Set("Authorization", "Bearer "+token)
		for pb.Next() {
			req.SetBodyRaw(body)
			if err := client.Do(&req, &res); err != nil || res.StatusCode() != fasthttp.StatusOK {
				b.Errorf("%d: %v", res.StatusCode(), err)
				return
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "requests/s")
	b.ReportMetric(float64(len(body)), "request-B")
}

// must ends a test at what has to work for it to go on. It costs a benchmark nothing.
func must(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}
