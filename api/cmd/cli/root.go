package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/spliced-kv/spliced/api/cmd/cli/terminal"
)

// Root returns the tree of commands. The tree contains the values of flags, so each run needs a
// new tree.
func (p *Program) Root(stdout, stderr io.Writer) *cobra.Command {
	root := &cobra.Command{
		Use: p.Name, Short: p.Short, Long: p.Long,
		SilenceErrors: true, SilenceUsage: true, DisableAutoGenTag: true, SuggestionsMinimumDistance: 2,
		FParseErrWhitelist: cobra.FParseErrWhitelist{UnknownFlags: true}, // the unknown command is the more important error
		Args:               noSuchCommand,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cmd.SetOut(stderr)
			return errors.Join(cmd.Help(), UsageError{})
		},
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return UsageError{flagFault(err)} })
	for _, g := range p.Groups {
		root.AddGroup(&cobra.Group{ID: g.ID, Title: g.Title})
	}
	if n := len(p.Groups); n > 0 {
		root.SetCompletionCommandGroupID(p.Groups[n-1].ID)
		root.SetHelpCommandGroupID(p.Groups[n-1].ID)
	}
	for i := range p.Commands {
		root.AddCommand(p.tree(&p.Commands[i], root.Name(), stdout, stderr))
	}
	root.InitDefaultHelpCmd()
	root.CompletionOptions.DisableDefaultCmd = p.Part
	root.InitDefaultCompletionCmd()
	if completion := Subcommand(root, "completion"); completion != nil {
		needsSubcommand(completion)
		for _, shell := range completion.Commands() {
			shell.Args = noArguments
		}
	}
	return root
}

// needsSubcommand makes a command refuse to run by itself.
func needsSubcommand(cmd *cobra.Command) {
	cmd.Args = noSuchCommand
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return Usagef("which one? %s -h lists them", cmd.CommandPath())
	}
}

func noArguments(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return Usagef("takes no arguments, got %q", args)
	}
	return nil
}

// flagFault returns the text of an error in a flag.
func flagFault(err error) string {
	bad, ok := errors.AsType[*pflag.InvalidValueError](err)
	if !ok {
		return err.Error()
	}
	f := bad.GetFlag()
	why := ": " + bad.Unwrap().Error()
	switch kind := f.Value.Type(); {
	case errors.Is(err, strconv.ErrRange):
		why = " is too large"
	case kind == "duration":
		why = " is not a time such as 90s or 10m"
	case strings.HasPrefix(kind, "int"), strings.HasPrefix(kind, "uint"), strings.HasPrefix(kind, "float"):
		why = " is not a number"
		if kind[0] == 'u' {
			why += " of at least 0"
		}
	case kind == "bool":
		why = " is neither true nor false"
	}
	return fmt.Sprintf("--%s %q%s", f.Name, bad.GetValue(), why)
}

// noSuchCommand refuses an unknown command, and suggests similar ones.
func noSuchCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	text := fmt.Sprintf("no command %q", args[0])
	if likely := cmd.SuggestionsFor(args[0]); len(likely) > 0 {
		return UsageError{text + "; did you mean " + strings.Join(likely, " or ") + "?"}
	}
	return UsageError{text + "; " + cmd.CommandPath() + " -h lists them"}
}

// tree converts a command for cobra.
func (p *Program) tree(c *Command, parent string, stdout, stderr io.Writer) *cobra.Command {
	path := parent + " " + c.Name
	cmd := &cobra.Command{
		Use: strings.TrimSpace(c.Name + " " + c.Synopsis), GroupID: c.Group, Short: c.Summary, Long: c.Summary + ".",
		Hidden: c.Hidden, Args: cobra.ArbitraryArgs, DisableAutoGenTag: true, SuggestionsMinimumDistance: 2,
	}
	if c.About != "" {
		cmd.Long += "\n\n" + c.About
	}
	var examples []string
	for _, e := range c.Examples {
		examples = append(examples, "  "+strings.TrimSpace(path+" "+e))
	}
	cmd.Example = strings.Join(examples, "\n")
	for i := range c.Subs {
		cmd.AddCommand(p.tree(&c.Subs[i], path, stdout, stderr))
	}
	if c.Setup == nil {
		needsSubcommand(cmd)
		return cmd
	}
	call := &Call{Stdout: stdout, Stderr: stderr, Flags: cmd.Flags()}
	do := c.Setup(cmd.Flags())
	cmd.DisableFlagParsing = c.Verbatim
	if !c.Hidden && !c.Verbatim { // programs, not users, start hidden commands
		call.Stdout = terminal.NewWriter(stdout, os.Environ())
		if !c.Screen {
			call.formatFlags(cmd.Flags(), c.Listing)
		}
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		call.Args = args
		if err := call.choose(c.Listing); err != nil {
			return err
		}
		if c.Synopsis == FlagsOnly && !c.Verbatim {
			if err := noArguments(cmd, args); err != nil {
				return err
			}
		}
		return do(cmd.Context(), call)
	}
	p.completions(cmd, c)
	return cmd
}

// completions registers which values a shell offers for arguments and flags.
// RegisterFlagCompletionFunc fails only if a flag is registered twice, which does not happen here.
func (p *Program) completions(cmd *cobra.Command, c *Command) {
	if c.Words != nil {
		cmd.ValidArgsFunction = func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveDefault
			}
			return c.Words, cobra.ShellCompDirectiveDefault
		}
	}
	if cmd.Flags().Lookup("output") != nil {
		_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(forms(c.Listing), cobra.ShellCompDirectiveNoFileComp))
	}
	if p.Complete != nil {
		p.Complete(cmd, c)
	}
}

// concluded prints an error, and returns the exit code.
func (p *Program) concluded(cmd *cobra.Command, err error, stderr io.Writer) int {
	var usage UsageError
	var status StatusError
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &usage):
		if usage.Text != "" {
			fmt.Fprintf(stderr, "%s: %s\nusage: %s\n", cmd.CommandPath(), terminal.Text(usage.Text), cmd.UseLine())
		}
		return ExitUsage
	case errors.Is(err, context.Canceled) && cmd.Context().Err() != nil:
		fmt.Fprintf(stderr, "%s: interrupted\n", cmd.CommandPath())
	case !errors.Is(err, ErrFailed):
		fmt.Fprintf(stderr, "%s: %s\n", cmd.CommandPath(), terminal.Text(p.explained(err)))
	}
	if errors.As(err, &status) {
		return status.Status
	}
	return ExitFailed
}

func (p *Program) explained(err error) string {
	if p.Explain == nil {
		return err.Error()
	}
	return p.Explain(err)
}

// Normalise converts traditional forms to what cobra parses: long flags with one dash,
// -help, and help before a command.
func Normalise(root *cobra.Command, args []string) []string {
	if len(args) == 0 || strings.HasPrefix(args[0], cobra.ShellCompRequestCmd) {
		return args
	}
	switch args[0] {
	case "-version", "--version":
		return []string{"version"}
	case "help":
		args = append(slices.Clone(args[1:]), "--help")
	}
	if !strings.HasPrefix(args[0], "-") && Subcommand(root, args[0]) == nil {
		return args[:1] // anything that follows, including -h, is not a command
	}
	cmd, out := root, []string(nil)
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if arg == "--" {
			return append(out, args[i:]...)
		}
		if len(arg) < 2 || arg[0] != '-' {
			if sub := Subcommand(cmd, arg); sub != nil {
				cmd = sub
			}
			out = append(out, arg)
			if cmd.DisableFlagParsing {
				return append(out, args[i+1:]...)
			}
			continue
		}
		f, long := flagOf(cmd.Flags(), arg)
		if arg[1] != '-' && (long || f == nil && len(arg) > 2) { // an unknown flag is reported by its name
			arg = "-" + arg
		}
		out = append(out, arg)
		if f != nil && f.NoOptDefVal == "" && !strings.Contains(arg, "=") && (long || len(arg) == 2) && i+1 < len(args) {
			i++ // its value, whatever it looks like
			out = append(out, args[i])
		}
	}
	return out
}

// Subcommand returns the subcommand of a name; nil = none.
func Subcommand(cmd *cobra.Command, name string) *cobra.Command {
	for _, c := range cmd.Commands() {
		if c.Name() == name {
			return c
		}
	}
	return nil
}

// flagOf returns the flag that an argument sets, if any, and whether the argument has its long
// name.
func flagOf(fs *pflag.FlagSet, arg string) (f *pflag.Flag, long bool) {
	name, _, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
	if f = fs.Lookup(name); f != nil || name == "help" {
		return f, true
	}
	if !strings.HasPrefix(arg, "--") {
		f = fs.ShorthandLookup(arg[1:2])
	}
	return f, false
}
