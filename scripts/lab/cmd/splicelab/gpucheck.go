package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/spliced-kv/spliced/api/cmd/cli"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/scripts/lab/gpucheck"
)

// The hidden commands that a check starts as processes: gpuCheckPart runs one part, and
// gpuCheckChild is the second process of a part.
const (
	gpuCheckChild = "gpu-check-child"
	gpuCheckPart  = "gpu-check-part"
)

// gpuCheckFile is the report's name in a directory.
const gpuCheckFile = "gpu-check.json"

type gpuCheckFlags struct {
	gpucheck.Options
	Daemon string // path of spliced
	Model  string // directory of a small model
	sizes  string
	only   string
	quiet  bool
}

func gpuCheckCommand() cli.Command {
	return cli.Command{
		Name: "gpu-check", Group: "check", Synopsis: "[flags] [FILE]",
		Summary: "Check a GPU: kernels, speed, shared memory, ordering between processes",
		About: `Compares every kernel with the CPU on random inputs. Times compose, rotate, replay and
digests, interleaved with plain copies of as many bytes, and copies to and from the GPU,
interleaved with raw pinned copies. A second process maps this process's memory in both
ways, exchanges sequence numbers under load and measures its own copy rate. A temporary
daemon shares GPU memory with this process as with an engine. With --python, torch maps
memory of this process, and public gated delta kernels are compared with those of spliced.

Each part runs in its own process with its own time limit, so that a crash or a hang is
one failed row. After every part the report is written as JSON to FILE, or to gpu-check.json
in FILE if that is a directory; --json prints it instead of the table. The GPU has to be
idle. Times with --sizes small are not meaningful.

Exit status 1: a check failed or a speed is below its minimum. 3: no driver or no GPU.`,
		Examples: []string{"", "--json gpu-check.json", "--device GPU-8a2f4c1e-... --python python3", "--sizes small --json"},
		Setup: func(fs *pflag.FlagSet) func(context.Context, *cli.Call) error {
			var f gpuCheckFlags
			fs.StringVar(&f.Library, "library", "", "`path` of the CUDA driver library (default libcuda.so.1)")
			fs.StringVar(&f.Device, "device", "", "`UUID` of the GPU (default: the first)")
			fs.Uint64Var(&f.Seed, "seed", 0, "`seed` of the inputs; 0 = a random one, which the report names")
			fs.StringVar(&f.sizes, "sizes", "full", "`sizes` of the inputs: full (some GiB, minutes) or small (for tests)")
			fs.StringVar(&f.Python, "python", "", "Python `interpreter` for the checks with torch (default: skip these checks)")
			fs.StringVar(&f.PythonPath, "python-path", "connector/python/src", "`directory` that holds spliced_connector")
			fs.StringVar(&f.Scripts, "scripts", "scripts/gpu-check", "`directory` of the scripts for the checks with torch")
			fs.StringVar(&f.Model, "model", "scripts/tinyhybrid/model", "`directory` of the small model that the checks with two engines use")
			fs.DurationVar(&f.Total, "time", gpucheck.StandardTime, "maximum `time` of all parts together")
			fs.StringVar(&f.only, "only", "", "run only these `parts`, separated by commas (default: all)")
			fs.StringVar(&f.Daemon, "spliced", "", "`path` of the spliced program (default: next to this program, or in PATH)")
			fs.BoolVar(&f.quiet, "quiet", false, "print no progress on standard error")
			return f.run
		},
	}
}

func (f *gpuCheckFlags) run(ctx context.Context, c *cli.Call) error {
	switch {
	case len(c.Args) > 1:
		return cli.Usagef("want one file at most, got %q", c.Args)
	case f.sizes == "full":
		f.Sizes = gpucheck.Full()
	case f.sizes == "small":
		f.Sizes = gpucheck.Small()
	default:
		return cli.Usagef("no sizes %q, want full or small", f.sizes)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for f.Seed == 0 {
		f.Seed = rand.Uint64()
	}
	f.Commit, f.Self, f.Stderr = commit, []string{self, gpuCheckChild}, c.Stderr
	f.Also, f.Isolated, f.Save = f.parts(), f.isolated, f.save(c)
	if f.only != "" {
		f.Only = strings.Split(f.only, ",")
	}
	if !f.quiet {
		start := time.Now()
		f.Progress = func(next string, limit time.Duration) {
			fmt.Fprintf(c.Stderr, "%4.0f s  %s, %.0f s at most\n", time.Since(start).Seconds(), next, limit.Seconds())
		}
	}
	report, err := gpucheck.Run(ctx, f.Options)
	if report == nil {
		if errors.Is(err, gpuipc.ErrUnavailable) {
			err = cli.StatusError{Status: cli.ExitRefused, Err: fmt.Errorf("nothing to check on: %w", err)}
		}
		return err
	}
	if err := errors.Join(err, f.show(c, report)); err != nil {
		return err
	}
	if !report.OK() {
		return cli.ErrFailed
	}
	return nil
}

// isolated returns a command of this program that runs one part.
func (f *gpuCheckFlags) isolated(o *gpucheck.Options, part string) (*exec.Cmd, error) {
	b, err := json.Marshal(&gpuCheckFlags{Options: *o, Daemon: f.Daemon, Model: f.Model})
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(o.Self[0], gpuCheckPart, part)
	cmd.Stdin = bytes.NewReader(b)
	return cmd, nil
}

// save returns a function that writes the report to the named file, atomically.
func (f *gpuCheckFlags) save(c *cli.Call) func(*gpucheck.Report) error {
	if len(c.Args) == 0 {
		return nil
	}
	file := c.Args[0]
	if info, err := os.Stat(file); err == nil && info.IsDir() {
		file = filepath.Join(file, gpuCheckFile)
	}
	module := kernelModule()
	return func(r *gpucheck.Report) error {
		if !strings.HasSuffix(r.Driver, module) {
			r.Driver += module
		}
		b, err := json.MarshalIndent(r, "", "  ")
		if err != nil {
			return err
		}
		next := file + ".next"
		if err := os.WriteFile(next, append(b, '\n'), 0o644); err != nil {
			return err
		}
		return os.Rename(next, file)
	}
}

func (f *gpuCheckFlags) show(c *cli.Call, r *gpucheck.Report) error {
	if c.JSON && len(c.Args) == 0 {
		return c.Document(r)
	}
	return r.Table(c.Stdout)
}

// kernelModule returns the version of NVIDIA's kernel module, as ", 570.86.15"; empty if it
// cannot be read.
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

// gpuCheckChildCommand returns the second process of a check.
func gpuCheckChildCommand() cli.Command {
	return cli.Command{
		Name: gpuCheckChild, Summary: "The other side of descriptor 3 (started by gpu-check)", Hidden: true,
		Setup: func(*pflag.FlagSet) func(context.Context, *cli.Call) error {
			return func(ctx context.Context, _ *cli.Call) error { return gpucheck.Child(ctx) }
		},
	}
}

// gpuCheckPartCommand returns the command of the process that runs one part, or several parts
// without separate time limits. It reads options from standard input and writes rows to standard
// output.
func gpuCheckPartCommand() cli.Command {
	return cli.Command{
		Name: gpuCheckPart, Summary: "Parts of a check (started by gpu-check)", Hidden: true,
		Setup: func(*pflag.FlagSet) func(context.Context, *cli.Call) error {
			return func(ctx context.Context, c *cli.Call) error {
				var f gpuCheckFlags
				if err := json.NewDecoder(os.Stdin).Decode(&f); err != nil {
					return err
				}
				f.Also, f.Stderr = f.parts(), c.Stderr
				var failed []error
				for _, part := range c.Args {
					failed = append(failed, gpucheck.RunPart(ctx, &f.Options, part, c.Stdout))
				}
				return errors.Join(failed...)
			}
		},
	}
}
