package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spliced-kv/spliced/scripts/lab/bench"
	"github.com/spliced-kv/spliced/scripts/lab/gpucheck"
	"github.com/spliced-kv/spliced/scripts/lab/resident"
)

// parts returns the parts that package gpucheck does not have: those with a daemon, with
// engines, and with external tools.
func (f *gpuCheckFlags) parts() []gpucheck.Part {
	o := resident.Options{Daemon: f.Daemon, Library: f.Library, Device: f.Device, Seed: f.Seed, Sizes: f.Sizes,
		Python: f.Python, PythonPath: f.PythonPath, Scripts: f.Scripts, Model: f.Model}
	out := append([]gpucheck.Part{resident.Part(o), resident.Placing(o)}, resident.OfEngines(o)...)
	out = append(out, gpucheck.Part{Name: "many cores", Limit: 60 * time.Second, Run: f.manyCores})
	for _, tool := range []string{"memcheck", "racecheck", "synccheck"} {
		run := func(ctx context.Context, r *gpucheck.Report) error { return f.sanitize(ctx, r, tool) }
		out = append(out, gpucheck.Part{Name: sanitizerPart(tool), Limit: 25 * time.Second, Run: run})
	}
	return out
}

// manyCores adds the rows of the benchmark suite scale, because machines with GPUs have more
// cores than most.
func (f *gpuCheckFlags) manyCores(ctx context.Context, r *gpucheck.Report) error {
	suite := "scale"
	if f.Sizes == gpucheck.Small() {
		suite = "scale-smoke"
	}
	var failed []error
	for _, section := range bench.SectionNames(suite) { // so that a failing section loses no rows of the others
		found, err := bench.Run(ctx, bench.Options{Suite: suite, Daemon: f.Daemon, Commit: f.Commit, Only: []string{section}})
		failed = append(failed, err)
		if found == nil {
			continue
		}
		for _, row := range found.Rows {
			r.Add(gpucheck.Row{Name: "scale: " + row.Name, Value: row.Value, Unit: row.Unit, Limit: row.Limit, Ratio: row.Ratio, Bar: row.Bar, OK: row.OK})
		}
		for _, skipped := range found.Skipped {
			r.Skip("scale: "+skipped.Name, skipped.Reason)
		}
	}
	return errors.Join(failed...)
}

func sanitizerPart(tool string) string { return "compute-sanitizer: " + tool }

// sanitizerFound is the exit status that the sanitizer is set to use for findings.
const sanitizerFound = 86

// sanitize runs all kernels on small inputs under NVIDIA's compute-sanitizer, if it is
// installed.
func (f *gpuCheckFlags) sanitize(ctx context.Context, r *gpucheck.Report, tool string) error {
	name := sanitizerPart(tool)
	path := sanitizer()
	if path == "" {
		r.Skip(name, "compute-sanitizer is neither in PATH nor with CUDA in /usr/local or /opt")
		return nil
	}
	part := *f
	part.Sizes, part.Python, part.Only = gpucheck.Small(), "", nil
	options, err := json.Marshal(&part)
	if err != nil {
		return err
	}
	args := []string{"--tool", tool, "--error-exitcode", fmt.Sprint(sanitizerFound), f.Self[0], gpuCheckPart}
	cmd := exec.CommandContext(ctx, path, append(args, gpucheck.KernelParts()...)...)
	cmd.Stdin, cmd.WaitDelay = bytes.NewReader(options), time.Second
	out, err := cmd.CombinedOutput()
	ran := bytes.Contains(out, []byte(`"name"`)) // a row in the output: kernels have run under the sanitizer
	switch words := summary(out); {
	case err == nil && ran:
		r.Holds(name, nil)
	case cmd.ProcessState != nil && cmd.ProcessState.ExitCode() == sanitizerFound:
		r.Holds(name, fmt.Errorf("it found something: %s", words))
	default:
		return fmt.Errorf("%w: %s", errors.Join(err, context.Cause(ctx)), words)
	}
	return nil
}

// sanitizer returns the path of the program in the usual places of CUDA.
func sanitizer() string {
	if path, err := exec.LookPath("compute-sanitizer"); err == nil {
		return path
	}
	for _, pattern := range []string{"/usr/local/cuda*/bin/compute-sanitizer", "/opt/nvidia/compute-sanitizer/compute-sanitizer",
		"/usr/local/cuda*/compute-sanitizer/compute-sanitizer", "/opt/cuda/bin/compute-sanitizer"} {
		found, _ := filepath.Glob(pattern)
		for _, path := range found {
			if info, err := os.Stat(path); err == nil && info.Mode()&0o111 != 0 {
				return path
			}
		}
	}
	return ""
}

// summary returns the sanitizer's own output, without the rows of the inspected program: the
// first lines, which name the error and the kernel, and the last line.
func summary(out []byte) string {
	const most = 6
	var said []string
	for line := range strings.Lines(string(out)) {
		if line = strings.TrimSpace(strings.TrimLeft(line, "= ")); line != "" && !strings.HasPrefix(line, "{") {
			said = append(said, line)
		}
	}
	if len(said) > most {
		said = append(said[:most-1:most-1], "...", said[len(said)-1])
	}
	return strings.Join(said, "; ")
}
