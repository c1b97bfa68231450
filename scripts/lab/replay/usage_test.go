package replay

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon"
	"github.com/spliced-kv/spliced/daemon/settings"
	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/policy/profile/profiletest"
	"github.com/spliced-kv/spliced/scripts/lab/replay/flops"
	"github.com/spliced-kv/spliced/scripts/lab/replay/trace"
)

const (
	usageSegment = 64 // tokens of a segment
	usageSeam    = 8
	usageQuery   = 12
)

// usageTrace is prompts of four of eighty segments, popular ones more often.
func usageTrace(n int) []trace.Request {
	r := rand.New(rand.NewPCG(1, 2))
	zipf := rand.NewZipf(r, 1.2, 3, 79)
	var out []trace.Request
	for range n {
		q := trace.Request{InputTokens: 4*usageSegment + usageQuery}
		for len(q.Pieces) < 4 {
			piece := trace.Piece{ID: uint32(zipf.Uint64()), Tokens: usageSegment}
			if !slices.Contains(q.Pieces, piece) {
				q.Pieces = append(q.Pieces, piece)
			}
		}
		out = append(out, q)
	}
	return out
}

// node is a daemon in this process with an LRU pool, and an engine of it.
type node struct {
	t      *testing.T
	model  *connector.Model
	client *api.Client
}

func startNode(t *testing.T) *node {
	t.Helper()
	dir, err := os.MkdirTemp("", "spl") // short enough for a socket's path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	c := settings.Default()
	c.Socket, c.AdminSocket, c.HTTP = filepath.Join(dir, "s"), filepath.Join(dir, "a"), settings.Off
	c.Arena, c.Private, c.PageBytes = 512*settings.KiB, 64*settings.KiB, 4*settings.KiB
	c.Staging, c.Slots, c.ConnectionMemory, c.Workers, c.Eviction = 2*settings.MiB, 2*settings.MiB, 64*settings.MiB, 2, "lru"
	d, err := daemon.New(c, daemon.Parts{Log: zerolog.Nop(), Build: daemon.Build{Version: "test"}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	select {
	case <-d.Ready():
	case err := <-done:
		t.Fatal(err)
	}
	client, err := connector.Open(connector.Options{Socket: c.Socket, Name: "replay", Timeouts: connector.Timeouts{Lookup: 20 * time.Second}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	model, err := client.Register(profiletest.New(profiletest.Small(1)), connector.Binding{Connector: "test", Engine: "replay"})
	if err != nil {
		t.Fatal(err)
	}
	wait, stop := context.WithTimeout(ctx, 20*time.Second)
	defer stop()
	if err := model.WaitReady(wait); err != nil {
		t.Fatal(err)
	}
	admin, err := api.NewClient("unix:"+c.AdminSocket, "")
	if err != nil {
		t.Fatal(err)
	}
	return &node{t, model, admin}
}

func usageSpec() profile.SegmentSpec {
	return profile.SegmentSpec{Role: profile.RoleMid, Tokens: usageSegment, Head: usageSeam, Tail: usageSeam}
}

func usageTokens(id uint32) []uint32 {
	tokens := make([]uint32, usageSegment)
	for i := range tokens {
		tokens[i] = id<<8 | uint32(i)
	}
	return tokens
}

func (n *node) put(id uint32) {
	n.t.Helper()
	if _, err := n.model.Put(context.Background(), &connector.PutQuery{
		Spec: usageSpec(), Tokens: usageTokens(id),
		Source: connector.Source{Fill: func(profile.Part, int, int64, []byte) error { return nil }},
	}); err != nil {
		n.t.Fatal(err)
	}
}

// serve does what an engine does: it looks up all segments, leases those that are there,
// publishes the others, and tells.
func (n *node) serve(r *trace.Request) {
	n.t.Helper()
	ctx := context.Background()
	var keys []profile.SegmentKey
	for _, p := range r.Pieces {
		key, ok := n.model.SegmentKey(usageSpec(), usageTokens(p.ID))
		if !ok {
			n.t.Fatal("no key")
		}
		keys = append(keys, key)
	}
	var found connector.Found
	if err := n.model.Match(ctx, &connector.MatchQuery{Keys: keys}, &found); err != nil {
		n.t.Fatal(err)
	}
	told := connector.Served{Way: wire.WayRecompute, Tokens: r.InputTokens}
	var held []profile.SegmentKey
	for i := range keys {
		row := connector.ServedSegment{
			Begin: i * usageSegment, Tokens: usageSegment, Key: keys[i], Tier: found.Segments[i].Tier, Reason: found.Segments[i].Reason,
		}
		if found.Segments[i].Hit() {
			held = append(held, keys[i])
			row.At, row.Reused, told.Way = row.Begin+usageSeam, found.Segments[i].Tokens, wire.WaySplice
		}
		told.Segments = append(told.Segments, row)
	}
	rows, err := n.model.Acquire(ctx, held, connector.AcquireOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	for i, p := range r.Pieces {
		if !found.Segments[i].Hit() {
			n.put(p.ID)
		}
	}
	for _, row := range rows {
		if row.Lease == nil {
			n.t.Fatal("what was matched was not leased")
		}
		row.Lease.Release()
	}
	if _, err := n.model.Served(ctx, &told); err != nil {
		n.t.Fatal(err)
	}
}

// fits is how many segments the pool of a daemon like this holds.
func (n *node) fits() int {
	n.t.Helper()
	for id := range uint32(200) {
		n.put(id)
	}
	profiles, err := n.client.Profiles(context.Background())
	if err != nil || len(profiles) != 1 {
		n.t.Fatal(profiles, err)
	}
	return profiles[0].Segments
}

func TestADaemonSaysWhatTheSimulatorDoes(t *testing.T) {
	fits := startNode(t).fits()
	n := startNode(t)
	lru, ok := policy.Named("lru")
	if !ok {
		t.Fatal("no LRU")
	}
	shape := cost.FromProfile(profiletest.New(profiletest.Small(1)))
	segment := shape.SegmentTotalBytes(usageSegment - 2*usageSeam)
	pool := newSegmentPool(lru, &Options{Model: Model{Shape: flops.Shape{Shape: shape}, Prefill: cost.DefaultPrefill}, Seam: usageSeam}, int64(fits)*segment)
	input, hit := 0, 0
	requests := usageTrace(600)
	for i := range requests {
		in, saved := pool.serve(&requests[i], time.Unix(int64(i), 0))
		input, hit = input+in, hit+saved
		n.serve(&requests[i])
	}
	if pool.counts.Evictions < 100 || fits < 8 {
		t.Fatalf("%d segments fit, %d evictions: nothing is tested", fits, pool.counts.Evictions)
	}
	rows, err := n.client.Usage(context.Background())
	if err != nil || len(rows) != 1 {
		t.Fatal(rows, err)
	}
	u := rows[0]
	if int(u.Prompt) != input || int(u.Reused) != hit || u.Requests != uint64(len(requests)) {
		t.Errorf("the daemon says %d of %d tokens in %d requests, the simulator %d of %d in %d", u.Reused, u.Prompt, u.Requests, hit, input, len(requests))
	}
	missed := uint64(0)
	for _, tokens := range u.Missed {
		missed += tokens
	}
	if missed != u.Computed || u.Missed["evicted"] == 0 || u.Missed["unknown"] == 0 || u.Missed["new"] != uint64(usageQuery*len(requests)) {
		t.Errorf("%d computed, missed %v", u.Computed, u.Missed)
	}
	t.Logf("%d segments fit; token hit ratio %.4f with %d evictions", fits, u.HitRatio(), pool.counts.Evictions)
}
