// Package cli is the common part of our command lines: commands with help, examples and
// completion, forms of output, exit codes, progress and manual pages. Programs define the
// commands themselves. A Program may run several times, but not concurrently.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Exit codes.
const (
	ExitOK      = 0
	ExitFailed  = 1 // the command failed, or found a problem
	ExitUsage   = 2 // the command line was wrong
	ExitRefused = 3 // nothing was checked
)

// Program is a command line.
type Program struct {
	Name    string
	Short   string
	Long    string
	Version string
	Groups  []Group // in the order of its help
	// Part is set if another program of the same name lists and starts this program's commands.
	// The other program then has the main manual page and the completion scripts.
	Part     bool
	Commands []Command
	// Explain returns the text of an error with a remedy; nil = errors are printed as they are.
	Explain func(error) string
	// Complete registers the completions of a command's flag values; nil = none.
	Complete func(*cobra.Command, *Command)
}

// Group is a heading of a program's help.
type Group struct{ ID, Title string }

// Command is one subcommand.
type Command struct {
	Name     string
	Group    string // ID of one of the program's groups
	Synopsis string // after the name: "[flags] KEY"; FlagsOnly = no arguments
	Summary  string
	About    string   // additional text for its help; may be empty
	Examples []string // without the program's name
	Words    []string // possible first arguments, for completion
	Listing  bool     // its output has the form "wide"
	Screen   bool     // its output has no forms
	// Setup declares flags and returns the function to run after parsing. Setup is nil if the
	// command has only subcommands.
	Setup  func(fs *pflag.FlagSet) func(ctx context.Context, c *Call) error
	Subs   []Command
	Hidden bool // started by programs
	// Verbatim commands get everything after their name as arguments, including flags and -h.
	Verbatim bool
}

// FlagsOnly is the synopsis of a command that takes no arguments.
const FlagsOnly = "[flags]"

// ErrFailed ends a command whose output already describes the problem.
var ErrFailed = errors.New("failed")

// UsageError is an error in the command line.
type UsageError struct{ Text string }

func (e UsageError) Error() string { return e.Text }

// Usagef returns a UsageError.
func Usagef(format string, a ...any) error { return UsageError{fmt.Sprintf(format, a...)} }

// StatusError ends a command with a specific exit code.
type StatusError struct {
	Status int
	Err    error
}

func (e StatusError) Error() string { return e.Err.Error() }

func (e StatusError) Unwrap() error { return e.Err }

// Run runs the program with the arguments after its name, and returns the exit code.
func (p *Program) Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := p.Root(stdout, stderr)
	root.SetArgs(Normalise(root, args))
	cmd, err := root.ExecuteContextC(ctx)
	return p.concluded(cmd, err, stderr)
}
