// Command splicectl shows, checks, steers and measures spliced nodes. Each command is
// one file here; what they do lives in libraries and in internal/.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/pflag"
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
	group    string // one of groups
	synopsis string // after the name: "[flags] KEY"; flagsOnly = it takes no arguments
	summary  string
	about    string   // more than the summary, for its help; may be empty
	examples []string // without the program's name
	words    []string // what the first argument may be, for completion
	listing  bool     // its output has the form wide
	screen   bool     // its output has no forms
	// setup declares flags and returns what runs after parsing; nil where there are only
	// subcommands.
	setup  func(fs *pflag.FlagSet) func(ctx context.Context, c *call) error
	subs   []command
	hidden bool // started by other commands of ours
}

// flagsOnly is the synopsis of a command that takes no arguments.
const flagsOnly = "[flags]"

// groups are how help orders commands.
var groups = []struct{ id, title string }{
	{"look", "See what nodes hold and do:"},
	{"change", "Change it:"},
	{"check", "Check a machine, a GPU, a disk:"},
	{"measure", "Demonstrate and measure:"},
	{"self", "This program:"},
}

func commands() []command {
	return []command{
		statsCommand(), topCommand(), healthCommand(), lsCommand(), inspectCommand(), traceCommand(), usageCommand(), eventsCommand(), clusterCommand(), locateCommand(),
		rmCommand(), pinCommand(), unpinCommand(), flushCommand(), drainCommand(), configCommand(), profileCommand(),
		doctorCommand(), diskCommand(), gpuCheckCommand(),
		demoCommand(), demoClusterCommand(), replayCommand(), simulateCommand(), benchCommand(), tortureCommand(),
		contextCommand(), versionCommand(),
		gpuCheckChildCommand(), gpuCheckPartCommand(), echoCommand(), victimCommand(), loadCommand(), peerCommand(), crowdCommand(), visitorCommand(), manCommand(),
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

// run is the program.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot(stdout, stderr)
	root.SetArgs(normalise(root, args))
	cmd, err := root.ExecuteContextC(ctx)
	return concluded(cmd, err, stderr)
}
