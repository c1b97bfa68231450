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

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/api/child"
	"github.com/spliced-kv/spliced/api/cmd/cli"
	"github.com/spliced-kv/spliced/scripts/lab/bench"
	"github.com/spliced-kv/spliced/scripts/lab/refengine/chatdemo"
	"github.com/spliced-kv/spliced/scripts/lab/refengine/ragdemo"
	"github.com/spliced-kv/spliced/scripts/lab/torture"
)

var binDir string // of programs built for these tests; removed by TestMain

func TestMain(m *testing.M) {
	code := m.Run()
	if binDir != "" {
		_ = os.RemoveAll(binDir) // in the temporary directory anyway
	}
	os.Exit(code)
}

// root is the repository, from this folder.
const root = "../../../.."

// built compiles the three programs once.
var built = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "splicelab-test-")
	if err != nil {
		return "", err
	}
	binDir = dir
	for in, packages := range map[string][]string{root: {"./daemon/cmd/spliced", "./api/cmd/splicectl"}, ".": {"."}} {
		cmd := exec.Command("go", append([]string{"build", "-o", dir + "/"}, packages...)...)
		cmd.Dir, cmd.Env = in, append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", errors.Join(err, errors.New(string(out)))
		}
	}
	return dir, nil
})

// splicectl runs the built splicectl, which starts the built splicelab.
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
	if !strings.Contains(errs, "rag: request 1") {
		t.Errorf("no progress: %s", errs)
	}
}

func TestDemoAsksATrainedModel(t *testing.T) {
	const model = root + "/scripts/tinyhybrid/model"
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

func TestWhatAnEngineToldIsShown(t *testing.T) {
	d := daemonForTest(t)
	splicectl(t, cli.ExitOK, "demo", "-scenario", "rag", "-requests", "1", "-quiet", "-socket", d.Socket)
	out, _ := splicectl(t, cli.ExitOK, "ls", "requests", "--json", "-admin", d.Admin)
	var v struct{ Items []api.Request }
	if err := json.Unmarshal([]byte(out), &v); err != nil || len(v.Items) == 0 {
		t.Fatalf("ls requests: %v %s", err, out)
	}
	out, _ = splicectl(t, cli.ExitOK, "trace", "--json", "-admin", d.Admin)
	var r api.Request
	if err := json.Unmarshal([]byte(out), &r); err != nil || r.ID != v.Items[0].ID || r.Prompt == 0 || len(r.Spans) == 0 || uint64(r.Spans[len(r.Spans)-1].End) != r.Prompt {
		t.Errorf("trace: %v %s", err, out)
	}
	out, _ = splicectl(t, cli.ExitOK, "usage", "--json", "-admin", d.Admin)
	var u struct{ Items []api.Usage }
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
