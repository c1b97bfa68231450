package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/api/cmd/splicectl/internal/show"
	"github.com/spliced-kv/spliced/api/cmd/splicectl/internal/terminal"
)

// eventKinds are what nodes tell.
var eventKinds = []string{"published", "evicted", "demoted", "promoted", "fetched", "request", "canary", "disk", "gpu", "attached", "detached", "peer", "changed"}

type eventFlags struct {
	target target
	query  api.EventQuery
	kinds  list
	follow bool
	limit  int
	retry  time.Duration // before a stream is asked for again; grows
}

func eventsCommand() command {
	return command{
		name: "events", group: "look", synopsis: "[flags]", listing: true,
		summary: "Tell what happens on a node: what comes, leaves and moves, requests, states, who attaches",
		about: "Without -f those events are listed that the node still has, the last --limit of them. With -f they are told\n" +
			"as they come, until interrupted, also over restarts of the daemon; with -o json one document a line.",
		examples: []string{"-f", "-f --kind evicted,request --tenant team-a", "-n 20", "--kind changed -o json"},
		setup: func(fs *pflag.FlagSet) func(context.Context, *call) error {
			f := eventFlags{retry: time.Second}
			f.target.flags(fs)
			fs.BoolVarP(&f.follow, "follow", "f", false, "go on telling")
			fs.Var(&f.kinds, "kind", "`kinds`, separated by commas or repeated: "+strings.Join(eventKinds, ", "))
			fs.StringVar(&f.query.Tenant, "tenant", "", "only events about this `tenant`")
			fs.Uint64Var(&f.query.After, "after", 0, "only events after this `id`")
			fs.IntVarP(&f.limit, "limit", "n", 100, "list at most this `number`, the last ones; 0 = all; not with -f")
			return f.run
		},
	}
}

func (f *eventFlags) run(ctx context.Context, c *call) error {
	switch {
	case len(c.args) > 0:
		return usagef("takes no arguments, got %q", c.args)
	case f.limit < 0:
		return usagef("--limit %d is negative", f.limit)
	case f.follow && c.flags.Changed("limit"):
		return usagef("--limit and -f do not go together; --after says where to begin")
	}
	for _, kind := range f.kinds {
		if !slices.Contains(eventKinds, kind) {
			return usagef("no kind %q, want some of %s", kind, strings.Join(eventKinds, ", "))
		}
	}
	f.query.Kinds = f.kinds
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
	items, err := client.Events(ctx, f.query)
	if err != nil {
		return err
	}
	if f.limit > 0 && len(items) > f.limit {
		items = items[len(items)-f.limit:]
	}
	return c.page(show.Of(items, false, eventView(c)))
}

// mostRetry is the longest time between two attempts at a stream.
const mostRetry = 10 * time.Second

// tell prints events as they come. A stream that ends, as with a daemon that restarts, is
// asked for again from where it ended; a new daemon counts from the beginning.
func (f *eventFlags) tell(ctx context.Context, c *call, client *api.Client) error {
	var epoch uint64 // of the daemon that was heard last
	for wait := f.retry; ; wait = min(2*wait, mostRetry) {
		status, err := client.Status(ctx)
		if err == nil {
			if epoch != 0 && status.BootEpoch != epoch {
				f.query.After = 0
			}
			epoch = status.BootEpoch
			err = client.FollowEvents(ctx, f.query, func(e api.Event) error {
				wait = f.retry
				f.query.After = max(f.query.After, e.ID)
				return printEvent(c, &e)
			})
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case epoch == 0 || !errors.Is(err, api.ErrUnavailable):
			return err
		}
		fmt.Fprintf(c.stderr, "%s; again in %v\n", terminal.Text(err.Error()), wait)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

func printEvent(c *call, e *api.Event) error {
	switch c.output {
	case formJSON:
		return json.NewEncoder(c.stdout).Encode(e)
	case formYAML:
		fmt.Fprintln(c.stdout, "---")
		return c.document(e)
	}
	_, err := fmt.Fprintf(c.stdout, "%s  %-9s  %s\n", e.At.Local().Format("15:04:05.000"), e.Kind, terminal.Line(eventText(c, e)))
	return err
}

// eventText is an event in one line.
func eventText(c *call, e *api.Event) string {
	var parts []string
	add := func(format string, a ...any) { parts = append(parts, fmt.Sprintf(format, a...)) }
	if e.Key != nil {
		add("%s %s", e.Object, c.keyOf(*e.Key, false))
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
	if e.Tokens != 0 && e.Kind != api.EventLost {
		add("%s tokens", show.Count(max(e.Tokens, 0)))
	}
	if e.Bytes != 0 {
		add("%s", show.Bytes(e.Bytes))
	}
	if e.Value != 0 {
		add("worth %.3g ms a MiB", e.Value)
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

func eventView(c *call) show.View[api.Event] {
	return show.View[api.Event]{Columns: []string{"ID", "AT", "KIND", "WHAT"}, Row: func(e *api.Event) []any {
		return []any{e.ID, e.At.Local().Format("2006-01-02 15:04:05.000"), e.Kind, eventText(c, e)}
	}}
}
