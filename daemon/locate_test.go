package daemon

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/daemon/settings"
	"github.com/spliced-kv/spliced/policy/profile"
)

const (
	routerToken = "a router's token"
	promptBlock = 16
)

// forRouters has a node's TCP port answer whoever has routerToken.
func forRouters(t testing.TB, c *settings.Config) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "router-token")
	must(t, os.WriteFile(path, []byte(routerToken+"\n"), 0o600))
	c.HTTP, c.RouterTokenFile = "127.0.0.1:0", path
}

func (r *running) router(t testing.TB) *api.Client {
	t.Helper()
	client, err := api.NewClient("http://"+r.AdminAddr().String(), routerToken)
	must(t, err)
	t.Cleanup(client.Close)
	return client
}

// savePrefix saves a checkpoint of the first n tokens, all of it zeros.
func savePrefix(t testing.TB, m *connector.Model, p *profile.Profile, salt []byte, tokens []uint32, n int) {
	t.Helper()
	l := p.CheckpointLayout(n)
	q := connector.SaveQuery{Hash: p.PrefixHashes(salt, promptBlock, tokens, []int{n})[0], Tokens: n, Kind: connector.Exact}
	for _, part := range l.Parts {
		q.Source.Parts = append(q.Source.Parts, make([]byte, part.Len))
	}
	if stored, err := m.Save(context.Background(), &q); err != nil || !stored.Published {
		t.Fatalf("save %d tokens: %+v, %v", n, stored, err)
	}
}

func nodeOf(t testing.TB, l *api.Located, name string) *api.LocatedNode {
	t.Helper()
	i := slices.IndexFunc(l.Nodes, func(n api.LocatedNode) bool { return n.Node == name })
	if i < 0 {
		t.Fatalf("%s is not among %+v", name, l.Nodes)
	}
	return &l.Nodes[i]
}

// A prompt of a head, two documents and a question. A holds the head and a document, B a
// checkpoint of part of the head and the other document; C, which holds nothing, is asked.
func TestARouterIsToldWhichNodeHoldsMost(t *testing.T) {
	leakCheck(t)
	configs := clusterConfigs(t, "a", "b", "c")
	forRouters(t, &configs[0])
	forRouters(t, &configs[2])
	p := testProfile(1)
	var nodes []*running
	var models []*connector.Model
	for _, c := range configs {
		d := startDaemon(t, c, nil)
		_, m := openClient(t, d.Socket(), p, connector.Binding{})
		nodes, models = append(nodes, d), append(models, m)
	}
	head, first, second := newDocument(p, nil, 1, 160, profile.RoleFirst), newDocument(p, nil, 2, 300, profile.RoleMid), newDocument(p, nil, 3, 200, profile.RoleMid)
	prompt := slices.Concat(head.tokens, first.tokens, second.tokens, []uint32{7, 7, 7, 7})
	put(t, models[0], head)
	put(t, models[0], first)
	put(t, models[1], second)
	savePrefix(t, models[1], p, nil, prompt, 64)
	_, firstInterior := first.spec.Interior()
	_, secondInterior := second.spec.Interior()

	q := api.LocateQuery{
		Profile: p.Identity().Model, TokenIDs: prompt, BlockTokens: promptBlock, SeamTokens: 4,
		Segments: []api.LocateSegment{{Begin: 0, Tokens: 160}, {Begin: 160, Tokens: 300}, {Begin: 460, Tokens: 200}},
	}
	ask := func(d *running, q api.LocateQuery) *api.Located {
		t.Helper()
		got, err := d.router(t).Locate(context.Background(), &q)
		must(t, err)
		return got
	}
	var got *api.Located
	eventually(t, "c knows what both hold", func() bool {
		got = ask(nodes[2], q)
		return len(got.Nodes) == 3 && nodeOf(t, got, "a").Complete && nodeOf(t, got, "a").AsOf != nil && nodeOf(t, got, "a").SegmentTokens == 160+firstInterior && nodeOf(t, got, "b").Tokens == 64+secondInterior
	})
	if got.Best == "" || got.Members != 3 || got.Tokens != len(prompt) || got.RecomputeMillis <= 0 || got.Measured || got.ExpectedFalse > 1e-6 {
		t.Errorf("%+v", got)
	}
	a, b, c := nodeOf(t, got, "a"), nodeOf(t, got, "b"), nodeOf(t, got, "c")
	if a.PrefixTokens != 0 || a.Self || a.MemoryTokens != nil || !a.Complete || a.AsOf == nil || a.Peer == "" {
		t.Errorf("a: %+v", a)
	}
	if b.PrefixTokens != 64 || b.SegmentTokens != secondInterior || math.Abs(b.Share-float64(64+secondInterior)/float64(len(prompt))) > 1e-9 {
		t.Errorf("b: %+v", b)
	}
	if !c.Self || c.Tokens != 0 || *c.MemoryTokens != 0 || *c.DiskTokens != 0 || c.SavedMillis != 0 || c.PeerTokens == 0 {
		t.Errorf("c: %+v", c)
	}
	if a.SavedMillis <= b.SavedMillis || b.SavedMillis <= 0 {
		t.Errorf("a saves %g ms with %d tokens, b %g with %d", a.SavedMillis, a.Tokens, b.SavedMillis, b.Tokens)
	}
	for _, n := range got.Nodes { // whoever fetches the rest saves at least what it saves alone
		if n.SavedWithPeersMillis < n.SavedMillis || n.SavedWithPeersMillis >= got.RecomputeMillis {
			t.Errorf("%+v of %g ms", n, got.RecomputeMillis)
		}
	}
	if got.Nodes[0].Node != got.Best || !slices.IsSortedFunc(got.Nodes, func(a, b api.LocatedNode) int {
		return int(b.SavedWithPeersMillis*1e6) - int(a.SavedWithPeersMillis*1e6)
	}) {
		t.Errorf("the best is %s of %+v", got.Best, got.Nodes)
	}

	// By keys the answer is the same; and a, asked itself, knows its tiers.
	byKeys := api.LocateQuery{Profile: api.Digest(p.Fingerprint()).String(), Tokens: len(prompt), Tenant: settings.DefaultTenant}
	byKeys.Prefixes = []api.LocatePrefix{{Hash: api.Digest(p.PrefixHashes(nil, promptBlock, prompt, []int{64})[0]), Tokens: 64}}
	begin := 0
	for _, d := range []*document{head, first, second} {
		key, excluded := api.Digest(d.key), d.spec.Head+d.spec.Tail
		byKeys.Segments = append(byKeys.Segments, api.LocateSegment{Begin: begin, Tokens: d.spec.Tokens, Key: &key, Excluded: excluded})
		begin += d.spec.Tokens
	}
	same := ask(nodes[2], byKeys)
	for _, name := range []string{"a", "b", "c"} {
		x, y := *nodeOf(t, got, name), *nodeOf(t, same, name)
		if x.Tokens != y.Tokens || x.SavedMillis != y.SavedMillis || x.PeerTokens != y.PeerTokens {
			t.Errorf("by tokens %+v, by keys %+v", x, y)
		}
	}
	fromA := nodeOf(t, ask(nodes[0], byKeys), "a")
	if !fromA.Self || *fromA.MemoryTokens != 160+firstInterior || *fromA.DiskTokens != 0 {
		t.Errorf("a of itself: %+v", fromA)
	}
	byKeys.Accept, byKeys.Limit = "exact", 1
	exact := ask(nodes[2], byKeys)
	if len(exact.Nodes) != 1 || !exact.Nodes[0].Self || exact.Members != 3 || exact.Best != "c" && exact.Best != "b" {
		t.Errorf("exact, one node: %+v", exact)
	}

	// Nothing of this is a use, a hit or a reason to fetch.
	for i, d := range nodes {
		if n := d.store.Counters(); n.HitSegments+n.PrefixHits > 0 || n.Beyond.HitSegments > 0 {
			t.Errorf("node %d counts %+v", i, n)
		}
	}
	nodes[0].stop()
	eventually(t, "a has left", func() bool { return len(ask(nodes[2], q).Nodes) == 2 })
}

func TestLocateWithoutACluster(t *testing.T) {
	leakCheck(t)
	c := withDisk(t)
	c.PrefillSpeed = 1
	forRouters(t, &c)
	d := startDaemon(t, c, nil)
	p := testProfile(1)
	_, m := openClient(t, d.Socket(), p, connector.Binding{Tenant: "guarded"}, connector.Tenant{Name: "guarded", Token: "open sesame"})
	doc := newDocument(p, []byte("pepper"), 1, 300, profile.RoleFirst)
	put(t, m, doc)
	q := api.LocateQuery{Profile: p.Identity().Model, Tenant: "guarded", TokenIDs: doc.tokens, Segments: []api.LocateSegment{{Begin: 0, Tokens: 300}}}
	got, err := d.router(t).Locate(context.Background(), &q)
	must(t, err)
	if len(got.Nodes) != 1 || !got.Nodes[0].Self || got.Best != got.Nodes[0].Node || got.Nodes[0].Share != 1 || *got.Nodes[0].MemoryTokens != 300 || got.Nodes[0].PeerTokens != 0 {
		t.Errorf("%+v", got)
	}
	q.Tenant = "" // another salt
	if got, err = d.router(t).Locate(context.Background(), &q); err != nil || got.Nodes[0].Tokens != 0 || got.Best != "" {
		t.Errorf("another tenant: %+v, %v", got, err)
	}
	for name, q := range map[string]api.LocateQuery{
		"no such tenant": {Profile: p.Identity().Model, Tenant: "nobody", Tokens: 1},
		"no such model":  {Profile: "nothing", Tokens: 1},
		"no such print":  {Profile: api.Digest{1}.String(), Tokens: 1},
	} {
		if _, err := d.router(t).Locate(context.Background(), &q); !errors.Is(err, api.ErrNotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
