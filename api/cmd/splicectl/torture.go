package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"

	"github.com/spliced-kv/spliced/api/cmd/splicectl/internal/torture"
)

type tortureFlags struct {
	torture.Options
	quiet bool
}

// mostLoops bounds a run: a loop takes about two seconds.
const mostLoops = 100_000

func tortureCommand() command {
	return command{
		name: "torture", synopsis: "[flags]",
		summary: "Kill a daemon of its own again and again, and audit what it acknowledged",
		about: `Writers put segments and checkpoints of all sizes at levels memory, logged and
synced, and log each reply with the level that it names. The daemon is killed with
SIGKILL at a moment of chance and started again on the same disk directory. Then
everything that was ever submitted is looked up, all names are listed, and what is
served is compared with what was submitted.

An object counts as acknowledged in the loop in which its reply arrived, and as
survived when the audit after that loop's kill, and every audit since, found it with
the right bytes. Each audit looks all objects up, reads back those of its own loop
and a sample of older ones; the last one, after a stop in good order, reads back
all. Segments that were removed on purpose are no longer audited for presence. At the end
the directory goes through what splicectl disk check -deep does.

Since a killed process never loses what the kernel has, as many power cuts again are
played on a store in this process over a file system in memory, which keeps none, some
or all of what was not synced; their fields begin with power_. There only synced has
to survive.

Exit status 1: an object acknowledged as synced is lost, more than 1 % of those
acknowledged as logged are lost to a kill, wrong bytes were served (corrupt), a name
is there that was never submitted (phantom), the check finds damage, or nothing was
acknowledged at a level.`,
		examples: []string{"-loops 5", "-loops 100 --json", "-loops 20 -seed 7 -dir /var/tmp/torture", "-loops 0 -power 500"},
		setup: func(fs *flag.FlagSet) func(context.Context, *call) error {
			var f tortureFlags
			fs.IntVar(&f.Loops, "loops", 5, "kills")
			fs.IntVar(&f.Power, "power", -1, "power `cuts`; -1 = three for each of -loops")
			fs.Uint64Var(&f.Seed, "seed", 0, "seed of what is written and of when it ends; 0 = drawn, and printed")
			fs.IntVar(&f.Segments, "segments", 150, "at most so many `objects` are submitted between two kills")
			fs.StringVar(&f.Dir, "dir", "", "empty or new `directory` for the disk tier and the log of acknowledgements, which\n"+
				"are kept (default: a temporary one, kept when something is wrong)")
			fs.StringVar(&f.Binary, "daemon", "", "`path` of spliced (default: beside this program, or in PATH)")
			fs.BoolVar(&f.quiet, "quiet", false, "no progress on standard error")
			return f.run
		},
	}
}

func (f *tortureFlags) run(ctx context.Context, c *call) error {
	switch {
	case len(c.args) > 0:
		return usagef("takes no arguments, got %q", c.args)
	case f.Loops < 0 || f.Loops > mostLoops:
		return usagef("-loops %d is not 0 to %d", f.Loops, mostLoops)
	case f.Power < -1 || f.Power > mostLoops:
		return usagef("-power %d is not -1 to %d", f.Power, mostLoops)
	case f.Segments < 1 || f.Segments > 10_000:
		return usagef("-segments %d is not 1 to 10000", f.Segments)
	}
	if f.Power == -1 {
		f.Power = 3 * f.Loops
	}
	for f.Seed == 0 {
		f.Seed = rand.Uint64()
	}
	if !f.quiet {
		f.Progress = func(line string) { fmt.Fprintln(c.stderr, line) }
	}
	report, err := torture.Run(ctx, f.Options)
	if err != nil {
		return err
	}
	report.Version, report.Commit = version, commit
	if c.json {
		err = printJSON(c.stdout, report)
	} else {
		err = report.Print(c.stdout)
	}
	if err == nil && len(report.Failures()) > 0 {
		err = errFailed
	}
	return err
}
