package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/api/cmd/splicectl/internal/terminal"
)

// newRoot makes the tree of commands. It holds what flags are set to, so that each run
// needs one of its own.
func newRoot(stdout, stderr io.Writer) *cobra.Command {
	root := &cobra.Command{
		Use:   "splicectl",
		Short: "Show, check, steer and measure spliced nodes",
		Long: "Splicectl shows, checks, steers and measures spliced nodes.\n\n" +
			"Each command has -h with examples, and --json. Long flags may be written with one dash.\n" +
			"Exit codes: 0 done, 1 failed or something is wrong, 2 wrong usage; disk -h and gpu-check -h tell one more.",
		SilenceErrors: true, SilenceUsage: true, DisableAutoGenTag: true, SuggestionsMinimumDistance: 2,
		FParseErrWhitelist: cobra.FParseErrWhitelist{UnknownFlags: true}, // which command is wrong counts more
		Args:               noSuchCommand,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cmd.SetOut(stderr)
			return errors.Join(cmd.Help(), usageError{})
		},
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err.Error()} })
	for _, g := range groups {
		root.AddGroup(&cobra.Group{ID: g.id, Title: g.title})
	}
	root.SetCompletionCommandGroupID("self")
	root.SetHelpCommandGroupID("self")
	for _, c := range commands() {
		root.AddCommand(c.tree(root.Name(), stdout, stderr))
	}
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	return root
}

// noSuchCommand refuses what is no command, with those that it may have been meant for.
func noSuchCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	text := fmt.Sprintf("no command %q", args[0])
	if likely := cmd.SuggestionsFor(args[0]); len(likely) > 0 {
		return usageError{text + "; did you mean " + strings.Join(likely, " or ") + "?"}
	}
	return usageError{text + "; " + cmd.CommandPath() + " -h lists them"}
}

// tree is the command as cobra has it.
func (c command) tree(parent string, stdout, stderr io.Writer) *cobra.Command {
	path := parent + " " + c.name
	cmd := &cobra.Command{
		Use: strings.TrimSpace(c.name + " " + c.synopsis), GroupID: c.group, Short: c.summary, Long: c.summary + ".",
		Hidden: c.hidden, Args: cobra.ArbitraryArgs, DisableAutoGenTag: true, SuggestionsMinimumDistance: 2,
	}
	if c.about != "" {
		cmd.Long += "\n\n" + c.about
	}
	var examples []string
	for _, e := range c.examples {
		examples = append(examples, "  "+strings.TrimSpace(path+" "+e))
	}
	cmd.Example = strings.Join(examples, "\n")
	for _, sub := range c.subs {
		cmd.AddCommand(sub.tree(path, stdout, stderr))
	}
	if c.setup == nil {
		cmd.Args = noSuchCommand
		cmd.RunE = func(cmd *cobra.Command, _ []string) error {
			return usagef("which one? %s -h lists them", cmd.CommandPath())
		}
		return cmd
	}
	call := &call{stdout: stdout, stderr: stderr, flags: cmd.Flags()}
	do := c.setup(cmd.Flags())
	if !c.hidden { // otherwise read by a program
		call.stdout = terminal.NewWriter(stdout, os.Environ())
		if !c.screen {
			call.formatFlags(cmd.Flags(), c.listing)
		}
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		call.args = args
		if err := call.choose(c.listing); err != nil {
			return err
		}
		if c.synopsis == flagsOnly && len(args) > 0 {
			return usagef("takes no arguments, got %q", args)
		}
		return do(cmd.Context(), call)
	}
	completions(cmd, c)
	return cmd
}

// completions says what the values of flags may be. A function can be registered once
// for a flag, which these are: the error is for other uses.
func completions(cmd *cobra.Command, c command) {
	register := func(name string, f cobra.CompletionFunc) {
		if cmd.Flags().Lookup(name) != nil {
			_ = cmd.RegisterFlagCompletionFunc(name, f)
		}
	}
	if c.words != nil {
		cmd.ValidArgsFunction = func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveDefault
			}
			return c.words, cobra.ShellCompDirectiveDefault
		}
	}
	register("output", cobra.FixedCompletions(forms(c.listing), cobra.ShellCompDirectiveNoFileComp))
	register("context", func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return contextNames(), cobra.ShellCompDirectiveNoFileComp
	})
	register("what", cobra.FixedCompletions(decided, cobra.ShellCompDirectiveNoFileComp))
	register("way", cobra.FixedCompletions(ways, cobra.ShellCompDirectiveNoFileComp))
	register("kind", cobra.FixedCompletions(api.EventKinds, cobra.ShellCompDirectiveNoFileComp))
	register("sort", func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return columnsOf(c.name, args), cobra.ShellCompDirectiveNoFileComp
	})
}

// concluded tells what went wrong, and says with which status that ends.
func concluded(cmd *cobra.Command, err error, stderr io.Writer) int {
	var usage usageError
	var status statusError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &usage):
		if usage.text != "" {
			fmt.Fprintf(stderr, "%s: %s\nusage: %s\n", cmd.CommandPath(), terminal.Text(usage.text), cmd.UseLine())
		}
		return exitUsage
	case !errors.Is(err, errFailed):
		fmt.Fprintf(stderr, "%s: %s\n", cmd.CommandPath(), terminal.Text(explain(err)))
	}
	if errors.As(err, &status) {
		return status.status
	}
	return exitFailed
}

// normalise turns what people have always written into what cobra reads: long flags with
// one dash, -help, and help before a command.
func normalise(root *cobra.Command, args []string) []string {
	if len(args) == 0 || strings.HasPrefix(args[0], cobra.ShellCompRequestCmd) {
		return args
	}
	switch args[0] {
	case "-version", "--version":
		return []string{"version"}
	case "help":
		args = append(slices.Clone(args[1:]), "--help")
	}
	if !strings.HasPrefix(args[0], "-") && subcommand(root, args[0]) == nil {
		return args[:1] // whatever follows, -h too, that is no command
	}
	cmd, out := root, []string(nil)
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if arg == "--" {
			return append(out, args[i:]...)
		}
		if len(arg) < 2 || arg[0] != '-' {
			if sub := subcommand(cmd, arg); sub != nil {
				cmd = sub
			}
			out = append(out, arg)
			continue
		}
		f, long := flagOf(cmd.Flags(), arg)
		if arg[1] != '-' && (long || f == nil && len(arg) > 2) { // an unknown one is told by its name
			arg = "-" + arg
		}
		out = append(out, arg)
		if f != nil && f.NoOptDefVal == "" && !strings.Contains(arg, "=") && (long || len(arg) == 2) && i+1 < len(args) {
			i++ // its value, whatever that looks like
			out = append(out, args[i])
		}
	}
	return out
}

// subcommand is the subcommand of a name; nil = there is none.
func subcommand(cmd *cobra.Command, name string) *cobra.Command {
	for _, c := range cmd.Commands() {
		if c.Name() == name {
			return c
		}
	}
	return nil
}

// flagOf is the flag that an argument sets, if there is one, and whether by its long name.
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
