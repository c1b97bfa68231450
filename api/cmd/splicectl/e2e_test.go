package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/api/child"
	"github.com/spliced-kv/spliced/api/cmd/cli"
	"github.com/spliced-kv/spliced/api/cmd/splicectl/internal/bench"
	"github.com/spliced-kv/spliced/api/cmd/splicectl/internal/doctor"
	"github.com/spliced-kv/spliced/api/cmd/splicectl/internal/torture"
	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/connector/refengine/chatdemo"
	"github.com/spliced-kv/spliced/connector/refengine/ragdemo"
	"github.com/spliced-kv/spliced/policy/profile"
)

var binDir string // of programs built for these tests; removed by TestMain

func TestMain(m *testing.M) {
	code := m.Run()
	if binDir != "" {
		_ = os.RemoveAll(binDir) // in the temporary directory anyway
	}
	os.Exit(code)
}

// built compiles both programs once.
var built = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "splicectl-test-")
	if err != nil {
		return "", err
	}
	binDir = dir
	cmd := exec.Command("go", "build", "-o", dir, "../../../daemon/cmd/spliced", ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", errors.Join(err, errors.New(string(out)))
	}
	return dir, nil
})

// splicectl runs the built program.
func splicectl(t *testing.T, want int, args ...string) (stdout, stderr string) {
	t.Helper()
	if testing.Short() {
		t.Skip("builds and runs the programs")
	}
	dir, err := built()
	if err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "splicectl"), args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if got := cmd.ProcessState.ExitCode(); got != want {
		t.Fatalf("splicectl %q: exit %d, want %d\n%s%s", args, got, want, &out, &errs)
	}
	return out.String(), errs.String()
}

func daemonForTest(t *testing.T) *child.Daemon {
	t.Helper()
	if testing.Short() {
		t.Skip("builds and runs the programs")
	}
	dir, err := built()
	if err != nil {
		t.Fatal(err)
	}
	d, err := child.Start(t.Context(), child.Options{Binary: filepath.Join(dir, "spliced"), Args: []string{"-arena", "64MiB", "-private", "16MiB"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Stop(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func TestDoctorProvesARoundTripOnItsOwnDaemon(t *testing.T) {
	out, _ := splicectl(t, cli.ExitOK, "doctor", "--self", "--json")
	var d diagnosis
	if err := json.Unmarshal([]byte(out), &d); err != nil {
		t.Fatal(err)
	}
	states := map[string]string{}
	for _, c := range d.Checks {
		states[c.Name] = c.State
		if c.State != doctor.OK && c.Remedy == "" {
			t.Errorf("%s is %s without a remedy", c.Name, c.State)
		}
	}
	for _, name := range []string{"memfd seals", "socket", "peer credentials", "hello", "arena", "slots", "staging", "layout", "round trip", "clean-up", "admin"} {
		if states[name] != doctor.OK {
			t.Errorf("%s: %q", name, states[name])
		}
	}
}

func TestDoctorNamesWhatIsMissing(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for socket, want := range map[string]string{filepath.Join(dir, "absent"): "does not exist", file: "is not a socket"} {
		out, _ := splicectl(t, cli.ExitFailed, "doctor", "-socket", socket)
		if !strings.Contains(out, want) || !strings.Contains(out, "→") {
			t.Errorf("%s: %q or a remedy is missing in:\n%s", socket, want, out)
		}
	}
}

func TestDoctorLeavesNothingBehindInALivingDaemon(t *testing.T) {
	d := daemonForTest(t)
	splicectl(t, cli.ExitOK, "doctor", "-socket", d.Socket)
	// The daemon learns of a closed connection a moment later.
	for deadline := time.Now().Add(10 * time.Second); ; {
		connections, err := d.API().Connections(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(connections) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("connections: %+v", connections)
		}
	}
	pools, err := d.API().Pools(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pools {
		if p.UsedBytes != 0 || p.Objects != 0 || p.LeasedBytes != 0 || p.PendingBytes != 0 {
			t.Errorf("after doctor: %+v", p)
		}
	}
}

func TestListingsOfALivingDaemon(t *testing.T) {
	d := daemonForTest(t)
	for _, kind := range []string{"segments", "checkpoints", "profiles", "pools", "connections"} {
		out, _ := splicectl(t, cli.ExitOK, "ls", kind, "--json", "-admin", d.Admin)
		var v struct {
			Items []any
			More  bool
		}
		if err := json.Unmarshal([]byte(out), &v); err != nil || v.Items == nil {
			t.Errorf("%s: %v in %s", kind, err, out)
		}
		splicectl(t, cli.ExitOK, "ls", kind, "-admin", d.Admin)
	}
	out, _ := splicectl(t, cli.ExitOK, "stats", "--json", "-admin", d.Admin)
	var s nodeStats
	if err := json.Unmarshal([]byte(out), &s); err != nil || !s.Status.Ready || len(s.Pools) < 2 || len(s.Counters) == 0 {
		t.Errorf("stats: %v %s", err, out)
	}
	_, errs := splicectl(t, cli.ExitFailed, "inspect", "ab", "-admin", d.Admin)
	if !strings.Contains(errs, "no segment begins with") {
		t.Errorf("inspect: %s", errs)
	}
	file := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(file, []byte("1 2 3"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, errs = splicectl(t, cli.ExitFailed, "locate", "-admin", d.Admin, "-model", "nobody's", file); !strings.Contains(errs, "no engine has registered") {
		t.Errorf("locate: %s", errs)
	}
	if ready, err := d.API().Ready(t.Context()); err != nil || ready.Status == api.HealthUnavailable {
		t.Errorf("ready: %+v, %v", ready, err)
	}
}

func TestBenchPrintsEveryRow(t *testing.T) {
	out, _ := splicectl(t, cli.ExitOK, "bench", "--suite", "smoke", "--json")
	var r bench.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"match_32_p50": "µs", "match_32_p99": "µs", "match_256_p50": "µs", "socket_echo_p50": "µs",
		"acquire_0.4MiB_p50": "µs", "acquire_64MiB_p50": "µs", "read_verify": "GB/s",
		"commit_1MiB_p50": "ms", "commit_sustained": "GB/s",
		"compose_dense_f16": "GFLOP/s", "compose_dense_vs_openblas": "ratio",
		"rotate_bf16_1MiB": "GB/s", "rotate_bf16_128MiB": "GB/s",
		"client_kill_free": "ms", "daemon_restart_reattach": "ms", "ready_4GiB": "ms", "idle_rss": "MiB",
	}
	limited := []string{"match_32_p50", "acquire_0.4MiB_p50", "read_verify", "commit_sustained", "compose_dense_f16", "rotate_bf16_1MiB", "rotate_bf16_128MiB"}
	for _, row := range r.Rows {
		if want[row.Name] != row.Unit || row.Value <= 0 {
			t.Errorf("%+v", row)
		}
		if slices.Contains(limited, row.Name) && (row.Limit == nil || *row.Limit <= 0) {
			t.Errorf("%s has no limit", row.Name)
		}
		delete(want, row.Name)
	}
	for _, s := range r.Skipped {
		if s.Name != "compose_dense_vs_openblas" || s.Reason == "" {
			t.Errorf("skipped: %+v", s)
		}
		delete(want, s.Name)
	}
	if len(want) > 0 {
		t.Errorf("missing: %v", want)
	}
	if r.Machine == "" || r.Commit == "" || r.Date.IsZero() {
		t.Errorf("%+v", r)
	}
}

func TestDemoServesRequestsThroughItsOwnDaemon(t *testing.T) {
	out, errs := splicectl(t, cli.ExitOK, "demo", "-scenario", "rag", "-requests", "2", "--json")
	var r struct {
		Requests int
		Sentence string
		Ways     []struct{ Name string }
		Restart  *ragdemo.Restart
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil || r.Requests != 2 || len(r.Ways) < 3 || r.Sentence == "" {
		t.Errorf("%v: %s", err, out)
	}
	if re := r.Restart; re == nil || re.Failed() != nil || re.Published.Segments == 0 || re.Replay.Disk == 0 {
		t.Errorf("killed in the middle: %+v", re)
	}
	if !strings.Contains(errs, "request 1") {
		t.Errorf("no progress: %s", errs)
	}
}

func TestDemoAsksATrainedModel(t *testing.T) {
	const model = "../../../scripts/tinyhybrid/model"
	if _, err := os.Stat(model); errors.Is(err, fs.ErrNotExist) {
		t.Skip("the trained model is not here:", err)
	}
	out, _ := splicectl(t, cli.ExitOK, "demo", "-scenario", "questions", "-model", model, "-requests", "2", "-quiet", "--json")
	var r struct{ Questions *ragdemo.Report }
	if err := json.Unmarshal([]byte(out), &r); err != nil || r.Questions == nil {
		t.Fatalf("%v: %s", err, out)
	}
	if q := r.Questions; q.Requests != 2 || len(q.Answers) != 2 || q.Answers[0].Ways[0].Answer == "" || q.Restart == nil || q.Restart.Failed() != nil {
		t.Errorf("%s", out)
	}
}

func TestDemoSaysThatThereIsNoTrainedModel(t *testing.T) {
	out, errs := splicectl(t, cli.ExitOK, "demo", "-scenario", "questions", "-quiet", "--json")
	if strings.TrimSpace(out) != "{}" || !strings.Contains(errs, "no trained model") {
		t.Errorf("%s%s", out, errs)
	}
	_, errs = splicectl(t, cli.ExitFailed, "demo", "-scenario", "questions", "-model", t.TempDir(), "-quiet")
	if !strings.Contains(errs, "config.json") {
		t.Errorf("%s", errs)
	}
}

func TestDemoWithoutAKill(t *testing.T) {
	out, _ := splicectl(t, cli.ExitOK, "demo", "-scenario", "rag,chat", "-requests", "1", "-turns", "4", "-no-kill", "-quiet", "--json")
	var r struct {
		ragdemo.Report
		Chat *chatdemo.Report
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil || r.Requests != 1 || r.Restart != nil {
		t.Errorf("%v: %s", err, out)
	}
	if c := r.Chat; c == nil || c.Failed() != nil || c.Prompts != 4 || c.Way(chatdemo.WayAdvised).ReusedTokens == 0 {
		t.Errorf("chat: %+v", c)
	}
}

// The seed's kills come late enough that something is acknowledged at all levels.
func TestTortureOfADaemon(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "kept")
	out, errs := splicectl(t, cli.ExitOK, "torture", "-loops", "2", "-power", "3", "-seed", tortureSeed, "-dir", dir, "--json")
	var r torture.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	if bad := r.Failures(); bad != nil || r.Loops != 2 || r.PowerCrashes != 3 || r.SyncedAcked == 0 || r.LoggedAcked == 0 || len(r.Rounds) != 3 || r.ReadBack == 0 {
		t.Errorf("%q: %s", bad, out)
	}
	if log, err := os.ReadFile(filepath.Join(dir, "acknowledged.log")); err != nil ||
		strings.Count(string(log), "\n") != r.SyncedAcked+r.LoggedAcked+r.MemoryAcked {
		t.Errorf("the log of acknowledgements has other lines than were counted: %v\n%s", err, log)
	}
	if !strings.Contains(errs, "loop 2 of 2") {
		t.Errorf("no progress: %s", errs)
	}
	_, errs = splicectl(t, cli.ExitFailed, "torture", "-loops", "1", "-dir", dir)
	if !strings.Contains(errs, "is not empty") {
		t.Errorf("a directory that is in use: %s", errs)
	}
}

const tortureSeed = "16"

// A soak too short for slopes: what clients of all kinds leave behind is right.
func TestSoakOfADaemon(t *testing.T) {
	out, errs := splicectl(t, cli.ExitOK, "torture", "-soak", "6s", "-every", "2s", "-seed", tortureSeed, "--json")
	var r torture.SoakReport
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	if bad := r.Failures(); bad != nil || r.Read == 0 || r.ReadBytes == 0 || r.Lies == 0 || len(r.Samples) == 0 || len(r.Slopes) != 10 {
		t.Errorf("%q: %s", bad, out)
	}
	for _, role := range []string{"come", "die", "stall", "lie"} {
		if r.Visitors[role] == 0 {
			t.Errorf("nobody came to %s", role)
		}
	}
	for i, s := range r.Samples {
		if s.RSS <= s.Private || s.Private <= 0 || s.Descriptors < 3 || s.Goroutines < 1 {
			t.Errorf("sample %d: %+v", i, s)
		}
	}
	if !strings.Contains(errs, "steps/s") {
		t.Errorf("no progress: %s", errs)
	}
}

func TestDemoRefusesWrongUsage(t *testing.T) {
	splicectl(t, cli.ExitUsage, "demo", "-seam", "0")
	splicectl(t, cli.ExitUsage, "demo", "-scenario", "rag,golf")
	splicectl(t, cli.ExitUsage, "demo", "-turns", "-1")
	splicectl(t, cli.ExitUsage, "demo", "extra")
}

// publish puts one segment of a small model and answers its key.
func publish(t *testing.T, socket string) api.Digest {
	t.Helper()
	id, err := profile.FromConfig([]byte(smallConfig), profile.ConfigOptions{Model: "small", Weights: [32]byte{1}})
	if err != nil {
		t.Fatal(err)
	}
	p, err := profile.New(id)
	if err != nil {
		t.Fatal(err)
	}
	client, err := connector.Open(connector.Options{Socket: socket, Name: "publisher"})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := client.WaitAttached(t.Context()); err != nil {
		t.Fatal(err)
	}
	m, err := client.Register(p, connector.Binding{Engine: "test 1"})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	spec, tokens := profile.FirstSpec(3), []uint32{1, 2, 3}
	fill := func(_ profile.Part, _ int, _ int64, dst []byte) error { clear(dst); return nil }
	if _, err := m.Put(t.Context(), &connector.PutQuery{Spec: spec, Tokens: tokens, Source: connector.Source{Fill: fill}}); err != nil {
		t.Fatal(err)
	}
	key, ok := m.SegmentKey(spec, tokens)
	if !ok {
		t.Fatal("no salt")
	}
	return api.Digest(key)
}

func TestSegmentIsListedInspectedAndRemoved(t *testing.T) {
	d := daemonForTest(t)
	key := publish(t, d.Socket)
	out, _ := splicectl(t, cli.ExitOK, "ls", "-admin", d.Admin, "-long", "-tenant", "default")
	if !strings.Contains(out, key.String()) || !strings.Contains(out, "small") {
		t.Errorf("ls:\n%s", out)
	}
	for filter, want := range map[string]int{key.String()[:7]: 1, "": 1, flip(key).String()[:1]: 0} {
		out, _ := splicectl(t, cli.ExitOK, "ls", "--json", "-admin", d.Admin, "-key-prefix", filter)
		var v listed[api.Segment]
		if err := json.Unmarshal([]byte(out), &v); err != nil || len(v.Items) != want {
			t.Errorf("prefix %q: %d items, want %d (%v)", filter, len(v.Items), want, err)
		}
	}
	out, _ = splicectl(t, cli.ExitOK, "inspect", key.String()[:12], "--json", "-admin", d.Admin)
	var s api.SegmentDetail
	if err := json.Unmarshal([]byte(out), &s); err != nil || s.Key != key || s.Publisher != "publisher" || s.Tokens != 3 {
		t.Errorf("inspect: %v %s", err, out)
	}
	// Two linear layers with T, S and convolution tail, two of attention with K and V.
	if len(s.Parts) != 2*3+2*2 || s.State != "published" || s.Role != "first" || !slices.Equal(s.Tiers, []string{"dram"}) || s.Level != api.LevelMemory {
		t.Errorf("inspect: %d parts of %+v", len(s.Parts), s.Segment)
	}
	if out, _ = splicectl(t, cli.ExitOK, "inspect", key.String(), "-admin", d.Admin); !strings.Contains(out, "conv") {
		t.Errorf("inspect:\n%s", out)
	}
	if _, err := d.API().Remove(t.Context(), key, false); err != nil {
		t.Error(err)
	}
	splicectl(t, cli.ExitFailed, "inspect", key.String(), "-admin", d.Admin)
}

func TestWhatAnEngineToldIsShown(t *testing.T) {
	d := daemonForTest(t)
	splicectl(t, cli.ExitOK, "demo", "-scenario", "rag", "-requests", "1", "-quiet", "-socket", d.Socket)
	out, _ := splicectl(t, cli.ExitOK, "ls", "requests", "--json", "-admin", d.Admin)
	var v listed[api.Request]
	if err := json.Unmarshal([]byte(out), &v); err != nil || len(v.Items) == 0 {
		t.Fatalf("ls requests: %v %s", err, out)
	}
	out, _ = splicectl(t, cli.ExitOK, "trace", "--json", "-admin", d.Admin)
	var r api.Request
	if err := json.Unmarshal([]byte(out), &r); err != nil || r.ID != v.Items[0].ID || r.Prompt == 0 || len(r.Spans) == 0 || uint64(r.Spans[len(r.Spans)-1].End) != r.Prompt {
		t.Errorf("trace: %v %s", err, out)
	}
	out, _ = splicectl(t, cli.ExitOK, "usage", "--json", "-admin", d.Admin)
	var u listed[api.Usage]
	if err := json.Unmarshal([]byte(out), &u); err != nil || len(u.Items) != 1 || u.Items[0].Requests != uint64(len(v.Items)) {
		t.Errorf("usage: %v %s", err, out)
	}
	hit := fmt.Sprintf("%.1f %%", 100*u.Items[0].HitRatio())
	for line, texts := range map[string][]string{
		"stats": {"token hit ratio  " + hit}, "trace": {"tokens segments placed", "computed at joins"}, "usage": {hit}, "ls tenants": {hit},
	} {
		out, _ := splicectl(t, cli.ExitOK, append(strings.Fields(line), "-admin", d.Admin)...)
		for _, text := range texts {
			if !strings.Contains(out, text) {
				t.Errorf("%s has no %q:\n%s", line, text, out)
			}
		}
	}
	if _, errs := splicectl(t, cli.ExitFailed, "usage", "-tenant", "nobody", "-admin", d.Admin); !strings.Contains(errs, "no such tenant") {
		t.Errorf("%s", errs)
	}
}

func flip(d api.Digest) api.Digest {
	d[0] ^= 0xff
	return d
}
