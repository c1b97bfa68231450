package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/spliced-kv/spliced/api/cmd/cli"
	"github.com/spliced-kv/spliced/api/cmd/cli/clitest"
	"github.com/spliced-kv/spliced/policy/goldentest"
)

//go:generate go test . -run Reference -update

// ctl runs the program in this process.
func ctl(t *testing.T, args ...string) (int, string, string) {
	t.Helper()
	var out, errs bytes.Buffer
	code := run(t.Context(), args, &out, &errs)
	return code, out.String(), errs.String()
}

func TestTheReferenceHasEveryCommand(t *testing.T) {
	const path = root + "/docs/splicelab.md"
	var want bytes.Buffer
	want.WriteString("# splicelab\n\nThe commands of splicectl that demonstrate and measure, with their flags. They are another program, splicelab, which splicectl\n" +
		"starts from its own directory or from PATH. This page is written by `make generate`; [splicectl.md](splicectl.md) has the other commands.\n")
	if err := clitest.Reference(&want, program(), "splicectl.md"); err != nil {
		t.Fatal(err)
	}
	page := string(goldentest.File(t, path, want.Bytes(), "the commands differ; run make generate"))
	for _, c := range commands() {
		if heading := "\n## splicectl " + c.Name + "\n"; strings.Contains(page, heading) == c.Hidden {
			t.Errorf("%q is there: %v", heading, !c.Hidden)
		}
	}
}

// Every call that is written down anywhere can be read, with one dash or two.
func TestWhatIsWrittenDownIsStillRead(t *testing.T) {
	if calls := clitest.Written(t, root, program()); calls < 30 {
		t.Errorf("only %d calls were found", calls)
	}
}

func TestEveryCommandHasHelpWithExamplesAndJSON(t *testing.T) {
	for _, c := range commands() {
		if c.Hidden {
			continue
		}
		for _, help := range []string{"-h", "-help", "--help"} {
			code, out, errs := ctl(t, c.Name, help)
			if code != cli.ExitOK || errs != "" {
				t.Errorf("%s %s: exit %d, %s", c.Name, help, code, errs)
			}
			for _, want := range []string{c.Summary, "Usage:\n  splicectl " + c.Name, "Examples:\n  splicectl " + c.Name, "--json", "-o, --output"} {
				if !strings.Contains(out, want) {
					t.Errorf("%s %s lacks %q:\n%s", c.Name, help, want, out)
				}
			}
		}
	}
}

func TestWrongUsageIsTwoAndSaysWhatIsRight(t *testing.T) {
	for _, args := range [][]string{
		{}, {"frobnicate"}, {"ls"}, {"torture", "x"}, {"torture", "-loops", "-1"}, {"torture", "-power", "-2"}, {"torture", "-segments", "0"}, {"torture", "-soak", "1ms"},
		{"torture", "-soak", "1m", "-load", "2"}, {"torture", "-soak", "1m", "-every", "1ms"}, {"torture", "-soak", "1m", "-bound", "0"},
		{"demo", "-nope"}, {"bench", "-o", "wide"},
	} {
		code, out, errs := ctl(t, args...)
		if code != cli.ExitUsage || out != "" || !strings.Contains(errs, "splicectl") {
			t.Errorf("%q: exit %d, out %q, err %q", args, code, out, errs)
		}
	}
	for _, c := range commands() {
		if c.Synopsis != cli.FlagsOnly {
			continue
		}
		if code, out, errs := ctl(t, c.Name, "x"); code != cli.ExitUsage || out != "" || !strings.Contains(errs, `takes no arguments, got ["x"]`) {
			t.Errorf("%s: exit %d\n%s%s", c.Name, code, out, errs)
		}
	}
}

func TestEveryCommandHasAManualPage(t *testing.T) {
	dir := t.TempDir()
	if code, _, errs := ctl(t, "man", dir); code != cli.ExitOK {
		t.Fatalf("exit %d, %s", code, errs)
	}
	var want []string
	for _, c := range commands() {
		if !c.Hidden {
			want = append(want, filepath.Join(dir, "splicectl-"+c.Name+".1"))
		}
	}
	slices.Sort(want)
	got, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	for _, name := range want {
		if text, err := os.ReadFile(name); err != nil || !strings.Contains(string(text), ".SH EXAMPLE") {
			t.Errorf("%s: %v\n%s", name, err, text)
		}
	}
}

// Splicectl lists the commands of this program as this program does, and starts them.
func TestSplicectlStartsEveryCommand(t *testing.T) {
	list, _ := splicectl(t, cli.ExitOK, "-h")
	for _, c := range commands() {
		if c.Name == "man" { // both have it
			continue
		}
		if c.Hidden {
			if _, errs := splicectl(t, cli.ExitUsage, c.Name); !strings.Contains(errs, "no command") {
				t.Errorf("splicectl starts %s: %s", c.Name, errs)
			}
			continue
		}
		if !strings.Contains(list, c.Summary) {
			t.Errorf("splicectl -h lacks the summary of %s", c.Name)
		}
		_, want, _ := ctl(t, c.Name, "-h")
		for _, args := range [][]string{{c.Name, "-h"}, {"help", c.Name}} {
			if got, _ := splicectl(t, cli.ExitOK, args...); got != want {
				t.Errorf("splicectl %q prints\n%s\nwant\n%s", args, got, want)
			}
		}
	}
}

func TestSplicectlHandsOverArgumentsAndExitCodes(t *testing.T) {
	trace := traceFile(t, turns)
	out, _ := splicectl(t, cli.ExitOK, "replay", "-quiet", trace, "-policy", "lru", "--capacity", "1GB", "-o", "json")
	if !strings.Contains(out, `"token_hit_rate":0.625`) {
		t.Errorf("replay: %s", out)
	}
	if _, errs := splicectl(t, cli.ExitFailed, "replay", "-quiet", trace+".absent", "-capacity", "1GB"); !strings.HasPrefix(errs, "splicectl replay: ") {
		t.Errorf("a trace that is absent: %s", errs)
	}
	if _, errs := splicectl(t, cli.ExitUsage, "simulate", "-nope"); !strings.HasPrefix(errs, "splicectl simulate: unknown flag: --nope\nusage: splicectl simulate") {
		t.Errorf("an unknown flag: %s", errs)
	}
	if _, errs := splicectl(t, cli.ExitRefused, "gpu-check", "--library", "/nonexistent/libcuda.so.1"); !strings.Contains(errs, "nothing to check on") {
		t.Errorf("gpu-check without a driver: %s", errs)
	}
	for want, line := range map[string]string{"--suite\n": "bench --sui", "table\njson\nyaml\n": "demo -o "} {
		if out, errs := splicectl(t, cli.ExitOK, append([]string{"__completeNoDesc"}, strings.Split(line, " ")...)...); !strings.HasPrefix(out, want) {
			t.Errorf("%q is completed by %q, %q", line, out, errs)
		}
	}
}

// An interrupt ends the command in good order: the process is the laboratory's own.
func TestSignalsReachTheLaboratory(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs the programs")
	}
	dir, err := built()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(dir, "splicectl"), "simulate", "-nodes", "3", "-segments", "1000", "-duration", "1h")
	errs, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	if _, err := errs.Read(make([]byte, 1)); err != nil { // its progress: it runs
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	_, _ = said.ReadFrom(errs)
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != cli.ExitFailed || !strings.Contains(said.String(), "interrupted") {
		t.Errorf("%v: %s", err, &said)
	}
}

func TestSplicectlSaysWhereTheLaboratoryHasToBe(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs the programs")
	}
	dir, err := built()
	if err != nil {
		t.Fatal(err)
	}
	alone := filepath.Join(t.TempDir(), "splicectl")
	program, err := os.ReadFile(filepath.Join(dir, "splicectl"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(alone, program, 0o755); err != nil {
		t.Fatal(err)
	}
	started := func(path string, args ...string) (string, int) {
		cmd := exec.Command(alone, args...)
		cmd.Env = append(os.Environ(), "PATH="+path)
		out, _ := cmd.CombinedOutput()
		return string(out), cmd.ProcessState.ExitCode()
	}
	for _, args := range [][]string{{"demo"}, {"bench", "-h"}, {"help", "replay"}} {
		if out, code := started("/nonexistent", args...); code != cli.ExitFailed || !strings.Contains(out, "splicelab, the program with this command, is neither next to splicectl nor in PATH") {
			t.Errorf("%q: exit %d, %s", args, code, out)
		}
	}
	if out, code := started("/nonexistent", "__complete", "bench", "--sui"); code != cli.ExitFailed || out != "" {
		t.Errorf("completion: exit %d, %q", code, out)
	}
	if out, code := started(dir, "replay", "-h"); code != cli.ExitOK || !strings.Contains(out, "TRACE is a file") {
		t.Errorf("in PATH: exit %d, %s", code, out)
	}
}
