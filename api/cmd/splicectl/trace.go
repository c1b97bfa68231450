package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/api/cmd/cli"
	"github.com/spliced-kv/spliced/api/cmd/cli/show"
	"github.com/spliced-kv/spliced/api/cmd/cli/terminal"
	"github.com/spliced-kv/spliced/api/cmd/splicectl/internal/story"
)

// ways are the ways of serving a prompt.
var ways = []string{api.WayRecompute, api.WayPrefix, api.WaySplice, api.WayReplay}

type traceFlags struct {
	target target
	query  api.RequestQuery
	width  int
}

func traceCommand() cli.Command {
	return cli.Command{
		Name: "trace", Group: "look", Synopsis: "[flags] [ID]",
		Summary: "Show how a request was served: where its tokens came from, how long it took, and how long other ways would take",
		About: "ID is a number that splicectl ls requests lists, or the engine's own id of the request. Without an ID the last\n" +
			"request is shown. Nodes keep the last few thousand requests.",
		Examples: []string{"", "1234", "chatcmpl-77aa", "--tenant team-a --way splice", "1234 -o json"},
		Setup: func(fs *pflag.FlagSet) func(context.Context, *cli.Call) error {
			var f traceFlags
			f.target.flags(fs)
			fs.StringVar(&f.query.Tenant, "tenant", "", "show the last request of this `tenant`")
			fs.StringVar(&f.query.Way, "way", "", "show the last request that was served in this `way`: "+strings.Join(ways, ", "))
			fs.IntVar(&f.width, "width", 0, "width of the drawing in `columns` (default: that of the terminal, or 80)")
			return f.run
		},
	}
}

func (f *traceFlags) run(ctx context.Context, c *cli.Call) error {
	if len(c.Args) > 1 {
		return cli.Usagef("one request at a time, not %q", c.Args)
	}
	if len(c.Args) == 1 && (f.query.Tenant != "" || f.query.Way != "") {
		return cli.Usagef("--tenant and --way choose the last request, and %q is one", c.Args[0])
	}
	client, err := f.target.client()
	if err != nil {
		return err
	}
	defer client.Close()
	r, err := f.find(ctx, client, c.Args)
	if err != nil {
		return err
	}
	if c.JSON {
		return c.Document(r)
	}
	return f.print(c, &r)
}

// find returns the request.
func (f *traceFlags) find(ctx context.Context, client *api.Client, args []string) (api.Request, error) {
	if len(args) == 0 {
		f.query.Limit = 1
		last, err := client.Requests(ctx, f.query)
		if err != nil {
			return api.Request{}, err
		}
		if len(last) > 0 {
			return client.Request(ctx, last[0].ID)
		}
		if f.query.Tenant != "" {
			if err := knownTenant(ctx, client, f.query.Tenant); err != nil {
				return api.Request{}, err
			}
		}
		return api.Request{}, errors.New("no such request was served yet")
	}
	id, wrong := strconv.ParseUint(args[0], 10, 64)
	if wrong == nil {
		r, err := client.Request(ctx, id)
		if err == nil || !errors.Is(err, api.ErrNotFound) {
			return r, err
		}
	}
	f.query.Limit = api.MaxLimit
	items, err := client.Requests(ctx, f.query)
	if err != nil {
		return api.Request{}, err
	}
	for i := range items {
		if items[i].Name == args[0] {
			return client.Request(ctx, items[i].ID)
		}
	}
	return api.Request{}, api.NotFound("request %q not found; splicectl ls requests lists those kept", args[0])
}

func (f *traceFlags) print(c *cli.Call, r *api.Request) error {
	w := c.Stdout
	t := show.NewTable(w)
	name := fmt.Sprint(r.ID)
	if r.Name != "" {
		name += ", to the engine " + r.Name
	}
	t.Row("request", name)
	t.Row("served", r.At.Local().Format("2006-01-02 15:04:05.000")+" to "+r.Client)
	t.Row("tenant", r.Tenant)
	t.Row("model", fmt.Sprintf("%s (profile %d)", r.Model, r.Profile))
	if r.Trace != "" {
		t.Row("trace", r.Trace)
	}
	t.Row("prompt", fmt.Sprintf("%s tokens, hit ratio %s; of %s computed, %s are in seams", show.Count(r.Prompt), requestHits(r),
		show.Count(r.Computed), show.Count(r.Seam)))
	t.Row("prefix", prefixText(r))
	t.Row("moved", show.Bytes(int64(r.Bytes)))
	t.Row("took", fmt.Sprintf("match %s, waits %s, first token %v", show.Millis(r.MatchMillis), show.Millis(r.WaitMillis), told(r.TTFTMillis)))
	t.Row("saved", show.Millis(r.SavedMillis).String()+", "+estimatedBy(r))
	if r.Unverified {
		t.Row("unverified", "its client had not looked up what it reported as reused; it is in no totals")
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if err := f.draw(w, r); err != nil {
		return err
	}
	if err := printSpans(c, r.Spans); err != nil {
		return err
	}
	return printWays(w, r)
}

func prefixText(r *api.Request) string {
	switch {
	case r.Prefix > 0:
		return fmt.Sprintf("%s tokens, from %s", show.Count(r.Prefix), r.PrefixTier)
	case r.PrefixReason != "" && r.PrefixReason != "none":
		return "none: " + r.PrefixReason
	}
	return "none"
}

func (f *traceFlags) draw(w io.Writer, r *api.Request) error {
	plain, colour := terminal.Plain(w)
	width := f.width
	if width == 0 {
		width = terminal.Width(plain)
	}
	if width <= 0 {
		width = 80
	}
	_, err := io.WriteString(plain, "\n"+story.Draw(int(min(r.Prompt, 1<<30)), r.Spans, width, colour))
	return err
}

func printSpans(c *cli.Call, spans []api.Span) error {
	if len(spans) == 0 {
		return nil
	}
	fmt.Fprintln(c.Stdout)
	t := show.NewTable(c.Stdout, "TOKENS", "COUNT", "FROM", "TIER", "KEY", "REASON")
	for _, s := range spans {
		key, tier, reason := "-", "-", "-"
		if s.Key != nil {
			key = keyOf(c, *s.Key, false)
		}
		if s.Tier != "" {
			tier = s.Tier
		}
		if s.Reason != "" {
			reason = s.Reason
		}
		t.Row(fmt.Sprintf("%d-%d", s.Begin, s.End), show.Count(max(s.End-s.Begin, 0)), s.From, tier, key, reason)
	}
	return t.Flush()
}

func printWays(w io.Writer, r *api.Request) error {
	if len(r.Ways) == 0 {
		_, err := fmt.Fprintf(w, "\nserved by %s\n", r.Way)
		return err
	}
	fmt.Fprintln(w)
	t := show.NewTable(w, "WAY", "WOULD TAKE", "")
	for _, cost := range r.Ways {
		chosen := ""
		if cost.Way == r.Way {
			chosen = "chosen"
		}
		t.Row(cost.Way, show.Millis(cost.Millis), chosen)
	}
	return t.Flush()
}

// estimatedBy describes the basis of the estimated time that a request saved.
func estimatedBy(r *api.Request) string {
	switch r.SavedBy {
	case api.SavedByTTFT:
		return "estimated by measured times to first tokens"
	case api.SavedByOwn:
		return "estimated by times to first tokens that its own process reported"
	case api.SavedByPrefill:
		return "estimated by measured prefills"
	case api.SavedByGuess:
		return "a guess: no engine has measured its prefill"
	}
	return "estimated"
}
