// Package cli is the common part of our command lines: commands with help, examples and
// completion, forms of output, exit codes, progress and manual pages. What a command does is
// its program's. A Program may run several times, one run at a time.
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
	ExitFailed  = 1 // the command could not do it, or found something wrong
	ExitUsage   = 2 // the command line was wrong
	ExitRefused = 3 // nothing was looked at
)

// Program is a command line.
type Program struct {
	Name    string
	Short   string
	Long    string
	Version string
	Groups  []Group // in the order of its help
	// Part is set for a program whose commands another one of the same name lists and starts.
	// That one has the manual page of the whole and the scripts that complete commands.
	Part     bool
	Commands []Command
	// Explain returns the text of an error with what to do about it; nil = the error's own.
	Explain func(error) string
	// Complete registers what the values of a command's flags may be; nil = nothing.
	Complete func(*cobra.Command, *Command)
}

// Group is a heading of a program's help.
type Group struct{ ID, Title string }

// Command is one subcommand.
type Command struct {
	Name     string
	Group    string // ID of one of the program's
	Synopsis string // after the name: "[flags] KEY"; FlagsOnly = it takes no arguments
	Summary  string
	About    string   // more than the summary, for its help; may be empty
	Examples []string // without the program's name
	Words    []string // what the first argument may be, for completion
	Listing  bool     // its output has the form wide
	Screen   bool     // its output has no forms
	// Setup declares flags and returns what runs after parsing; nil where there are only
	// subcommands.
	Setup  func(fs *pflag.FlagSet) func(ctx context.Context, c *Call) error
	Subs   []Command
	Hidden bool // started by programs
	// Verbatim commands get all that follows their name as arguments, flags and -h too.
	Verbatim bool
}

// FlagsOnly is the synopsis of a command that takes no arguments.
const FlagsOnly = "[flags]"

// ErrFailed ends a command whose output already says what is wrong.
var ErrFailed = errors.New("failed")

// UsageError is a mistake on the command line.
type UsageError struct{ Text string }

func (e UsageError) Error() string { return e.Text }

// Usagef returns a UsageError.
func Usagef(format string, a ...any) error { return UsageError{fmt.Sprintf(format, a...)} }

// StatusError ends a command with an exit code of its own.
type StatusError struct {
	Status int
	Err    error
}

func (e StatusError) Error() string { return e.Err.Error() }

func (e StatusError) Unwrap() error { return e.Err }

// Run runs the program with the arguments after its name, and returns its exit code.
func (p *Program) Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := p.Root(stdout, stderr)
	root.SetArgs(Normalise(root, args))
	cmd, err := root.ExecuteContextC(ctx)
	return p.concluded(cmd, err, stderr)
}
