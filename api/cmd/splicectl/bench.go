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

	"github.com/spliced-kv/spliced/api/cmd/splicectl/internal/bench"
	"github.com/spliced-kv/spliced/api/cmd/splicectl/internal/bench/baseline"
)

func benchCommand() command {
	return command{
		name: "bench", group: "measure", synopsis: flagsOnly,
		summary:  "Measure a temporary daemon and the kernels, each figure beside its limit",
		examples: []string{"", "--suite quick --json", "--only lookup,transfer", "--suite disk --dir /var/lib"},
		setup: func(fs *pflag.FlagSet) func(context.Context, *call) error {
			o := bench.Options{Commit: commit}
			fs.StringVar(&o.Suite, "suite", "quick", "`suite`: quick takes less than a minute, full five times the rounds,\nsmoke one round of each; scale has up to 16 client processes at once; disk measures the disk tier beside fio in two minutes,\npebble the places where its values could lie, parallel segments computed on several nodes by modelled engines,\npages what requests hold that share rows of the cache, decode what rows beside recurrent states save")
			fs.StringVar(&o.Dir, "dir", "", "`directory` on the disk to measure, for suites of the disk\n(default: where temporary files go)")
			fs.StringVar(&o.Torture, "torture", "", "`file` with a report of torture runs to show beside the suite disk")
			fs.StringVar(&o.Daemon, "daemon", "", "`path` of spliced (default: beside this program, or in PATH)")
			only := fs.String("only", "", "comma-separated `sections` of the suite: "+sectionsByName())
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

func sectionsByName() string {
	var text []string
	for _, suite := range []string{"quick", "scale", "disk", "pebble", "parallel", "pages", "decode"} {
		text = append(text, strings.Join(bench.SectionNames(suite), ", ")+" ("+suite+")")
	}
	return strings.Join(text, "; ")
}

func runBench(ctx context.Context, c *call, o bench.Options) error {
	if !slices.Contains(bench.SuiteNames(), o.Suite) {
		return usagef("no suite %q, want one of %q", o.Suite, bench.SuiteNames())
	}
	for _, name := range o.Only {
		if known := bench.SectionNames(o.Suite); !slices.Contains(known, name) {
			return usagef("no section %q, want some of %q", name, known)
		}
	}
	report, failed := bench.Run(ctx, o)
	if report == nil {
		return failed
	}
	print := func() error { return report.Print(c.stdout) }
	if c.json {
		print = func() error { return c.document(report) }
	}
	if err := print(); err != nil {
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
		name: baseline.EchoCommand, summary: "Answer bytes on descriptor 3 (started by bench)", hidden: true,
		setup: func(*pflag.FlagSet) func(context.Context, *call) error {
			return func(context.Context, *call) error { return baseline.ServeEcho() }
		},
	}
}

// crowdCommand echoes for many clients.
func crowdCommand() command {
	return command{
		name: baseline.CrowdCommand, synopsis: "N", summary: "Answer bytes on N descriptors (started by bench)", hidden: true,
		setup: func(*pflag.FlagSet) func(context.Context, *call) error {
			return func(_ context.Context, c *call) error {
				if len(c.args) != 1 {
					return usagef("want a number of descriptors")
				}
				n, err := strconv.Atoi(c.args[0])
				if err != nil {
					return usagef("want a number of descriptors, got %q", c.args[0])
				}
				return baseline.ServeCrowd(n)
			}
		},
	}
}

// peerCommand is one of many clients.
func peerCommand() command {
	return command{
		name: bench.PeerCommand, synopsis: "SOCKET", summary: "Make requests when told to (started by bench)", hidden: true,
		setup: func(*pflag.FlagSet) func(context.Context, *call) error {
			return func(ctx context.Context, c *call) error {
				if len(c.args) != 1 {
					return usagef("want a socket")
				}
				return bench.ServePeer(ctx, c.args[0], os.Stdin, c.stdout)
			}
		},
	}
}

// victimCommand is a client to be killed.
func victimCommand() command {
	return command{
		name: bench.VictimCommand, synopsis: "SOCKET", summary: "Hold memory until killed (started by bench)", hidden: true,
		setup: func(*pflag.FlagSet) func(context.Context, *call) error {
			return func(ctx context.Context, c *call) error {
				if len(c.args) != 1 {
					return usagef("want a socket")
				}
				return bench.ServeVictim(ctx, c.args[0], os.Stdin, c.stdout)
			}
		},
	}
}

// loadCommand is a client that keeps the disk busy.
func loadCommand() command {
	return command{
		name: bench.LoadCommand, synopsis: "SOCKET FILE", summary: "Keep a daemon's disk busy (started by bench)", hidden: true,
		setup: func(*pflag.FlagSet) func(context.Context, *call) error {
			return func(ctx context.Context, c *call) error {
				if len(c.args) != 2 {
					return usagef("want a socket and a file")
				}
				return bench.ServeLoad(ctx, c.args[0], c.args[1], os.Stdin, c.stdout)
			}
		},
	}
}
