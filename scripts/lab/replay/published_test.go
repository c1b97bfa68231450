package replay

import (
	"math"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/policy/tracetest"
)

// published finds a published trace, or a member of one, or skips.
func published(t *testing.T, name string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("long: replays whole traces")
	}
	file, member, inside := strings.Cut(name, ":")
	path := tracetest.Path(t, file)
	if inside {
		path += ":" + member
	}
	return path
}

// The figures are those of the released simulators on the same traces: hit rates
// to five decimals, TTFT to the millisecond.
func TestPublishedPromptsReproduceTheReference(t *testing.T) {
	for _, c := range []struct {
		file, policy string
		gigabytes    int64
		hit          float64
		ttft         string
	}{
		{"swe100_orders.tar.zst:swe100_c5_sps1_art7.5", PolicyBlocks, 40, 0.02586, "118/375/910"},
		{"swe100_orders.tar.zst:swe100_c5_sps1_art7.5", PolicyPath, 40, 0.26645, "20/301/753"},
		{"swe100_orders.tar.zst:swe100_c5_sps1_art7.5", PolicyMarconi, 140, 0.64938, ""},
		{"mooncake_conversation_trace.jsonl.zst", PolicyBlocks, 300, 0.0445, ""},
		{"mooncake_conversation_trace.jsonl.zst", PolicyPath, 300, 0.1885, ""},
		{"mooncake_conversation_trace.jsonl.zst", "lru", 1000, 0.3263, ""},
		{"mooncake_conversation_trace.jsonl.zst", "lru", 0, 0.36678, ""},
	} {
		capacity := c.gigabytes * 1e9
		if capacity == 0 {
			capacity = Unlimited
		}
		report, err := Run(t.Context(), Options{Path: published(t, c.file), Policies: []string{c.policy}, Capacities: []int64{capacity}})
		if err != nil {
			t.Fatal(err)
		}
		r := report.Runs[0]
		if math.Abs(r.TokenHitRate/c.hit-1) > 0.001 || c.ttft != "" && r.TTFT.String() != c.ttft {
			t.Errorf("%s, %s at %d GB: %.5f and %s ms, want %.5f and %s", c.file, c.policy, c.gigabytes, r.TokenHitRate, r.TTFT, c.hit, c.ttft)
		}
	}
}

func TestPublishedSegmentsReproduceTheReference(t *testing.T) {
	report, err := Run(t.Context(), Options{Path: published(t, "rag_musique_zipf1.csv.zst"), Policies: []string{PolicyPrefix, "lru"},
		Capacities: []int64{Unlimited}, System: 64, Seam: 8})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []float64{0.0973, 0.9114} {
		if got := report.Runs[i].TokenHitRate; math.Abs(got-want) > 0.00005 {
			t.Errorf("%s: %.4f, want %.4f", report.Runs[i].Policy, got, want)
		}
	}
}

func TestPublishedDepthsReproduceTheReference(t *testing.T) {
	report, err := Run(t.Context(), Options{Path: published(t, "sparse_depths_quality.csv.zst"), Policies: []string{"balanced", "block", "dp", "boundary"},
		Checkpoints: []int{1, 4, 16}})
	if err != nil {
		t.Fatal(err)
	}
	want := []float64{.5021, .8066, .9497, .0000, .7750, .9691, .8484, .9813, .9897, .9948, .9948, .9948}
	for i, r := range report.Runs {
		if math.Abs(*r.SavedOfHits-want[i]) > 0.005 {
			t.Errorf("%s, %d states: %.4f, want %.4f", r.Policy, r.Checkpoints, *r.SavedOfHits, want[i])
		}
	}
}
