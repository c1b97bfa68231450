package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/spliced-kv/spliced/api/cmd/cli"
	"github.com/spliced-kv/spliced/gpuipc/cuda/fakecuda"
)

// bundle lays the files of gpu-check out as `make gpu-check-bundle` does, once for
// all tests, which leave it as it is.
func bundle(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("builds and runs the programs")
	}
	dir, err := bundled()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

var bundled = sync.OnceValues(func() (string, error) {
	programs, err := built()
	if err != nil {
		return "", err
	}
	file := filepath.Join(programs, "gpu-check.tar.gz")
	for _, args := range [][]string{
		{root + "/scripts/gpu-check/bundle", programs, file},
		{"tar", "-xzf", file, "-C", programs},
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("%s: %w: %s", args[0], err, out)
		}
	}
	return filepath.Join(programs, "gpu-check"), nil
})

// runBundle runs it in a directory of its own and returns its exit status.
func runBundle(t *testing.T, env []string, args ...string) (code int, dir, out string) {
	t.Helper()
	run := exec.CommandContext(t.Context(), filepath.Join(bundle(t), "run"), args...)
	run.Dir = t.TempDir()
	run.Env = append(os.Environ(), env...)
	b, err := run.CombinedOutput()
	if run.ProcessState == nil {
		t.Fatal(err)
	}
	return run.ProcessState.ExitCode(), run.Dir, string(b)
}

// checkRow is a row as the report promises it.
type checkRow struct {
	Name    string
	Value   *float64
	Unit    *string
	Limit   *float64
	Ratio   *float64
	Bar     string
	OK      *bool
	Note    string
	Skipped bool
}

func TestTheBundleChecksADeviceFromEndToEnd(t *testing.T) {
	library := fakecuda.Build(t)
	env := append(fakecuda.Setup{Dir: t.TempDir()}.Env(library), "PATH="+withSanitizer(t, ""))
	code, dir, out := runBundle(t, env, "--library", library, "--sizes", "small", "--seed", "5", "--time", "30m")
	if code != cli.ExitOK && code != cli.ExitFailed { // bars of speed are missed on a CPU
		t.Fatalf("exit %d\n%s", code, out)
	}
	b, err := os.ReadFile(filepath.Join(dir, "gpu-check.json"))
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var report struct {
		Device, Driver, Date, Commit, Sizes string
		Rows                                []checkRow
	}
	if err := json.Unmarshal(b, &report); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(report.Device, "fake") || report.Driver == "" || report.Date == "" || report.Commit == "" || !strings.HasPrefix(report.Sizes, "small") {
		t.Errorf("the head is %q %q %q %q %q", report.Device, report.Driver, report.Date, report.Commit, report.Sizes)
	}
	names := map[string]int{}
	for _, row := range report.Rows {
		names[row.Name]++
		if row.Name == "" || row.Value == nil || row.Unit == nil || row.OK == nil {
			t.Errorf("an incomplete row: %+v", row)
			continue
		}
		if !strings.Contains(out, row.Name) {
			t.Errorf("the table lacks %q", row.Name)
		}
		if *row.Unit == "yes" && !*row.OK {
			t.Errorf("%s: %s", row.Name, row.Note)
		}
		if row.Skipped && !strings.HasSuffix(row.Name, ".py") && !strings.HasPrefix(row.Name, "engines: ") && !strings.HasPrefix(row.Name, "scale: ") {
			t.Errorf("%s was skipped: %s", row.Name, row.Note)
		}
		if row.Limit != nil && (row.Ratio == nil || *row.Limit <= 0) {
			t.Errorf("%s: limit %v, ratio %v", row.Name, *row.Limit, row.Ratio)
		}
	}
	for _, want := range []string{
		"second process maps memory by descriptor", "second process maps memory by IPC handle", "replay of a buffer: same bits as the CPU",
		"compose by the daemon over a segment on the GPU: as in memory", "acquire of a segment of 0.125 MiB on the GPU, p50", "segments put in place from the GPU: as from memory",
		"rate of a busy neighbour process, alone", "scale: clients_16", "compute-sanitizer: memcheck", "memory: by descriptor, mapped twice in one process",
	} {
		if names[want] != 1 {
			t.Errorf("%d rows %q", names[want], want)
		}
	}
	if t.Failed() {
		t.Log(out)
	}
}

func TestTheBundleSaysThatThereIsNoDriver(t *testing.T) {
	code, dir, out := runBundle(t, nil, "--library", "/nonexistent/libcuda.so.1")
	if code != cli.ExitRefused || !strings.Contains(out, "nothing to check on") {
		t.Errorf("exit %d: %s", code, out)
	}
	if files, _ := filepath.Glob(filepath.Join(dir, "*")); len(files) > 0 {
		t.Errorf("without a driver it left %q", files)
	}
}

// withSanitizer is a PATH with a compute-sanitizer that runs the program that it is given, and then
// does what finding says.
func withSanitizer(t *testing.T, finding string) string {
	t.Helper()
	dir := t.TempDir()
	script := "#!/bin/sh\nshift 4\n\"$@\" || exit\n" + finding + "\n"
	if err := os.WriteFile(filepath.Join(dir, "compute-sanitizer"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir + string(os.PathListSeparator) + os.Getenv("PATH")
}

func TestWhatTheSanitizerFindsIsARow(t *testing.T) {
	library := fakecuda.Build(t)
	path := withSanitizer(t, "echo '========= Invalid __global__ write of size 4 bytes'; exit 86")
	env := append(fakecuda.Setup{Dir: t.TempDir()}.Env(library), "PATH="+path)
	code, _, out := runBundle(t, env, "--library", library, "--sizes", "small", "--time", "30m", "--only", "compute-sanitizer: racecheck")
	if code != cli.ExitFailed || !strings.Contains(out, "it found something: Invalid __global__ write of size 4 bytes") {
		t.Errorf("exit %d\n%s", code, out)
	}
}
