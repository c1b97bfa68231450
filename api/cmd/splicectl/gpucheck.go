package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/spliced-kv/spliced/api/cmd/splicectl/internal/resident"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda/gpucheck"
)

// gpuCheckChild is the hidden command of the second process of a check.
const gpuCheckChild = "gpu-check-child"

// gpuCheckTime bounds a run; one on a GPU takes a few minutes.
const gpuCheckTime = 15 * time.Minute

type gpuCheckFlags struct {
	gpucheck.Options
	sizes  string
	daemon string
	quiet  bool
}

func gpuCheckCommand() command {
	return command{
		name: "gpu-check", synopsis: "[flags] [FILE]",
		summary: "Check a GPU: kernels against the CPU, speed beside its limits, memory and order between processes",
		about: `Every kernel runs on fresh random inputs and is compared with the CPU. Compose, rotate,
replay and digests are timed beside plain copies of as many bytes, taken in turn with them, on
inputs that no cache holds; copies between memory and the GPU beside raw pinned copies. A second
process maps memory of this one by both ways, exchanges sequence numbers with it under load, and
has its rate measured beside work of this one. A temporary daemon shares memory of the GPU to this
process as to an engine. With -python, torch maps memory of this process, and a gated delta rule of
other people's is compared with ours, where they are installed.

FILE gets the report as JSON beside the table; --json prints it instead of the table. The GPU has
to be idle for figures that mean something. With -sizes small the figures mean nothing on any GPU.

Exit status 1: a check failed or a bar was missed. 3: no driver or no GPU, nothing was checked.`,
		examples: []string{"", "--json gpu-check.json", "-device GPU-8a2f4c1e-... -python python3", "-sizes small --json"},
		setup: func(fs *flag.FlagSet) func(context.Context, *call) error {
			var f gpuCheckFlags
			fs.StringVar(&f.Library, "library", "", "`path` of the driver (default libcuda.so.1)")
			fs.StringVar(&f.Device, "device", "", "`UUID` of the GPU (default: the first)")
			fs.Uint64Var(&f.Seed, "seed", 0, "seed of the inputs; 0 = drawn, and in the report")
			fs.StringVar(&f.sizes, "sizes", "full", "`sizes`: full needs some GiB on the GPU and takes minutes, small is for tests")
			fs.StringVar(&f.Python, "python", "", "`interpreter` for the checks with torch (default: they are skipped)")
			fs.StringVar(&f.PythonPath, "python-path", "connector/python/src", "`directory` that holds spliced_connector")
			fs.StringVar(&f.Scripts, "scripts", "scripts/gpu-check", "`directory` with torch_view.py and gated_delta.py")
			fs.StringVar(&f.daemon, "spliced", "", "`path` of spliced (default: beside this program, or in PATH)")
			fs.BoolVar(&f.quiet, "quiet", false, "no progress on standard error")
			return f.run
		},
	}
}

func (f *gpuCheckFlags) run(ctx context.Context, c *call) error {
	switch {
	case len(c.args) > 1:
		return usagef("want one file at most, got %q", c.args)
	case f.sizes == "full":
		f.Sizes = gpucheck.Full()
	case f.sizes == "small":
		f.Sizes = gpucheck.Small()
	default:
		return usagef("no sizes %q, want full or small", f.sizes)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for f.Seed == 0 {
		f.Seed = rand.Uint64()
	}
	f.Commit, f.Self = commit, []string{self, gpuCheckChild}
	f.Also = []gpucheck.Part{resident.Part(resident.Options{
		Daemon: f.daemon, Library: f.Library, Device: f.Device, Seed: f.Seed, Sizes: f.Sizes})}
	if !f.quiet {
		start := time.Now()
		f.Progress = func(next string) { fmt.Fprintf(c.stderr, "%4.0f s  %s\n", time.Since(start).Seconds(), next) }
	}
	ctx, stop := context.WithTimeout(ctx, gpuCheckTime)
	defer stop()
	report, err := gpucheck.Run(ctx, f.Options)
	if report == nil {
		if errors.Is(err, gpuipc.ErrUnavailable) {
			err = statusError{exitRefused, fmt.Errorf("nothing to check on: %w", err)}
		}
		return err
	}
	report.Driver += kernelModule()
	if err := errors.Join(err, f.show(c, report)); err != nil {
		return err
	}
	if !report.OK() {
		return errFailed
	}
	return nil
}

func (f *gpuCheckFlags) show(c *call, r *gpucheck.Report) error {
	if len(c.args) == 1 {
		b, err := json.MarshalIndent(r, "", "  ")
		if err == nil {
			err = os.WriteFile(c.args[0], append(b, '\n'), 0o644)
		}
		if err != nil {
			return err
		}
		return r.Table(c.stdout)
	}
	if c.json {
		return printJSON(c.stdout, r)
	}
	return r.Table(c.stdout)
}

// kernelModule is the version of NVIDIA's kernel module, as ", 570.86.15"; empty where it cannot
// be read.
func kernelModule() string {
	b, err := os.ReadFile("/proc/driver/nvidia/version")
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(b), "\n")
	for _, word := range strings.Fields(line) {
		if strings.Count(word, ".") > 0 && strings.Trim(word, "0123456789.") == "" {
			return ", " + word
		}
	}
	return ""
}

// gpuCheckChildCommand is the second process of a check.
func gpuCheckChildCommand() command {
	return command{
		name: gpuCheckChild, summary: "The other side of descriptor 3 (started by gpu-check)", hidden: true,
		setup: func(*flag.FlagSet) func(context.Context, *call) error {
			return func(ctx context.Context, _ *call) error { return gpucheck.Child(ctx) }
		},
	}
}
