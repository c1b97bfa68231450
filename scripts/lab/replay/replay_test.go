package replay

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/scripts/lab/replay/flops"
	"github.com/spliced-kv/spliced/scripts/lab/replay/trace"
)

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "trace")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// chats are conversations that grow by turns, some of them forked, in our own
// format.
func chats(seed uint64) string {
	rng := rand.New(rand.NewPCG(seed, 7))
	var b strings.Builder
	b.WriteString(`{"spliced_trace":1}` + "\n")
	var history [][]uint32
	for i := range 400 {
		var prompt []uint32
		if len(history) > 0 && rng.IntN(4) > 0 {
			from := history[rng.IntN(len(history))]
			prompt = append(prompt, from[:len(from)-rng.IntN(min(3, len(from)))]...)
		}
		for range 5 + rng.IntN(60) {
			prompt = append(prompt, rng.Uint32N(50))
		}
		answer := []uint32{rng.Uint32N(50), rng.Uint32N(50)}
		history = append(history, append(append([]uint32{}, prompt...), answer...))
		line, _ := json.Marshal(map[string]any{"tokens": prompt, "output": answer, "timestamp": i})
		b.Write(append(line, '\n'))
	}
	return b.String()
}

// small has states worth 20 tokens of rows.
func small() Model {
	return Model{
		Name: "small", Fit: "given",
		Shape: flops.Shape{Shape: cost.Shape{KVBytes: 100, StateBytes: 1500, ConvBytes: 500}, Linear: flops.Work{PerToken: 1e9}}, Prefill: cost.Prefill{Fixed: 2, PerToken: 0.5},
	}
}

func TestPoliciesNeverHitMoreThanThereIs(t *testing.T) {
	path := write(t, chats(1))
	report, err := Run(t.Context(), Options{Path: path, Policies: PromptPolicies(), Capacities: []int64{200_000, 1_000_000, Unlimited}, Model: small()})
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Runs) != 3*len(PromptPolicies()) {
		t.Fatalf("%d runs", len(report.Runs))
	}
	unlimited := map[string]float64{}
	for _, r := range report.Runs {
		if r.CapacityBytes < 0 {
			unlimited[r.Policy] = r.TokenHitRate
		}
	}
	for _, r := range report.Runs {
		if r.Requests != 400 || r.TokenHitRate <= 0 || r.TokenHitRate > unlimited[r.Policy]+1e-9 || r.HitTokens > r.InputTokens {
			t.Errorf("%s at %d: %+v", r.Policy, r.CapacityBytes, r)
		}
		limited := r.CapacityBytes > 0
		if limited != (r.Evictions > 0) {
			t.Errorf("%s at %d: %d evictions", r.Policy, r.CapacityBytes, r.Evictions)
		}
		// The released simulators overshoot, ours never.
		if ours := r.Policy == "lru" || r.Policy == "gdsf" || r.Policy == "default"; ours && limited && r.PeakBytes > r.CapacityBytes {
			t.Errorf("%s holds %d of %d bytes", r.Policy, r.PeakBytes, r.CapacityBytes)
		}
		if r.TTFT.P50 > r.TTFTNoCache.P50 || r.TTFT.P5 < 2 || r.TTFT.P95 < r.TTFT.P50 {
			t.Errorf("%s: TTFT %+v, without a cache %+v", r.Policy, r.TTFT, r.TTFTNoCache)
		}
		if r.EdgeSteps <= 0 || r.EdgeStepsPerSecond <= 0 || r.SymbolsPerSecond <= 0 {
			t.Errorf("%s: speed %+v", r.Policy, r)
		}
		if (r.Alpha != nil) != strings.HasPrefix(r.Policy, PolicyMarconi) {
			t.Errorf("%s: alpha %v", r.Policy, r.Alpha)
		}
	}
}

// A replay gives the same figures again, whatever else runs beside it.
func TestReplaysAreReproducible(t *testing.T) {
	path := write(t, chats(2))
	var first string
	for _, policies := range [][]string{{"gdsf"}, {"lru", "gdsf", "default", "marconi"}, {"gdsf", "sglang+"}} {
		report, err := Run(t.Context(), Options{Path: path, Policies: policies, Capacities: []int64{300_000}, Model: small()})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range report.Runs {
			if r.Policy != "gdsf" {
				continue
			}
			r.Seconds, r.EdgeStepsPerSecond, r.SymbolsPerSecond = 0, 0, 0
			if text := fmt.Sprintf("%+v", r); first == "" {
				first = text
			} else if text != first {
				t.Errorf("%s\nbefore %s", text, first)
			}
		}
	}
}

func TestJSONIsOneObjectARun(t *testing.T) {
	report, err := Run(t.Context(), Options{Path: write(t, chats(3)), Policies: []string{"lru", "default", "lru"}, Capacities: []int64{300_000, 200_000}, Model: small()})
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := report.WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	var capacities []float64
	for lines := bufio.NewScanner(&b); lines.Scan(); {
		var v map[string]any
		if err := json.Unmarshal(lines.Bytes(), &v); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"policy", "capacity_bytes", "requests", "token_hit_rate", "evictions", "ttft_ms", "edge_steps_per_second", "used_bytes"} {
			if v[name] == nil {
				t.Errorf("no %s in %v", name, v)
			}
		}
		capacities = append(capacities, v["capacity_bytes"].(float64))
	}
	if fmt.Sprint(capacities) != fmt.Sprint([]float64{200_000, 300_000, 200_000, 300_000}) {
		t.Errorf("runs at %v", capacities)
	}
}

// Four requests worked out by hand: segments of 10 and 20 tokens, one token on
// either side computed again, a leading segment of 5.
func TestSegmentPoolByHand(t *testing.T) {
	text := `{"spliced_trace":1}
{"segments":[["a",10],["b",20]],"input_length":33}
{"segments":[["b",20],["a",10]],"input_length":31}
{"segments":[["c",20],["c",20]]}
{"segments":[["a",10],["b",20],["c",20],["d",2]]}
`
	model := Model{Name: "by hand", Shape: flops.Shape{Shape: cost.Shape{KVBytes: 1, SegmentBytes: 100}}, Prefill: cost.Prefill{Fixed: 1, PerToken: 1}}
	run := func(capacity int64, policies ...string) []Result {
		t.Helper()
		report, err := Run(t.Context(), Options{Path: write(t, text), Policies: policies, Capacities: []int64{capacity}, Model: model, System: 5, Seam: 1})
		if err != nil {
			t.Fatal(err)
		}
		return report.Runs
	}
	// 8 of a and 18 of b, then both and c; the leading segment in all but the first.
	// A pair of equal segments in one prompt is published once and hit from the
	// next request on.
	r := run(Unlimited, "lru", PolicyPrefix)
	if want := int64(15 + 2*26 + 18); r[0].HitTokens != want || r[0].InputTokens != 33+31+40+52+20 || r[0].UsedBytes != 108+118+118 {
		t.Errorf("unlimited: %+v, want %d hit tokens", r[0], want)
	}
	// From the front: a then b were seen in that order only by the last request.
	if want := int64(15 + 30); r[1].HitTokens != want || r[1].CapacityBytes != -1 {
		t.Errorf("prefix: %+v, want %d hit tokens", r[1], want)
	}
	// Room for two: the third request evicts b, which was used before a in the
	// second; the last one then hits a and c, and b finds both in use.
	r = run(240, "lru")
	if want := int64(15 + 26 + 8 + 18); r[0].HitTokens != want || r[0].Evictions != 1 || r[0].Refused != 1 {
		t.Errorf("two fit: %+v, want %d hit tokens", r[0], want)
	}
}

func TestPlacementsByHand(t *testing.T) {
	text := "req,group,entry_len_L,app_boundary,best_entry_req,overlap_depth_t,best_entry_len\n" +
		"0,0,1000,700,-1,0,0\n1,0,1000,700,0,700,1000\n2,1,300,280,-1,0,0\n3,1,300,280,2,290,300\n"
	report, err := Run(t.Context(), Options{Path: write(t, text), Policies: []string{"balanced", "block", "boundary"}, Checkpoints: []int{1}})
	if err != nil {
		t.Fatal(err)
	}
	// Balanced: 500 and 150 down to multiples of 64. Block of one: the end, which
	// is beyond what is shared. Boundaries at 640 and 256.
	for i, want := range []int64{448 + 128, 0, 640 + 256} {
		if r := report.Runs[i]; r.HitTokens != want || math.Abs(*r.SavedOfHits-float64(want)/990) > 1e-12 {
			t.Errorf("%s: %d tokens saved (%.3f), want %d", r.Policy, r.HitTokens, *r.SavedOfHits, want)
		}
	}
}

func TestWrongQuestionsAreErrors(t *testing.T) {
	path := write(t, chats(1))
	for name, c := range map[string]struct {
		o    Options
		want error
	}{
		"no capacity":    {Options{Path: path}, ErrCapacity},
		"unknown policy": {Options{Path: path, Policies: []string{"mru"}, Capacities: []int64{1}}, ErrPolicy},
		"weight":         {Options{Path: path, Policies: []string{"marconi:x"}, Capacities: []int64{1}}, ErrPolicy},
		"for segments":   {Options{Path: path, Policies: []string{PolicyPrefix}, Capacities: []int64{1}}, ErrPolicy},
		"no file":        {Options{Path: path + "x", Capacities: []int64{1}}, os.ErrNotExist},
	} {
		if _, err := Run(t.Context(), c.o); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := Run(t.Context(), Options{Path: write(t, chats(1)+"{}\n"), Capacities: []int64{1e9}})
	var e *trace.Error
	if !errors.As(err, &e) || e.Code != trace.BadLine || e.Line != 402 {
		t.Errorf("bad line: %v", err)
	}
}

func TestPercentilesInterpolate(t *testing.T) {
	got := percentiles([]float32{40, 10, 30, 20, 50})
	if want := (Percentiles{12, 30, 48}); math.Abs(got.P5-want.P5)+math.Abs(got.P50-want.P50)+math.Abs(got.P95-want.P95) > 1e-9 {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := percentiles(nil); got != (Percentiles{}) {
		t.Errorf("of nothing %+v", got)
	}
}

func TestTextAndChartTellWhatWasReplayed(t *testing.T) {
	report, err := Run(t.Context(), Options{Path: write(t, chats(4)), Policies: []string{"lru", "default"}, Capacities: []int64{200_000, 1_000_000, Unlimited}, Model: small()})
	if err != nil {
		t.Fatal(err)
	}
	var text, chart strings.Builder
	if err := errors.Join(report.Print(&text), report.Chart().Write(&chart)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"400 requests", "token hit rate", "TTFT P5/P50/P95", "evictions", "edge_steps_per_second", "0.0002 GB", "unlimited", "default"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in\n%s", want, &text)
		}
	}
	for _, want := range []string{"capacity, GB", "token hit rate, %", ">lru ", ">default ", ">default, unlimited "} {
		if !strings.Contains(chart.String(), want) {
			t.Errorf("no %q in the chart", want)
		}
	}
}
