package network

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/scripts/lab/network/hub"
	"github.com/spliced-kv/spliced/scripts/lab/refengine"
	"github.com/spliced-kv/spliced/scripts/lab/refengine/ragdemo"
	"github.com/spliced-kv/spliced/scripts/lab/refengine/remote"
)

// What engines place of each other's segments, over a network that loses and delays, gives
// the answers of an engine whose segments are all in its own process. A segment that does
// not come in time is computed in its place, which is another answer by right: those are
// counted, and not compared.
func TestAnEngineAnswersTheSameOverABadNetwork(t *testing.T) {
	if testing.Short() {
		t.Skip("a model in Go computes for minutes where races are looked for")
	}
	t.Parallel()
	b := newBed(t, 3)
	b.start("-slots=64MiB", "-promote-timeout=10s")
	b.all(hub.Rule{Loss: .02, Delay: 5 * time.Millisecond, Jitter: time.Millisecond})
	sample, err := ragdemo.Embedded()
	if err != nil {
		t.Fatal(err)
	}
	m, err := ragdemo.Model(1)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*patience)
	defer cancel()
	var engines []*remote.Store
	for _, n := range b.nodes {
		r, err := n.client.Register(m.Profile(), connector.Binding{Connector: "refengine"})
		if err == nil {
			err = r.WaitReady(ctx)
		}
		if err != nil {
			t.Fatal(err)
		}
		engines = append(engines, remote.New(ctx, n.client, r))
	}
	local := refengine.NewMemory(m.Profile())
	same, other, fetched := 0, 0, uint64(0)
	for i := range 4 {
		computed := sample.Request(i, 8)
		placed := computed
		placed.Mid = slices.Clone(computed.Mid)
		slices.Reverse(placed.Mid)
		by, to := i%3, (i+1)%3
		for _, step := range []struct {
			at int
			r  refengine.Request
		}{{by, computed}, {to, placed}} {
			if step.at == to {
				eventually(t, "a node knows what another one computed", func() bool { return b.nodes[to].known(b.nodes[by]) })
			}
			got, err := refengine.Serve(m, engines[step.at], step.r)
			if err == nil {
				err = got.Cache
			}
			if err != nil {
				t.Fatal(err)
			}
			want, err := refengine.Serve(m, local, step.r)
			if err != nil {
				t.Fatal(err)
			}
			switch {
			// Reused and captured segments are placed alike.
			case got.Reused+got.Captured != want.Reused+want.Captured:
				other++
			case !slices.Equal(got.Logits, want.Logits):
				t.Errorf("request %d on n%d: another answer, with %d of %d tokens reused", i, step.at, got.Reused, want.Reused)
			default:
				same++
			}
		}
	}
	for _, n := range b.nodes {
		fetched += n.cluster().Fetched
	}
	if same == 0 || fetched == 0 {
		t.Errorf("%d answers are the same, %d bytes came from peers", same, fetched)
	}
	report(t, "2 %% of frames lost, 5 ms each way: %d answers as of one process, %d with a segment that did not come in time, %.1f MB from peers",
		same, other, float64(fetched)/1e6)
}
