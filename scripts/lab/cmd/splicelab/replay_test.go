package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/api/cmd/cli"
	"github.com/spliced-kv/spliced/scripts/lab/replay"
)

// turns is a conversation of three turns with a fork, in our own format.
const turns = `{"spliced_trace":1}
{"tokens":[1,2,3,4],"output":[5],"output_length":1,"session":"a","timestamp":0}
{"tokens":[1,2,3,4,5,6],"output":[7],"session":"a","timestamp":900}
{"tokens":[1,2,3,4,5,8],"session":"b","timestamp":1800}
`

func traceFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "trace")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestReplayPrintsATableAndDraws(t *testing.T) {
	path, plot := traceFile(t, turns), filepath.Join(t.TempDir(), "out.svg")
	code, out, errs := ctl(t, "replay", path, "-policy", "lru", "-policy", "gdsf,default", "--capacity", "1GB,unlimited", "-bound", "-plot", plot, "-title", "Three turns")
	if code != cli.ExitOK {
		t.Fatalf("exit %d: %s", code, errs)
	}
	for _, want := range []string{"3 requests", "lru", "gdsf", "default", "1 GB", "unlimited", "bound", "62.500 %", "edge_steps_per_second"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if text, err := os.ReadFile(plot); err != nil || !strings.HasPrefix(string(text), "<svg") || !strings.Contains(string(text), ">Three turns<") {
		t.Errorf("plot: %v, %.40s", err, text)
	}
	if !strings.Contains(errs, "100 %  replaying") {
		t.Errorf("progress: %q", errs)
	}
}

func TestReplayJSONIsALineARun(t *testing.T) {
	code, out, errs := ctl(t, "replay", "--json", "-quiet", "--policy", "lru,marconi:0.5", "--capacity", "300GB", traceFile(t, turns))
	if code != cli.ExitOK || errs != "" {
		t.Fatalf("exit %d: %s", code, errs)
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 2 {
		t.Fatalf("%d lines:\n%s", len(lines), out)
	}
	for i, policy := range []string{"lru", "marconi:0.5"} {
		var v struct {
			Policy    string  `json:"policy"`
			Capacity  int64   `json:"capacity_bytes"`
			Requests  int     `json:"requests"`
			HitRate   float64 `json:"token_hit_rate"`
			Evictions *int    `json:"evictions"`
		}
		err := json.Unmarshal([]byte(lines[i]), &v)
		// 5 of 4+6+6 tokens in the second request, 5 in the third once a state was
		// kept where it leaves the second.
		if err != nil || v.Policy != policy || v.Capacity != 300e9 || v.Requests != 3 || v.HitRate != 10.0/16 || v.Evictions == nil {
			t.Errorf("%v: %s", err, lines[i])
		}
	}
}

func TestReplayOfDepthsNeedsNoCapacity(t *testing.T) {
	path := traceFile(t, "req,group,entry_len_L,app_boundary,best_entry_req,overlap_depth_t,best_entry_len\n0,0,1000,700,-1,0,0\n1,0,1000,700,0,700,1000\n")
	code, out, errs := ctl(t, "replay", path, "-policy", "balanced,boundary", "-checkpoints", "1", "-quiet")
	if code != cli.ExitOK || !strings.Contains(out, "0.6400") || !strings.Contains(out, "0.9143") {
		t.Errorf("exit %d: %s\n%s", code, errs, out)
	}
}

func TestReplayRefusesWithACodeAndALine(t *testing.T) {
	for text, want := range map[string]string{
		"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9,4808,10\n": ":1: no_content: ",
		turns + "{\"tokens\":[1,}\n": ":5: bad_line: ",
		"what is this\n":             ":1: unknown_format: ",
		"0.0,0,0,1,1\n":              ": no_companion: ",
	} {
		code, out, errs := ctl(t, "replay", traceFile(t, text), "-capacity", "1GB", "-quiet")
		if code != cli.ExitFailed || out != "" || !strings.Contains(errs, want) {
			t.Errorf("exit %d, out %q, err %q, want %q", code, out, errs, want)
		}
	}
}

func TestReplayWrongUsage(t *testing.T) {
	path := traceFile(t, turns)
	for _, args := range [][]string{
		{}, {path, path}, {path}, {path, "-capacity", "12 parsecs"}, {path, "-capacity", "-1"}, {path, "-capacity", "1GB,"},
		{path, "-capacity", "1GB", "-policy", "mru"}, {path, "-capacity", "1GB", "-policy", "balanced"}, {path, "-capacity", "1GB", "-plot", "x.bmp"},
		{path, "-capacity", "1GB", "-prefill", "x"}, {path, "-checkpoints", "0"}, {path, "-seam", "-1"}, {path, "-system", "-1"},
	} {
		code, out, errs := ctl(t, append([]string{"replay", "-quiet"}, args...)...)
		if code != cli.ExitUsage || out != "" || !strings.Contains(errs, "usage: splicectl replay") {
			t.Errorf("%q: exit %d, out %q, err %q", args, code, out, errs)
		}
	}
	segments := traceFile(t, `{"spliced_trace":1}`+"\n"+`{"segments":[["d",30]]}`)
	if code, _, errs := ctl(t, "replay", "-quiet", segments, "-capacity", "1GB", "-bound"); code != cli.ExitUsage || !strings.Contains(errs, "prompts") {
		t.Errorf("bound of segments: exit %d: %s", code, errs)
	}
	code, _, errs := ctl(t, "replay", "-quiet", path, "-capacity", "1GB", "-profile", "/nonexistent.json")
	if code != cli.ExitFailed || !strings.Contains(errs, "neither marconi-7b, gdn-40l nor a file") {
		t.Errorf("exit %d: %s", code, errs)
	}
}

func TestReplayReadsAModelConfig(t *testing.T) {
	config := filepath.Join(root, "policy", "profile", "testdata", "config", "qwen3-next-80b-a3b.json")
	code, out, errs := ctl(t, "replay", traceFile(t, turns), "-capacity", "1GB", "-profile", config, "-quiet")
	if code != cli.ExitOK || !strings.Contains(out, "qwen3_next, 48 layers") {
		t.Errorf("exit %d: %s\n%s", code, errs, out)
	}
	code, out, _ = ctl(t, "replay", traceFile(t, turns), "-capacity", "unlimited", "-prefill", "10,1", "-policy", "default", "-quiet")
	if code != cli.ExitOK || !strings.Contains(out, "P5/P50/P95 14/16/16 ms") {
		t.Errorf("exit %d:\n%s", code, out)
	}
}

// Python writes infinities as words that JSON does not have.
func TestReplayReadsWordsOfPython(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "policy", "profile", "testdata", "config", "qwen3-next-80b-a3b.json"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "config.json")
	words := strings.Replace(string(text), "{", `{"time_step_limit": [0.0, Infinity], "initializer_range": NaN, `, 1)
	if err := os.WriteFile(path, []byte(words), 0o600); err != nil {
		t.Fatal(err)
	}
	f := replayFlags{model: path}
	if err := f.chooseModel(); err != nil || f.Model.Shape.StateBytes == 0 {
		t.Errorf("a model to replay: %+v, %v", f.Model, err)
	}
}

func TestCapacities(t *testing.T) {
	for text, want := range map[string]int64{"300GB": 300e9, "16GiB": 16 << 30, "1.5tb": 15e11, "4096": 4096, "7 MB": 7e6, "unlimited": replay.Unlimited} {
		if got, err := capacityOf(text); err != nil || got != want {
			t.Errorf("%s: %d, %v", text, got, err)
		}
	}
}

func TestConsecutiveDocumentsAsYAML(t *testing.T) {
	var b strings.Builder
	if err := yamlOf(&b, strings.NewReader("{\"a\":1}\n{\"a\":2}\n")); err != nil || b.String() != "a: 1\n---\na: 2\n" {
		t.Errorf("%v %q", err, b.String())
	}
}
