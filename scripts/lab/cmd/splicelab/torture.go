package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/spf13/pflag"

	"github.com/spliced-kv/spliced/api/cmd/cli"
	"github.com/spliced-kv/spliced/scripts/lab/torture"
)

type tortureFlags struct {
	torture.Options
	soak  torture.Soak
	quiet bool
}

// mostLoops bounds a run: a loop takes about two seconds.
const mostLoops = 100_000

// mostRate bounds the steps per second of a soak. At higher rates the pauses would be shorter
// than a microsecond, which has no effect.
const mostRate = 1_000_000

func tortureCommand() cli.Command {
	return cli.Command{
		Name: "torture", Group: "measure", Synopsis: cli.FlagsOnly,
		Summary: "Kill a temporary daemon repeatedly, and check what it acknowledged",
		About: `Engines of two tenants put segments and checkpoints at levels memory, logged and synced
and log each reply. They abort some puts, and read, join and remove other objects. The daemon is
killed with SIGKILL at a random moment and restarted on the same disk directory. Then
everything that was ever submitted is looked up and compared.

An object counts as survived if every audit since its reply found it with the right
bytes. Audits look up all objects and read those of their own loop and a sample of older
ones; the last one, after an orderly stop, reads all. Removed segments are not audited for
presence. At the end the directory is checked as by splicectl disk check --deep. Every 100
loops start over in an empty directory.

When a process is killed, the data that the kernel already has are not lost. So power cuts
are simulated as well, with a file system in memory that keeps none, some or all of the data
that were not synced. Fields of the report about power cuts begin with power_; there only
synced objects have to survive.

--soak kills clients only: a daemon serves a share of the load that the machine can take,
next to processes that connect and end, are killed with leases and fills, stall, and lie.
All reads are compared. The slopes of memory, descriptors, goroutines and latencies over
the last 80 % of the time are reported with 95 % confidence intervals.

Exit status 1: a synced object is lost, more than 1 % of logged ones are lost to a kill,
wrong bytes were served (corrupt), a name appears that was never submitted (phantom), the
check finds damage, or nothing was acknowledged at a level. With --soak: wrong bytes were
served, a lie was believed, or a slope's interval is wholly above its bound, which applies
from ten minutes on.`,
		Examples: []string{"--loops 5", "--loops 100 --json", "--loops 20 --seed 7 --dir /var/tmp/torture", "--loops 0 --power 500", "--soak 60m --json"},
		Setup: func(fs *pflag.FlagSet) func(context.Context, *cli.Call) error {
			var f tortureFlags
			fs.IntVar(&f.Loops, "loops", 5, "`number` of times that the daemon is killed")
			fs.IntVar(&f.Power, "power", -1, "`number` of simulated power cuts; -1 = three for each of --loops")
			fs.Uint64Var(&f.Seed, "seed", 0, "`seed` of the writes and kills; 0 = a random one, which is printed")
			fs.IntVar(&f.Segments, "segments", 150, "maximum number of `objects` submitted between two kills")
			fs.StringVar(&f.Dir, "dir", "", "empty or new `directory` for the disk tier and the log of acknowledgements, which\n"+
				"are kept (default: a temporary directory, kept only on failure)")
			fs.StringVar(&f.Binary, "daemon", "", "`path` of the spliced program (default: next to this program, or in PATH)")
			fs.DurationVar(&f.soak.For, "soak", 0, "run under load for this `time`, instead of killing the daemon and cutting power")
			fs.DurationVar(&f.soak.Every, "every", 10*time.Second, "--soak: `time` between samples")
			fs.Float64Var(&f.soak.Load, "load", 0.7, "--soak: load, as a `share` of what the machine can take")
			fs.Float64Var(&f.soak.Rate, "rate", 0, "--soak: load in `steps` per second, to compare runs; 0 = as --load says")
			fs.Float64Var(&f.soak.Bound, "bound", 2, "--soak: maximum rise of memory, descriptors and goroutines in an hour, in `percent`\n"+
				"of their mean; latencies may rise five times as much")
			fs.StringVar(&f.Driver, "driver", "", "`path` of a CUDA driver library; with it segments are also read on the GPU")
			fs.BoolVar(&f.quiet, "quiet", false, "print no progress on standard error")
			return f.run
		},
	}
}

func (f *tortureFlags) run(ctx context.Context, c *cli.Call) error {
	switch {
	case f.Loops < 0 || f.Loops > mostLoops:
		return cli.Usagef("--loops %d is not 0 to %d", f.Loops, mostLoops)
	case f.Power < -1 || f.Power > mostLoops:
		return cli.Usagef("--power %d is not -1 to %d", f.Power, mostLoops)
	case f.Segments < 1 || f.Segments > 10_000:
		return cli.Usagef("--segments %d is not 1 to 10000", f.Segments)
	}
	if f.soak.For != 0 {
		return f.runSoak(ctx, c)
	}
	if f.Power == -1 {
		f.Power = 3 * f.Loops
	}
	f.common(c)
	report, err := torture.Run(ctx, f.Options)
	if err != nil {
		return err
	}
	report.Version, report.Commit = version, commit
	return c.Conclude(report, report.Print, len(report.Failures()) == 0)
}

// visitor is the command of a process that -soak starts.
const visitor = "torture-visitor"

func visitorCommand() cli.Command {
	return cli.Command{
		Name: visitor, Synopsis: "ROLE SOCKET SEED", Summary: "Be a client of a daemon under load (started by torture)", Hidden: true,
		Setup: func(*pflag.FlagSet) func(context.Context, *cli.Call) error {
			return func(ctx context.Context, c *cli.Call) error { return torture.Visit(ctx, c.Args, c.Stdout) }
		},
	}
}

// common sets what all runs share.
func (f *tortureFlags) common(c *cli.Call) {
	for f.Seed == 0 {
		f.Seed = rand.Uint64()
	}
	if !f.quiet {
		f.Progress = func(line string) { fmt.Fprintln(c.Stderr, line) }
	}
}

func (f *tortureFlags) runSoak(ctx context.Context, c *cli.Call) error {
	o := &f.soak
	switch {
	case o.For < time.Second:
		return cli.Usagef("--soak %v is less than a second", o.For)
	case o.Every < 100*time.Millisecond:
		return cli.Usagef("--every %v is less than 100ms", o.Every)
	case !(o.Load > 0 && o.Load <= 1):
		return cli.Usagef("--load %g is not above 0 and at most 1", o.Load)
	case !(o.Rate >= 0 && o.Rate <= mostRate):
		return cli.Usagef("--rate %g is not 0 to %d", o.Rate, mostRate)
	case !(o.Bound > 0):
		return cli.Usagef("--bound %g is not above 0", o.Bound)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	f.common(c)
	o.Seed, o.Binary, o.Progress, o.Visitor = f.Seed, f.Binary, f.Progress, []string{self, visitor}
	report, err := torture.RunSoak(ctx, *o)
	if err != nil {
		return fmt.Errorf("seed %d: %w", o.Seed, err)
	}
	report.Version, report.Commit = version, commit
	return c.Conclude(report, report.Print, len(report.Failures()) == 0)
}
