package main

import (
	"context"
	"flag"
	"fmt"
	"strconv"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/api/cmd/splicectl/internal/terminal"
)

// nodeStats is the JSON form of stats.
type nodeStats struct {
	Status   api.Status    `json:"status"`
	Pools    []api.Pool    `json:"pools"`
	Counters []api.Counter `json:"counters"`
}

func statsCommand() command {
	return command{
		name: "stats", synopsis: "[flags]",
		summary:  "Show a node's state, pools and counters",
		examples: []string{"", "--json", "-admin http://127.0.0.1:9400"},
		setup: func(fs *flag.FlagSet) func(context.Context, *call) error {
			var t target
			t.flags(fs)
			return func(ctx context.Context, c *call) error { return stats(ctx, c, &t) }
		},
	}
}

func stats(ctx context.Context, c *call, t *target) error {
	if len(c.args) > 0 {
		return usagef("takes no arguments, got %q", c.args)
	}
	client, err := t.client()
	if err != nil {
		return err
	}
	defer client.Close()
	var s nodeStats
	if s.Status, err = client.Status(ctx); err != nil {
		return err
	}
	if s.Pools, err = client.Pools(ctx); err != nil {
		return err
	}
	if s.Counters, err = client.Counters(ctx); err != nil {
		return err
	}
	if c.json {
		return printJSON(c.stdout, s)
	}
	return printStats(c, &s)
}

func printStats(c *call, s *nodeStats) error {
	fmt.Fprintf(c.stdout, "%s  spliced %s  %s  since %s\n", s.Status.Node, s.Status.Version, s.Status.Device,
		s.Status.Started.Format("2006-01-02 15:04:05"))
	for _, check := range s.Status.Checks {
		if check.State != api.CheckOK {
			fmt.Fprintf(c.stdout, "%s: %s: %s\n", check.State, check.Name, terminal.Line(check.Detail))
		}
	}
	fmt.Fprintln(c.stdout)
	t := newTable(c.stdout)
	poolTable(t, s.Pools)
	if err := t.flush(); err != nil {
		return err
	}
	fmt.Fprintln(c.stdout)
	if len(s.Status.GPUs) > 0 {
		t = newTable(c.stdout)
		gpuTable(t, s.Status.GPUs)
		if err := t.flush(); err != nil {
			return err
		}
		fmt.Fprintln(c.stdout)
	}
	t = newTable(c.stdout)
	for _, counter := range s.Counters {
		t.row(counter.Name, strconv.FormatFloat(counter.Value, 'f', -1, 64))
	}
	return t.flush()
}

func gpuTable(t *table, items []api.GPU) {
	t.row("GPU", "STATE", "COPIES", "PROMOTING", "USED", "CAPACITY", "OF CLIENTS", "SHARED BY", "NAME")
	for i := range items {
		g := &items[i]
		t.row(g.UUID, g.State, g.Copies, g.Promoting, bytesText(g.UsedBytes), bytesText(g.CapacityBytes), bytesText(g.Shared), g.Way, g.Name)
	}
}
