package simulate

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"
)

// What is asked of a thousand nodes with 10^5 segments holds for a hundred with 10^4,
// and of those more: this is the same run, only small.
func TestAHundredNodesFindEachOthersSegments(t *testing.T) {
	r, err := Run(t.Context(), Options{Nodes: 100, Keys: 10_000, Duration: 15 * time.Second, Down: 3 * time.Second, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	text, _ := json.MarshalIndent(r, "", " ")
	for _, p := range r.Parts {
		if p.BytesPerSecond < 1e4 || p.BytesPerSecond > 400e3 || p.ApplyErrors > 0 || p.NewSegments < 1500 || p.Lookups < 100_000 {
			t.Errorf("%s: traffic, errors or what was looked at", p.Name)
		}
		// One interval is 250 ms; most wait half of it.
		if p.VisibleP50 < 0.05 || p.VisibleP50 > 0.2 || p.VisibleP99 > 0.6 || p.EverywhereP99 > 0.8 {
			t.Errorf("%s: when segments are visible", p.Name)
		}
		if p.HitsLost > 0.001 || p.RecentHitsLost > 0.03 || p.RecentHitsLost == 0 || p.False > 0.001 || p.Vain > 0.01 || p.Departed > 0.15 || p.Departed == 0 {
			t.Errorf("%s: answers", p.Name)
		}
		// 8 MiB of it are there whatever is held.
		if p.IndexBytes > 16<<20 || p.IndexKeys < 900_000 {
			t.Errorf("%s: memory", p.Name)
		}
	}
	if r.First.All == 0 || r.First.All > 2 || r.Restarted.All == 0 || len(r.Use) == 0 {
		t.Errorf("starts")
	} else if last := r.Use[len(r.Use)-1]; last.Alone < 0.97 || r.Use[0].Neighbour < 0.9 {
		t.Errorf("what a restarted node finds")
	}
	if t.Failed() {
		t.Logf("%s", text)
	}
}

func TestThreeNodesSeeNewSegmentsWithinASecond(t *testing.T) {
	r, err := Run(t.Context(), Options{Nodes: 3, Keys: 20_000, Churn: 0.1, Duration: 20 * time.Second, Seed: 2})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range r.Parts {
		if p.NewSegments < 500 || p.EverywhereP99 > 1 {
			t.Errorf("%s: %d segments, p99 %.3f s", p.Name, p.NewSegments, p.EverywhereP99)
		}
	}
}

func TestOneSeedGivesOneRun(t *testing.T) {
	run := func(seed uint64) string {
		r, err := Run(t.Context(), Options{Nodes: 20, Keys: 500, Churn: 0.5, Duration: 10 * time.Second, Down: time.Second, Seed: seed})
		if err != nil {
			t.Fatal(err)
		}
		r.Seconds, r.Seed = 0, 0
		for i := range r.Parts {
			p := &r.Parts[i]
			p.ApplyCPU, p.Lookup32, p.Lookup32P99 = 0, 0, 0 // of this machine
		}
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	one := run(7)
	if again := run(7); again != one {
		t.Errorf("the same seed:\n%s\n%s", one, again)
	}
	if run(8) == one {
		t.Error("another seed gives the same run")
	}
}

func TestOtherWaysAreMeasured(t *testing.T) {
	others, err := Others(t.Context(), Options{Nodes: 100, Keys: 2000, Seed: 1})
	if err != nil || len(others) != 3 {
		t.Fatal(others, err)
	}
	sets, filters, owners := others[0], others[1], others[2]
	if sets.MemoryBytes != 99*2000*8 || sets.False > 0 || filters.MemoryBytes > sets.MemoryBytes || filters.False > 0.01 ||
		owners.MemoryBytes > filters.MemoryBytes || owners.HitsLost > 0.01 || owners.Lookup32 < filters.Lookup32 {
		t.Errorf("%+v", others)
	}
}

func TestOptionsOutOfRangeAreRefused(t *testing.T) {
	for _, o := range []Options{{Nodes: 2}, {Nodes: 5000}, {Keys: 1}, {Sampled: 1}, {Nodes: 10, Sampled: 10}, {Duration: time.Second}, {Churn: 2}, {Churn: -1},
		{Restart: 0.9}, {Loss: 1}, {Latency: time.Minute}, {Link: 1}, {Parallel: 100}} {
		if _, err := Run(t.Context(), o); !errors.Is(err, ErrOptions) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, Options{Nodes: 5, Keys: 100}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}
