// Command splicectl shows, checks, controls and measures spliced nodes. Each command is one
// file here; the logic is in libraries and in internal/.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/api/cmd/cli"
)

// Set by the linker.
var (
	version = "unknown"
	commit  = "unknown"
	date    = "unknown"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run runs the program.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if completesLaboratory(args) && enterLaboratory(args) != nil {
		return cli.ExitFailed // without a message, which would appear among the completions
	}
	return program().Run(ctx, args, stdout, stderr)
}

func program() *cli.Program {
	return &cli.Program{
		Name:  "splicectl",
		Short: "Show, check, control and measure spliced nodes",
		Long: "Splicectl shows, checks, controls and measures spliced nodes.\n\n" +
			"Each command has -h, which shows examples, and --json. Long flags may also be written with one dash.\n" +
			"Exit codes: 0 success, 1 failure or a problem found, 2 wrong usage; disk -h and gpu-check -h list one more.",
		Version: version,
		Groups: []cli.Group{
			{ID: "look", Title: "See what nodes hold and do:"},
			{ID: "change", Title: "Change what nodes hold and do:"},
			{ID: "check", Title: "Check a machine, a GPU or a disk:"},
			{ID: "measure", Title: "Demonstrate and measure:"},
			{ID: "self", Title: "This program:"},
		},
		Commands: commands(),
		Explain:  explain,
		Complete: complete,
	}
}

func commands() []cli.Command {
	return slices.Concat(
		[]cli.Command{
			statsCommand(), topCommand(), healthCommand(), lsCommand(), inspectCommand(), traceCommand(), usageCommand(), eventsCommand(), clusterCommand(), locateCommand(),
			rmCommand(), pinCommand(), unpinCommand(), flushCommand(), drainCommand(), configCommand(), profileCommand(),
			doctorCommand(), diskCommand(),
		},
		laboratoryCommands(),
		[]cli.Command{contextCommand(), versionCommand(), cli.Man(program)},
	)
}

// complete registers which values a shell offers for flags. RegisterFlagCompletionFunc fails only
// if a flag is registered twice, which does not happen here.
func complete(cmd *cobra.Command, c *cli.Command) {
	register := func(name string, f cobra.CompletionFunc) {
		if cmd.Flags().Lookup(name) != nil {
			_ = cmd.RegisterFlagCompletionFunc(name, f)
		}
	}
	register("context", func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return contextNames(), cobra.ShellCompDirectiveNoFileComp
	})
	register("what", cobra.FixedCompletions(decided, cobra.ShellCompDirectiveNoFileComp))
	register("way", cobra.FixedCompletions(ways, cobra.ShellCompDirectiveNoFileComp))
	register("kind", cobra.FixedCompletions(api.EventKinds, cobra.ShellCompDirectiveNoFileComp))
	register("sort", func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return columnsOf(c.Name, args), cobra.ShellCompDirectiveNoFileComp
	})
}
