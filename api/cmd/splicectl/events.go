package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/api/cmd/cli"
	"github.com/spliced-kv/spliced/api/cmd/cli/show"
	"github.com/spliced-kv/spliced/api/cmd/cli/terminal"
)

type eventFlags struct {
	target target
	query  api.EventQuery
	kinds  cli.List
	follow bool
	after  uint64
}

func eventsCommand() cli.Command {
	return cli.Command{
		Name: "events", Group: "look", Synopsis: cli.FlagsOnly, Listing: true,
		Summary: "Show events of a node: objects stored, evicted and moved, requests, connections, changes of state",
		About: "Without -f this lists the last --limit events that the node still has. With -f it prints events as\n" +
			"they happen, until interrupted, also across restarts of the daemon; with -o json one document per line.",
		Examples: []string{"-f", "-f --kind evicted,request --tenant team-a", "-n 20", "--kind changed -o json"},
		Setup: func(fs *pflag.FlagSet) func(context.Context, *cli.Call) error {
			var f eventFlags
			f.target.flags(fs)
			fs.BoolVarP(&f.follow, "follow", "f", false, "keep printing new events")
			fs.Var(&f.kinds, "kind", "only events of these `kinds`, separated by commas or repeated: "+strings.Join(api.EventKinds, ", "))
			fs.StringVar(&f.query.Tenant, "tenant", "", "only events about this `tenant`")
			fs.Uint64Var(&f.after, "after", 0, "only events after this `id`; 0 = all that the node still has (default: the last --limit events; with -f only new ones)")
			fs.IntVarP(&f.query.Limit, "limit", "n", 100, "list at most this `number` of events; not with -f")
			return f.run
		},
	}
}

func (f *eventFlags) run(ctx context.Context, c *cli.Call) error {
	switch {
	case f.query.Limit < 1 || f.query.Limit > api.MaxLimit:
		return cli.Usagef("--limit %d is not from 1 to %d", f.query.Limit, api.MaxLimit)
	case f.follow && c.Flags.Changed("limit"):
		return cli.Usagef("--limit and -f do not go together; --after says where to begin")
	}
	for _, kind := range f.kinds {
		if !slices.Contains(api.EventKinds, kind) {
			return cli.Usagef("no kind %q, want some of %s", kind, strings.Join(api.EventKinds, ", "))
		}
	}
	f.query.Kinds = f.kinds
	if c.Flags.Changed("after") {
		f.query.After = &f.after
	}
	client, err := f.target.client()
	if err != nil {
		return err
	}
	defer client.Close()
	if f.query.Tenant != "" {
		if err := knownTenant(ctx, client, f.query.Tenant); err != nil {
			return err
		}
	}
	if f.follow {
		return f.tell(ctx, c, client)
	}
	items, more, err := client.RecentEvents(ctx, f.query)
	if err != nil {
		return err
	}
	return c.Page(show.Of(items, more, eventView(c)))
}

// tell prints events as they occur, until the context ends.
func (f *eventFlags) tell(ctx context.Context, c *cli.Call, client *api.Client) error {
	reached := func(ok bool) {
		text := "the daemon does not answer: trying again"
		if ok {
			text = "connected again"
		}
		fmt.Fprintln(c.Stderr, text)
	}
	err := client.Events(ctx, f.query, func(e api.Event) error { return printEvent(c, &e) }, reached)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func printEvent(c *cli.Call, e *api.Event) error {
	switch c.Output {
	case cli.FormJSON:
		return json.NewEncoder(c.Stdout).Encode(e)
	case cli.FormYAML:
		fmt.Fprintln(c.Stdout, "---")
		return c.Document(e)
	}
	_, err := fmt.Fprintf(c.Stdout, "%s  %-9s  %s\n", e.At.Local().Format("15:04:05.000"), e.Kind, terminal.Line(eventText(c, e)))
	return err
}

// eventText formats an event in one line.
func eventText(c *cli.Call, e *api.Event) string {
	var parts []string
	add := func(format string, a ...any) { parts = append(parts, fmt.Sprintf(format, a...)) }
	if e.Key != nil {
		add("%s %s", e.Object, keyOf(c, *e.Key, false))
	}
	if e.Tenant != "" {
		add("tenant %s", e.Tenant)
	}
	if e.Model != "" {
		add("model %s", e.Model)
	}
	if e.Client != "" {
		add("client %s", e.Client)
	}
	if e.Lost != 0 {
		add("%s events are missing here", show.Count(e.Lost))
	}
	if e.Tokens != 0 {
		add("%s tokens", show.Count(max(e.Tokens, 0)))
	}
	if e.Bytes != 0 {
		add("%s", show.Bytes(e.Bytes))
	}
	if e.Value != 0 {
		add("worth %s ms a MiB", show.Number(e.Value))
	}
	if e.Policy != "" {
		add("by %s", e.Policy)
	}
	if e.Why != "" {
		add("%s", e.Why)
	}
	if e.Text != "" {
		add("%s", e.Text)
	}
	return strings.Join(parts, ", ")
}

func eventView(c *cli.Call) show.View[api.Event] {
	return show.View[api.Event]{Columns: []string{"ID", "AT", "KIND", "WHAT"}, Row: func(e *api.Event) []any {
		return []any{e.ID, e.At.Local().Format("2006-01-02 15:04:05.000"), e.Kind, eventText(c, e)}
	}}
}
