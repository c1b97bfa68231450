package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/spliced-kv/spliced/api/cmd/cli"
)

// laboratory is the program with the commands for demonstrations and measurements. They are in a
// separate program, since they would make splicectl several times as large.
const laboratory = "splicelab"

// laboratoryCommands returns the commands of the laboratory. When one runs, the laboratory replaces
// this process and gets all arguments.
func laboratoryCommands() []cli.Command {
	list := []cli.Command{
		{Name: "gpu-check", Group: "check", Synopsis: "[flags] [FILE]",
			Summary: "Check a GPU: kernels, speed, shared memory, ordering between processes"},
		{Name: "demo", Group: "measure", Synopsis: cli.FlagsOnly,
			Summary: "Serve RAG requests and conversations with and without the daemon"},
		{Name: "demo-cluster", Group: "measure", Synopsis: cli.FlagsOnly,
			Summary: "Share segments between three daemons and two engines on this machine"},
		{Name: "replay", Group: "measure", Synopsis: "[flags] TRACE",
			Summary: "Replay recorded requests through simulated caches to compare policies"},
		{Name: "simulate", Group: "measure", Synopsis: cli.FlagsOnly,
			Summary: "Simulate the index of a cluster in virtual time, with the daemon's code"},
		{Name: "bench", Group: "measure", Synopsis: cli.FlagsOnly,
			Summary: "Benchmark a temporary daemon and the kernels, next to what the hardware can do"},
		{Name: "torture", Group: "measure", Synopsis: cli.FlagsOnly,
			Summary: "Kill a temporary daemon repeatedly, and check what it acknowledged"},
	}
	for i := range list {
		c := &list[i]
		c.Verbatim = true
		c.Setup = func(*pflag.FlagSet) func(context.Context, *cli.Call) error {
			return func(_ context.Context, call *cli.Call) error {
				return enterLaboratory(append([]string{c.Name}, call.Args...))
			}
		}
	}
	return list
}

// enterLaboratory replaces this process by the laboratory. The laboratory inherits the descriptors,
// receives the signals and determines the exit code. enterLaboratory returns only if the
// replacement fails.
func enterLaboratory(args []string) error {
	path, err := findLaboratory()
	if err != nil {
		return err
	}
	err = syscall.Exec(path, append([]string{laboratory}, args...), os.Environ())
	return fmt.Errorf("start %s: %v", path, err) // not an error of a node, to which explain adds text
}

// findLaboratory looks for the laboratory next to this program, then in PATH.
func findLaboratory() (string, error) {
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), laboratory)
		if info, err := os.Stat(beside); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return beside, nil
		}
	}
	path, err := exec.LookPath(laboratory)
	if err != nil {
		return "", errors.New(laboratory + ", the program with this command, is neither next to splicectl nor in PATH; put it there (`make build` builds both)")
	}
	return path, nil
}

// completesLaboratory reports whether a shell requests completions for arguments of a
// command of the laboratory.
func completesLaboratory(args []string) bool {
	return len(args) > 2 && strings.HasPrefix(args[0], cobra.ShellCompRequestCmd) &&
		slices.ContainsFunc(commands(), func(c cli.Command) bool { return c.Verbatim && c.Name == args[1] })
}
