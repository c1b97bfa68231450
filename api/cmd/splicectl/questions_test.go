package main

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/api/cmd/cli"
	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/policy/profile"
)

// The ten questions of docs/operations.md, asked by their commands after a restart.
func TestTheTenQuestionsAreAnswered(t *testing.T) {
	dir := t.TempDir()
	socket, stop := onDisk(t, dir)
	key := publish(t, socket)
	stop()
	socket, _ = onDisk(t, dir)
	admin := filepath.Join(filepath.Dir(socket), "a")
	_, m := engine(t, socket, "vllm-worker-3", connector.Binding{Connector: "spliced 1.0", Engine: "vllm 0.32.0"})
	want := cli.ExitOK
	ask := func(line string, texts ...string) {
		t.Helper()
		code, out, errs := ctl(t, append(strings.Fields(line), "--admin", "unix:"+admin)...)
		if code != want {
			t.Fatalf("%s: exit %d\n%s%s", line, code, out, errs)
		}
		for _, text := range texts {
			if !strings.Contains(out, text) {
				t.Errorf("%s has no %q:\n%s", line, text, out)
			}
		}
	}
	rows, err := m.Acquire(t.Context(), []profile.SegmentKey{profile.SegmentKey(key), profile.SegmentKey(key)}, connector.AcquireOptions{TTL: time.Minute})
	if err != nil || rows[0].Lease == nil || rows[1].Lease == nil {
		t.Fatalf("%+v: %v", rows, err)
	}
	if _, err := m.Served(t.Context(), &connector.Served{
		Way: wire.WaySplice, Tokens: 6, First: 80 * time.Millisecond, Wait: 2 * time.Millisecond, WayMicros: []float64{120e3}, Request: "cmpl-7",
		Segments: []connector.ServedSegment{
			{Begin: 0, Tokens: 3, At: 0, Reused: 3, Tier: wire.TierDRAM, Key: profile.SegmentKey(key)},
			{Begin: 3, Tokens: 3, Reason: wire.ReasonEvicted},
		},
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Report(t.Context(), &connector.Report{
		Compared: 107, Failed: 1, Worst: 0.02, Bound: 0.05, Losses: []connector.LossCounts{{Compared: 98, Changed: 1}, {}, {}, {Compared: 9}},
	}); err != nil {
		t.Fatal(err)
	}
	ask("trace", "cmpl-7", "50.0 %", "80.0 ms", "2.0 ms", "evicted")                                           // why is the first token not sooner
	ask("usage", "default", "small", "50.0 %", "evicted 3")                                                    // hit ratio by tenant and model
	ask("stats", "2 leases of 1 connection", "which save ")                                                    // bytes saved by sharing
	ask("ls canaries", "on ", "107 ", "0.02", "0.05", "no primer: 2 % of 98; primer, refreshed: unknown of 9") // is the canary fine
	ask("stats -all", "disk_read_nanos", "disk_read ")                                                         // is the disk slow
	ask("ls leases", key.String()[:12], "vllm-worker-3", "segment")                                            // who holds leases on what, since when
	ask("ls pools", "public", "dram")                                                                          // how much memory, HBM among it
	ask("ls profiles -o wide", "spliced 1.0 vllm 0.32.0")                                                      // which engine of which version
	ask("stats -o json", `"disk_opened": 1`)                                                                   // what the last restart brought back
	for _, row := range rows {
		row.Lease.Release()
	}
	client, err := api.NewClient("unix:"+admin, "")
	must(t, err)
	defer client.Close()
	if _, err := client.Remove(t.Context(), key, false); err != nil {
		t.Fatal(err)
	}
	want = cli.ExitFailed                                  // it is not held any more
	ask("inspect "+key.String(), "removed by an operator") // why was it evicted
}
