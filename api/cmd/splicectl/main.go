// Command splicectl shows, checks and measures a spliced node. Each command is
// one file here; what they do lives in libraries and in internal/.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spliced-kv/spliced/api/cmd/splicectl/internal/terminal"
)

// Set by the linker.
var (
	version = "unknown"
	commit  = "unknown"
	date    = "unknown"
)

// Exit codes.
const (
	exitOK      = 0
	exitFailed  = 1 // the command could not do it, or found something wrong
	exitUsage   = 2 // the command line was wrong
	exitRefused = 3 // disk: nothing was looked at; gpu-check has the same
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// command is one subcommand.
type command struct {
	name     string
	synopsis string // after the name: "[flags] KEY"
	summary  string
	about    string   // more than the summary, for its help; may be empty
	examples []string // without the program's name
	// setup declares flags and returns what runs after parsing.
	setup  func(fs *flag.FlagSet) func(ctx context.Context, c *call) error
	hidden bool // started by other commands of ours
}

// call is one invocation: positional arguments and where output goes.
type call struct {
	args   []string
	stdout io.Writer
	stderr io.Writer
	json   bool
}

func commands() []command {
	return []command{
		demoCommand(), demoClusterCommand(), replayCommand(), simulateCommand(), benchCommand(), tortureCommand(), diskCommand(), profileCommand(), lsCommand(), inspectCommand(), statsCommand(), clusterCommand(), locateCommand(), doctorCommand(),
		gpuCheckCommand(), versionCommand(), gpuCheckChildCommand(), gpuCheckPartCommand(), echoCommand(), victimCommand(), loadCommand(), peerCommand(), crowdCommand(),
	}
}

// errFailed ends a command whose output already says what is wrong.
var errFailed = errors.New("failed")

// usageError is a mistake on the command line.
type usageError struct{ text string }

func (e usageError) Error() string { return e.text }

// statusError ends a command with a status of its own.
type statusError struct {
	status int
	error
}

func (e statusError) Unwrap() error { return e.error }

func usagef(format string, a ...any) error { return usageError{fmt.Sprintf(format, a...)} }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		printUsage(stderr)
		return exitUsage
	}
	switch args[0] {
	case "-h", "-help", "--help", "help":
		if len(args) > 1 && args[0] == "help" {
			return run(ctx, []string{args[1], "-h"}, stdout, stderr)
		}
		printUsage(stdout)
		return exitOK
	case "-version", "--version":
		args = []string{"version"}
	}
	for _, c := range commands() {
		if c.name == args[0] {
			return c.run(ctx, args[1:], stdout, stderr)
		}
	}
	fmt.Fprintf(stderr, "splicectl: no command %q; splicectl -h lists them\n", args[0])
	return exitUsage
}

func (c command) run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet(c.name, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	do := c.setup(fs)
	call := &call{stdout: terminal.NewWriter(stdout), stderr: stderr}
	if c.hidden {
		call.stdout = stdout // read by a program
	}
	fs.BoolVar(&call.json, "json", false, "print one JSON document")
	var err error
	if call.args, err = parse(fs, args); err == nil {
		err = do(ctx, call)
	} else if errors.Is(err, flag.ErrHelp) {
		c.printHelp(stdout, fs)
		return exitOK
	} else {
		err = usageError{err.Error()}
	}
	var usage usageError
	var status statusError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "splicectl %s: %s\nusage: splicectl %s %s\n", c.name, usage.text, c.name, c.synopsis)
		return exitUsage
	case !errors.Is(err, errFailed):
		fmt.Fprintf(stderr, "splicectl %s: %s\n", c.name, terminal.Text(explain(err)))
	}
	if errors.As(err, &status) {
		return status.status
	}
	return exitFailed
}

// parse lets flags stand before, between and after arguments; after "--"
// everything is an argument.
func parse(fs *flag.FlagSet, args []string) ([]string, error) {
	var positional []string
	for {
		if err := fs.Parse(args); err != nil {
			return nil, err
		}
		rest := fs.Args()
		if at := len(args) - len(rest); at > 0 && args[at-1] == "--" {
			return append(positional, rest...), nil
		}
		if len(rest) == 0 {
			return positional, nil
		}
		positional, args = append(positional, rest[0]), rest[1:]
	}
}

func printUsage(w io.Writer) {
	fmt.Fprint(w, "splicectl shows, checks and measures a spliced node.\n\nusage: splicectl COMMAND [flags]\n\n")
	for _, c := range commands() {
		if !c.hidden {
			fmt.Fprintf(w, "  %-9s %s\n", c.name, c.summary)
		}
	}
	fmt.Fprint(w, "\nEach command has -h with examples, and --json.\n"+
		"Exit codes: 0 done, 1 failed or something is wrong, 2 wrong usage; disk -h and gpu-check -h tell one more.\n")
}

func (c command) printHelp(w io.Writer, fs *flag.FlagSet) {
	fmt.Fprintf(w, "%s.\n\nusage: splicectl %s %s\n\n", c.summary, c.name, c.synopsis)
	if c.about != "" {
		fmt.Fprintf(w, "%s\n\n", c.about)
	}
	fs.SetOutput(w)
	fs.PrintDefaults()
	fmt.Fprint(w, "\nexamples:\n")
	for _, e := range c.examples {
		fmt.Fprintf(w, "  splicectl %s\n", strings.TrimSpace(c.name+" "+e))
	}
}
