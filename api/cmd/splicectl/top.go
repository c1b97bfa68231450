package main

import (
	"context"
	"errors"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/spf13/pflag"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/api/cmd/cli"
	"github.com/spliced-kv/spliced/api/cmd/cli/terminal"
	"github.com/spliced-kv/spliced/api/cmd/splicectl/internal/top"
)

func topCommand() cli.Command {
	return cli.Command{
		Name: "top", Group: "look", Synopsis: cli.FlagsOnly, Screen: true,
		Summary: "Watch a node live: hit ratio, rates, tiers, the last requests",
		About: "Keys: q quits, p pauses, r refreshes, tab switches between requests, usage and connections, + and - change the\n" +
			"refresh rate. This command needs a terminal; without one, use splicectl stats -w.",
		Examples: []string{"", "--every 1s", "--context prod-1"},
		Setup: func(fs *pflag.FlagSet) func(context.Context, *cli.Call) error {
			var t target
			var every time.Duration
			t.flags(fs)
			fs.DurationVar(&every, "every", watchEvery, "`time` between refreshes")
			return func(ctx context.Context, c *cli.Call) error { return runTop(ctx, c, &t, every) }
		},
	}
}

func runTop(ctx context.Context, c *cli.Call, t *target, every time.Duration) error {
	if every < 100*time.Millisecond || every > time.Hour {
		return cli.Usagef("--every %v is not from 100ms to 1h", every)
	}
	plain, colour := terminal.Plain(c.Stdout)
	if !terminal.Is(plain) {
		return errors.New("standard output is not a terminal; use splicectl stats -w instead")
	}
	client, err := t.client()
	if err != nil {
		return err
	}
	defer client.Close()
	if _, err := client.Status(ctx); err != nil { // an error is reported before the screen is used
		return err
	}
	model := top.New(ctx, top.Options{Every: every, Colour: colour, Source: func(ctx context.Context) (*top.Snapshot, error) { return snapshot(ctx, client) }})
	_, err = tea.NewProgram(model, tea.WithContext(ctx), tea.WithOutput(plain)).Run()
	if ctx.Err() != nil || errors.Is(err, tea.ErrInterrupted) {
		return nil
	}
	return err
}

// topRequests is the number of requests queried: more than a screen has lines.
const topRequests = 100

// snapshot queries everything that a screen shows.
func snapshot(ctx context.Context, client *api.Client) (*top.Snapshot, error) {
	s, err := statsOf(ctx, client)
	if err != nil {
		return nil, err
	}
	out := &top.Snapshot{At: time.Now(), Counters: s.Counters, Told: s.Usage != nil}
	out.Overview = api.Overview{Status: s.Status, Pools: s.Pools, History: s.history}
	if h := s.Overview; h != nil {
		o := &out.Overview
		o.Usage, o.Connections, o.Leases, o.Segments, o.Checkpoints = *s.Usage, h.Connections, h.Leases, h.Segments, h.Checkpoints
	}
	if out.Connections, err = client.Connections(ctx); err != nil || !out.Told {
		return out, err
	}
	if out.Requests, err = client.Requests(ctx, api.RequestQuery{Limit: topRequests}); err != nil {
		return nil, err
	}
	out.Usage, err = client.Usage(ctx)
	return out, err
}
