package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/pflag"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/api/cmd/cli"
	"github.com/spliced-kv/spliced/api/cmd/cli/show"
)

func healthCommand() cli.Command {
	return cli.Command{
		Name: "health", Group: "look", Synopsis: cli.FlagsOnly,
		Summary: "Show whether nodes are ready, and what problems they have",
		About: "Exit status 1: a node does not answer, or serves no engines. A degraded node still works and gives\n" +
			"exit status 0.",
		Examples: []string{"", "--all-contexts", "--members --admin http://10.0.0.1:9400 --json", "-w"},
		Setup: func(fs *pflag.FlagSet) func(context.Context, *cli.Call) error {
			var t target
			var w watcher
			t.flags(fs)
			t.nodeFlags(fs)
			w.flags(fs)
			return func(ctx context.Context, c *cli.Call) error {
				return w.run(ctx, c, func(ctx context.Context, c *cli.Call) error { return showHealth(ctx, c, &t) })
			}
		},
	}
}

// nodeHealth is the document of one of several nodes.
type nodeHealth struct {
	Node string `json:"node"`
	api.Health
	Error string `json:"error,omitempty"`
}

func showHealth(ctx context.Context, c *cli.Call, t *target) error {
	nodes, err := t.nodes(ctx)
	if err != nil {
		return err
	}
	answers := askAll(ctx, nodes, func(ctx context.Context, client *api.Client) (api.Health, error) { return client.Ready(ctx) })
	if !t.several() {
		h, err := answers[0].value, answers[0].err
		if err != nil {
			return err
		}
		return c.Conclude(h, func(w io.Writer) error { return printHealth(w, &h) }, h.Status != api.HealthUnavailable)
	}
	var failed error
	documents := []nodeHealth{}
	table := show.NewTable(c.Stdout, "NODE", "STATE", "WHAT IS NOT WELL")
	for _, a := range answers {
		d := nodeHealth{Node: a.node, Health: a.value}
		if a.err != nil {
			d.Status, d.Error = api.HealthUnavailable, a.err.Error()
		}
		if d.Status == api.HealthUnavailable {
			failed = cli.ErrFailed
		}
		table.Row(d.Node, show.State(d.Status), d.trouble())
		documents = append(documents, d)
	}
	if c.JSON {
		return errors.Join(failed, c.Document(map[string]any{"nodes": documents}))
	}
	return errors.Join(failed, table.Flush())
}

func (h *nodeHealth) trouble() string {
	if h.Error != "" {
		return h.Error
	}
	text := ""
	for _, check := range h.Checks {
		if check.State != api.CheckOK {
			text += fmt.Sprintf("%s: %s; ", check.Name, check.Detail)
		}
	}
	if text == "" {
		return "-"
	}
	return text[:len(text)-2]
}

func printHealth(w io.Writer, h *api.Health) error {
	t := show.NewTable(w)
	t.Row(show.State(h.Status))
	if err := t.Flush(); err != nil {
		return err
	}
	if len(h.Checks) == 0 {
		return nil
	}
	t = show.NewTable(w, "CHECK", "STATE", "")
	for _, check := range h.Checks {
		t.Row(check.Name, show.State(check.State), check.Detail)
	}
	return t.Flush()
}
