package daemon

import (
	"bytes"
	"context"
	"math/rand/v2"
	"testing"

	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/daemon/settings"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/policy/profile/profiletest"
)

// A chain whose inner nodes have lost their states under pressure is loaded over
// the socket with all that counts of it.
func TestClientLoadsThroughThinnedNodes(t *testing.T) {
	cfg := testConfig(t)
	cfg.Private, cfg.Eviction = 1*settings.MiB, "lru"
	r := startDaemon(t, cfg, nil)
	id := profiletest.TwoLayers(1)
	id.Layers[0].Linear.KeyDim, id.Layers[0].Linear.ValueDim = 64, 64 // states of 64 KiB
	p := profiletest.New(id)
	_, m := openClient(t, r.Socket(), p, connector.Binding{})
	ctx, rng := context.Background(), rand.New(rand.NewPCG(1, 2))
	hash := func(prompt, end int) profile.PrefixHash { return profile.PrefixHash{byte(prompt), byte(end), 1} }
	save := func(prompt, end, parent int) [][]byte {
		q := connector.SaveQuery{Hash: hash(prompt, end), Tokens: end, Kind: connector.Exact, ParentTokens: parent}
		if parent > 0 {
			q.Parent = hash(prompt, parent)
		}
		l := p.CheckpointLayout(end - parent)
		data := fill(l, rng)
		for _, part := range l.Parts {
			q.Source.Parts = append(q.Source.Parts, data[part.Off:part.Off+part.Len])
		}
		if stored, err := m.Save(ctx, &q); err != nil || !stored.Published {
			t.Fatalf("save [%d, %d): %+v, %v", parent, end, stored, err)
		}
		return q.Source.Parts
	}
	parts := [][][]byte{save(0, 100, 0), save(0, 200, 100), save(0, 300, 200)}
	for prompt := 1; r.store.Counters().Stripped < 2; prompt++ {
		if prompt > 100 {
			t.Fatalf("nothing is thinned: %+v", r.store.Counters())
		}
		save(prompt, 50, 0)
		point, ok, err := m.Load(ctx, hash(0, 300), connector.Exact, connector.AcquireOptions{})
		if err != nil || !ok {
			t.Fatalf("after %d other prompts: %v, %v", prompt, ok, err)
		}
		point.Release()
	}
	for _, end := range []int{100, 200} {
		if _, ok, err := m.Load(ctx, hash(0, end), connector.Exact, connector.AcquireOptions{}); ok || err != nil {
			t.Errorf("checkpoint %d, which has no states: %v, %v", end, ok, err)
		}
	}
	point, ok, err := m.Load(ctx, hash(0, 300), connector.Exact, connector.AcquireOptions{Digests: true})
	if err != nil || !ok || len(point.Nodes) != 3 {
		t.Fatalf("%+v, %v, %v", point, ok, err)
	}
	defer point.Release()
	for n := range point.Nodes {
		node := &point.Nodes[n]
		if err := node.Verify(); err != nil {
			t.Errorf("node %d: %v", n, err)
		}
		for i, part := range node.Layout().Parts {
			dst := make([]byte, part.Len)
			err := node.Read(i, dst)
			switch rows := part.Kind == profile.PartK || part.Kind == profile.PartV; {
			case n == 2 || rows:
				if err != nil || !bytes.Equal(dst, parts[n][i]) || !bytes.Equal(node.Part(i), dst) {
					t.Errorf("node %d part %d differs: %v", n, i, err)
				}
			case part.Kind == profile.PartS && (err == nil || node.Part(i) != nil):
				t.Errorf("node %d: states that nobody has are read", n)
			}
		}
	}
	save(0, 200, 0) // by a client that began again
	again, ok, err := m.Load(ctx, hash(0, 200), connector.Exact, connector.AcquireOptions{})
	if !ok || err != nil {
		t.Errorf("saved again: %v, %v", ok, err)
	}
	again.Release()
}
