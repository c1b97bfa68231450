package network

import (
	"context"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/connector/refengine/peerdemo"
	"github.com/spliced-kv/spliced/daemon/network/hub"
)

// The demo of two engines runs over a network that loses and delays, and a node that is
// killed and comes back: every answer is the same as with a cache in this process.
func TestAnEngineAnswersTheSameOverABadNetwork(t *testing.T) {
	t.Parallel()
	b := newBed(t, 3)
	flags := func(n *node) []string {
		return []string{"-disk=" + filepath.Join(b.dir, n.name, "disk"), "-disk-size=64MiB", "-disk-private=8MiB", "-disk-slab=4MiB",
			"-disk-reserve=0B", "-slots=64MiB", "-private=32MiB", "-promote-timeout=10s"}
	}
	for _, n := range b.nodes {
		n.launch(flags(n)...)
	}
	for _, n := range b.nodes {
		n.open()
	}
	b.joined()
	b.all(hub.Rule{Loss: .02, Delay: 5 * time.Millisecond, Jitter: time.Millisecond})
	a := b.nodes[0]
	ctx, cancel := context.WithTimeout(context.Background(), 3*patience)
	defer cancel()
	began := time.Now()
	steps, err := peerdemo.Run(ctx, peerdemo.Options{
		A: peerdemo.Node{Name: "a", Client: a.client}, B: peerdemo.Node{Name: "b", Client: b.nodes[1].client},
		Kill: func() error { a.end(syscall.SIGKILL); return nil },
		Restart: func(context.Context) error {
			a.launch(flags(a)...)
			b.joined()
			return nil
		},
	})
	if err != nil {
		t.Fatalf("%v\n%+v", err, steps)
	}
	answers, fromPeers := 0, 0
	for _, s := range steps {
		if s.Same != nil {
			answers++
		}
		fromPeers += s.Tiers["peer"]
	}
	if fromPeers == 0 {
		t.Error("nothing came from a peer")
	}
	report(t, "2 %% of frames lost, 5 ms each way, a node killed and back: %d answers as with a cache of one process, %d segments of peers, %.1f s in all",
		answers, fromPeers, time.Since(began).Seconds())
}
