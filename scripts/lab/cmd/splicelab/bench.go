package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/spliced-kv/spliced/api/cmd/cli"
	"github.com/spliced-kv/spliced/scripts/lab/bench"
	"github.com/spliced-kv/spliced/scripts/lab/bench/baseline"
)

func benchCommand() cli.Command {
	return cli.Command{
		Name: "bench", Group: "measure", Synopsis: cli.FlagsOnly,
		Summary:  "Benchmark a temporary daemon and the kernels, next to what the hardware can do",
		Examples: []string{"", "--suite quick --json", "--only lookup,transfer", "--suite disk --dir /var/lib"},
		Setup: func(fs *pflag.FlagSet) func(context.Context, *cli.Call) error {
			o := bench.Options{Commit: commit}
			fs.StringVar(&o.Suite, "suite", "quick", "`suite` to run: quick (under a minute), full (quick with five times the rounds), smoke (quick with one round),\nscale (up to 16 client processes), disk (compared with fio, two minutes), pebble (ways to store values),\nparallel (segments computed by several modelled engines), pages (shared cache rows), decode (buffered rows)")
			fs.StringVar(&o.Dir, "dir", "", "`directory` on the disk to measure (default: the directory for temporary files)")
			fs.StringVar(&o.Torture, "torture", "", "`file` with a report of splicectl torture, to include in the report of suite disk")
			fs.StringVar(&o.Daemon, "daemon", "", "`path` of the spliced program (default: next to this program, or in PATH)")
			only := fs.String("only", "", "run only these `sections`, separated by commas: "+sectionsByName())
			quiet := fs.Bool("quiet", false, "print no progress on standard error")
			return func(ctx context.Context, c *cli.Call) error {
				if *only != "" {
					o.Only = strings.Split(*only, ",")
				}
				if !*quiet {
					o.Progress = c.Stderr
				}
				return runBench(ctx, c, o)
			}
		},
	}
}

func sectionsByName() string {
	var text []string
	for _, suite := range []string{"quick", "scale", "disk", "pebble", "parallel", "pages", "decode"} {
		text = append(text, strings.Join(bench.SectionNames(suite), ", ")+" ("+suite+")")
	}
	return strings.Join(text, "; ")
}

func runBench(ctx context.Context, c *cli.Call, o bench.Options) error {
	if !slices.Contains(bench.SuiteNames(), o.Suite) {
		return cli.Usagef("no suite %q, want one of %q", o.Suite, bench.SuiteNames())
	}
	for _, name := range o.Only {
		if known := bench.SectionNames(o.Suite); !slices.Contains(known, name) {
			return cli.Usagef("no section %q, want some of %q", name, known)
		}
	}
	report, failed := bench.Run(ctx, o)
	if report == nil {
		return failed
	}
	print := func() error { return report.Print(c.Stdout) }
	if c.JSON {
		print = func() error { return c.Document(report) }
	}
	if err := print(); err != nil {
		return err
	}
	if failed != nil {
		fmt.Fprintln(c.Stderr, "splicectl bench: some rows are missing:", failed)
		return errors.Join(cli.ErrFailed, failed)
	}
	return nil
}

// echoCommand returns the other side of the bare socket echo.
func echoCommand() cli.Command {
	return cli.Command{
		Name: baseline.EchoCommand, Summary: "Answer bytes on descriptor 3 (started by bench)", Hidden: true,
		Setup: func(*pflag.FlagSet) func(context.Context, *cli.Call) error {
			return func(context.Context, *cli.Call) error { return baseline.ServeEcho() }
		},
	}
}

// crowdCommand returns the process that echoes for many clients.
func crowdCommand() cli.Command {
	return cli.Command{
		Name: baseline.CrowdCommand, Synopsis: "N", Summary: "Answer bytes on N descriptors (started by bench)", Hidden: true,
		Setup: func(*pflag.FlagSet) func(context.Context, *cli.Call) error {
			return func(_ context.Context, c *cli.Call) error {
				if len(c.Args) != 1 {
					return cli.Usagef("want a number of descriptors")
				}
				n, err := strconv.Atoi(c.Args[0])
				if err != nil {
					return cli.Usagef("want a number of descriptors, got %q", c.Args[0])
				}
				return baseline.ServeCrowd(n)
			}
		},
	}
}

// peerCommand returns one of many clients.
func peerCommand() cli.Command {
	return cli.Command{
		Name: bench.PeerCommand, Synopsis: "SOCKET", Summary: "Make requests when told to (started by bench)", Hidden: true,
		Setup: func(*pflag.FlagSet) func(context.Context, *cli.Call) error {
			return func(ctx context.Context, c *cli.Call) error {
				if len(c.Args) != 1 {
					return cli.Usagef("want a socket")
				}
				return bench.ServePeer(ctx, c.Args[0], os.Stdin, c.Stdout)
			}
		},
	}
}

// victimCommand returns a client to be killed.
func victimCommand() cli.Command {
	return cli.Command{
		Name: bench.VictimCommand, Synopsis: "SOCKET", Summary: "Hold memory until killed (started by bench)", Hidden: true,
		Setup: func(*pflag.FlagSet) func(context.Context, *cli.Call) error {
			return func(ctx context.Context, c *cli.Call) error {
				if len(c.Args) != 1 {
					return cli.Usagef("want a socket")
				}
				return bench.ServeVictim(ctx, c.Args[0], os.Stdin, c.Stdout)
			}
		},
	}
}

// loadCommand returns a client that keeps the disk busy.
func loadCommand() cli.Command {
	return cli.Command{
		Name: bench.LoadCommand, Synopsis: "SOCKET FILE", Summary: "Keep a daemon's disk busy (started by bench)", Hidden: true,
		Setup: func(*pflag.FlagSet) func(context.Context, *cli.Call) error {
			return func(ctx context.Context, c *cli.Call) error {
				if len(c.Args) != 2 {
					return cli.Usagef("want a socket and a file")
				}
				return bench.ServeLoad(ctx, c.Args[0], c.Args[1], os.Stdin, c.Stdout)
			}
		},
	}
}
