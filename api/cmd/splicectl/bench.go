package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spliced-kv/spliced/api/cmd/splicectl/internal/bench"
)

func benchCommand() command {
	return command{
		name: "bench", synopsis: "[flags]",
		summary:  "Measure a temporary daemon and the kernels, each figure beside its limit",
		examples: []string{"", "--suite quick --json", "-only match,acquire"},
		setup: func(fs *flag.FlagSet) func(context.Context, *call) error {
			o := bench.Options{Commit: commit}
			fs.StringVar(&o.Suite, "suite", "quick", "`suite`: quick takes less than a minute, full five times the rounds,\nsmoke one round of each")
			fs.StringVar(&o.Daemon, "daemon", "", "`path` of spliced (default: beside this program, or in PATH)")
			only := fs.String("only", "", "comma-separated `sections` of: "+strings.Join(bench.SectionNames(), ", "))
			quiet := fs.Bool("quiet", false, "no progress on standard error")
			return func(ctx context.Context, c *call) error {
				if *only != "" {
					o.Only = strings.Split(*only, ",")
				}
				if !*quiet {
					o.Progress = c.stderr
				}
				return runBench(ctx, c, o)
			}
		},
	}
}

func runBench(ctx context.Context, c *call, o bench.Options) error {
	if len(c.args) > 0 {
		return usagef("takes no arguments, got %q", c.args)
	}
	if !slices.Contains(bench.SuiteNames(), o.Suite) {
		return usagef("no suite %q, want one of %q", o.Suite, bench.SuiteNames())
	}
	for _, name := range o.Only {
		if !slices.Contains(bench.SectionNames(), name) {
			return usagef("no section %q, want some of %q", name, bench.SectionNames())
		}
	}
	report, failed := bench.Run(ctx, o)
	if report == nil {
		return failed
	}
	show := func() error { return report.Print(c.stdout) }
	if c.json {
		show = func() error { return printJSON(c.stdout, report) }
	}
	if err := show(); err != nil {
		return err
	}
	if failed != nil {
		fmt.Fprintln(c.stderr, "splicectl bench: some rows are missing:", failed)
		return errors.Join(errFailed, failed)
	}
	return nil
}

// echoCommand is the other side of the bare socket echo.
func echoCommand() command {
	return command{
		name: bench.EchoCommand, summary: "Answer bytes on descriptor 3 (started by bench)", hidden: true,
		setup: func(*flag.FlagSet) func(context.Context, *call) error {
			return func(context.Context, *call) error { return bench.ServeEcho() }
		},
	}
}

// victimCommand is a client to be killed.
func victimCommand() command {
	return command{
		name: bench.VictimCommand, synopsis: "SOCKET", summary: "Hold memory until killed (started by bench)", hidden: true,
		setup: func(*flag.FlagSet) func(context.Context, *call) error {
			return func(ctx context.Context, c *call) error {
				if len(c.args) != 1 {
					return usagef("want a socket")
				}
				return bench.ServeVictim(ctx, c.args[0], os.Stdin, c.stdout)
			}
		},
	}
}
