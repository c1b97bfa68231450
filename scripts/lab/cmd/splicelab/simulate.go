package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/spliced-kv/spliced/api/cmd/cli"
	"github.com/spliced-kv/spliced/api/cmd/cli/show"
	"github.com/spliced-kv/spliced/scripts/lab/simulate"
)

type simulateFlags struct {
	simulate.Options
	others, quiet bool
	daemons       bool
	binary        string
}

func simulateCommand() cli.Command {
	return cli.Command{
		Name: "simulate", Group: "measure", Synopsis: cli.FlagsOnly,
		Summary: "Simulate the index of a cluster in virtual time, with the daemon's code",
		About: `All nodes hold segments, replace some of them, and answer queries about them; the sampled
nodes also keep an index of the others' segments. The sets, deltas and indexes are the
daemon's code. The network is a model: latency with a tail, lost packets, the bytes of HTTP,
TLS and TCP. The simulation has three parts: the sampled nodes start without an index;
segments are stored and evicted; the same while nodes restart. Traffic of the membership
protocol is not included.

The simulation takes one core, 2.5 MB per node, and 3.3 bytes per segment and sampled
node: 1,000 nodes with 100,000 segments take 6 GB and some minutes.`,
		Examples: []string{
			"--nodes 100 --segments 10000",
			"--nodes 1000 --segments 100000 --json",
			"--nodes 3 --segments 100000 --churn 0.05",
			"--nodes 16 --segments 2000 --churn 0.6 --daemons",
		},
		Setup: func(fs *pflag.FlagSet) func(context.Context, *cli.Call) error {
			var f simulateFlags
			fs.IntVar(&f.Nodes, "nodes", 1000, "`number` of nodes, 3 to 4000")
			fs.IntVar(&f.Keys, "segments", 100_000, "`number` of segments per node")
			fs.IntVar(&f.Sampled, "sampled", 0, "`number` of nodes that keep an index (default 8, fewer in small clusters)")
			fs.DurationVar(&f.Duration, "duration", time.Minute, "`time` that each of the last two parts simulates")
			fs.Float64Var(&f.Churn, "churn", 0.01, "`share` of segments replaced per minute")
			fs.Float64Var(&f.Shared, "shared", 0.2, "`share` of new segments copied from another node")
			fs.Float64Var(&f.Restart, "restart", 0.1, "`share` of nodes that restart in the last part")
			fs.DurationVar(&f.Down, "down", 10*time.Second, "`time` that a restart takes")
			fs.Float64Var(&f.Lost, "lost", 0.1, "`share` of segments lost by a restart")
			fs.DurationVar(&f.Latency, "latency", 250*time.Microsecond, "median one-way latency of the network, a `time`")
			fs.Float64Var(&f.Loss, "loss", 0.001, "`share` of exchanges that lose a packet and take 200 ms longer")
			fs.Float64Var(&f.Link, "link", 12e6, "maximum `bytes` per second that a node reads for its index")
			fs.Uint64Var(&f.Seed, "seed", 1, "`seed` of the run; runs with the same seed and flags are equal")
			fs.BoolVar(&f.others, "others", false, "compare other designs of the index instead, with their memory, traffic and lookup times")
			fs.BoolVar(&f.daemons, "daemons", false, "also run the same number of real daemons on this machine, without restarts")
			fs.StringVar(&f.binary, "daemon", "", "`path` of the spliced program (default: next to this program, or in PATH)")
			fs.BoolVar(&f.quiet, "quiet", false, "print no progress on standard error")
			return f.run
		},
	}
}

func (f *simulateFlags) run(ctx context.Context, c *cli.Call) error {
	if f.others {
		return f.runOthers(ctx, c)
	}
	ended := func() {}
	if !f.quiet {
		bar := newProgress(c.Stderr)
		f.Progress, ended = func(done float64) { bar.at(done, "simulating") }, bar.end
	}
	report, err := simulate.Run(ctx, f.Options)
	ended()
	if errors.Is(err, simulate.ErrOptions) {
		return cli.UsageError{Text: err.Error()}
	}
	if err != nil {
		return err
	}
	if f.daemons {
		return f.runDaemons(ctx, c, report)
	}
	if c.JSON {
		return c.Document(report)
	}
	return printSimulated(c, report)
}

func (f *simulateFlags) runOthers(ctx context.Context, c *cli.Call) error {
	others, err := simulate.Others(ctx, f.Options)
	if errors.Is(err, simulate.ErrOptions) {
		return cli.UsageError{Text: err.Error()}
	}
	if err != nil {
		return err
	}
	if c.JSON {
		return c.Document(others)
	}
	t := show.NewTable(c.Stdout, "way", "memory", "kB/s each way", "32 keys, median", "p99", "false peers", "hits lost")
	for _, o := range others {
		t.Row(o.Way, show.Bytes(o.MemoryBytes), fmt.Sprintf("%.0f", o.BytesPerSecond/1e3), fmt.Sprintf("%.0f µs", o.Lookup32*1e6),
			fmt.Sprintf("%.0f µs", o.Lookup32P99*1e6), fmt.Sprintf("%.2f %%", 100*o.False), fmt.Sprintf("%.2f %%", 100*o.HitsLost))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, o := range others {
		fmt.Fprintf(c.Stdout, "%s: %s\n", o.Way, o.Note)
	}
	return nil
}

func printSimulated(c *cli.Call, r *simulate.Report) error {
	fmt.Fprintf(c.Stdout, "%d nodes with %d segments each, %d of them with an index; seed %d\n\n", r.Nodes, r.Segments, r.Sampled, r.Seed)
	t := show.NewTable(c.Stdout, "", r.Parts[0].Name, r.Parts[1].Name)
	row := func(name, format string, of func(*simulate.Part) float64) {
		t.Row(name, fmt.Sprintf(format, of(&r.Parts[0])), fmt.Sprintf(format, of(&r.Parts[1])))
	}
	row("sent and read, each, kB/s", "%.0f", func(p *simulate.Part) float64 { return p.BytesPerSecond / 1e3 })
	row("exchanges begun, 1/s", "%.0f", func(p *simulate.Part) float64 { return p.ExchangesPerSecond })
	row("index, MiB", "%.0f", func(p *simulate.Part) float64 { return float64(p.IndexBytes) / (1 << 20) })
	row("index, bits a key", "%.1f", func(p *simulate.Part) float64 { return p.BitsPerKey })
	row("new segment on one node, p50, s", "%.2f", func(p *simulate.Part) float64 { return p.VisibleP50 })
	row("  p99, s", "%.2f", func(p *simulate.Part) float64 { return p.VisibleP99 })
	row("  on all sampled nodes, p99, s", "%.2f", func(p *simulate.Part) float64 { return p.EverywhereP99 })
	row("hits lost, %", "%.3f", func(p *simulate.Part) float64 { return 100 * p.HitsLost })
	row("  of what came in the last minute, %", "%.2f", func(p *simulate.Part) float64 { return 100 * p.RecentHitsLost })
	row("false peers, of absent keys, %", "%.3f", func(p *simulate.Part) float64 { return 100 * p.False })
	row("  of keys that left in the last minute, %", "%.2f", func(p *simulate.Part) float64 { return 100 * p.Departed })
	row("look-up of 32 keys, median, µs", "%.1f", func(p *simulate.Part) float64 { return p.Lookup32 * 1e6 })
	row("applying deltas, % of a core", "%.2f", func(p *simulate.Part) float64 { return 100 * p.ApplyCPU })
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(c.Stdout, "\nA node's own set takes %s. A start without an index: 50 %% of the sets after %.1f s, all after %.1f s, %s read.\n",
		show.Bytes(r.Sets), r.First.Half, r.First.All, show.Bytes(r.First.Bytes))
	if len(r.Use) == 0 {
		return nil
	}
	fmt.Fprintf(c.Stdout, "A node that restarts while others do: 99 %% after %.1f s, all after %.1f s. Its hits, of the oracle's:\n\n", r.Restarted.Most, r.Restarted.All)
	t = show.NewTable(c.Stdout, "seconds", "alone", "asking a neighbour too")
	for _, u := range r.Use {
		t.Row(fmt.Sprintf("%.1f", u.Seconds), fmt.Sprintf("%.1f %%", 100*u.Alone), fmt.Sprintf("%.1f %%", 100*u.Neighbour))
	}
	return t.Flush()
}
