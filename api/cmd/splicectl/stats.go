package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/api/cmd/cli"
	"github.com/spliced-kv/spliced/api/cmd/cli/show"
	"github.com/spliced-kv/spliced/api/cmd/cli/terminal"
)

// nodeStats is the document of stats.
type nodeStats struct {
	Node string `json:"node,omitempty"` // name of the node, if several are queried

	Status   api.Status         `json:"status"`
	Pools    []api.Pool         `json:"pools"`
	Usage    *api.Usage         `json:"usage,omitempty"` // of all tenants and models; nil = not reported
	Overview *heldNow           `json:"held,omitempty"`  // nil = not reported
	Counters map[string]float64 `json:"counters"`
	Error    string             `json:"error,omitempty"` // if it is set, the node has not answered and the other fields are empty

	history api.History
}

// heldNow is the current content of a node.
type heldNow struct {
	Connections int    `json:"connections"`
	Leases      uint64 `json:"leases"`
	Segments    int    `json:"segments"`
	Checkpoints int    `json:"checkpoints"`
	SharedSaved int64  `json:"shared_bytes_saved"`
}

type statsFlags struct {
	target  target
	watcher watcher
	all     bool
}

func statsCommand() cli.Command {
	return cli.Command{
		Name: "stats", Group: "look", Synopsis: cli.FlagsOnly,
		Summary: "Show a node's state on one screen: token hit ratio, time saved, rates, tiers",
		About: "The token hit ratio is the share of prompt tokens reused from the daemon, among those that the engine's own\n" +
			"cache did not have. With --all, all counters and gauges are listed too, with their rates since the start. The\n" +
			"JSON document has them as an object by name.",
		Examples: []string{"", "-w", "--all", "--json", "--members --admin http://10.0.0.1:9400"},
		Setup: func(fs *pflag.FlagSet) func(context.Context, *cli.Call) error {
			var f statsFlags
			f.target.flags(fs)
			f.target.nodeFlags(fs)
			f.watcher.flags(fs)
			fs.BoolVar(&f.all, "all", false, "also list all counters and gauges")
			return f.run
		},
	}
}

func (f *statsFlags) run(ctx context.Context, c *cli.Call) error {
	if f.all && f.target.several() {
		return cli.Usagef("--all is for one node")
	}
	return f.watcher.run(ctx, c, f.once)
}

func (f *statsFlags) once(ctx context.Context, c *cli.Call) error {
	nodes, err := f.target.nodes(ctx)
	if err != nil {
		return err
	}
	answers := askAll(ctx, nodes, statsOf)
	if f.target.several() {
		return printAllStats(c, answers)
	}
	s, err := answers[0].value, answers[0].err
	switch {
	case err != nil:
		return err
	case c.JSON:
		return c.Document(s)
	}
	return s.print(c, f.all, time.Now())
}

// statsOf queries a node. A node that runs an older version without an overview provides less.
func statsOf(ctx context.Context, client *api.Client) (*nodeStats, error) {
	s := &nodeStats{Counters: map[string]float64{}}
	counters, err := client.Counters(ctx)
	if err != nil {
		return nil, err
	}
	for _, counter := range counters {
		s.Counters[counter.Name] = counter.Value
	}
	o, err := client.Overview(ctx, api.HistoryHour)
	if err == nil {
		s.Status, s.Pools, s.Usage, s.history = o.Status, o.Pools, &o.Usage, o.History
		s.Overview = &heldNow{o.Connections, o.Leases, o.Segments, o.Checkpoints, o.SharedSaved}
		return s, nil
	}
	if !errors.Is(err, api.ErrNotFound) {
		return nil, err
	}
	if s.Status, err = client.Status(ctx); err != nil {
		return nil, err
	}
	s.Pools, err = client.Pools(ctx)
	return s, err
}

func (s *nodeStats) print(c *cli.Call, all bool, now time.Time) error {
	w := c.Stdout
	fmt.Fprintf(w, "%s  spliced %s  %s  up %s, since %s\n", s.Status.Node, s.Status.Version, s.Status.Device,
		show.Long(now.Sub(s.Status.Started)), s.Status.Started.Local().Format("2006-01-02 15:04:05"))
	for _, check := range s.Status.Checks {
		if check.State != api.CheckOK {
			fmt.Fprintf(w, "%s: %s: %s\n", check.State, check.Name, terminal.Line(check.Detail))
		}
	}
	fmt.Fprintln(w)
	if err := s.served(w); err != nil {
		return err
	}
	fmt.Fprintln(w)
	if err := show.Of(s.Pools, false, poolView(c)).Write(w, false); err != nil {
		return err
	}
	if len(s.Status.GPUs) > 0 {
		fmt.Fprintln(w)
		if err := show.Of(s.Status.GPUs, false, gpuView).Write(w, false); err != nil {
			return err
		}
	}
	fmt.Fprintln(w)
	if err := s.rates(w, now); err != nil || !all {
		return err
	}
	fmt.Fprintln(w)
	return s.counters(w, now)
}

// served prints what requests gained from reuse.
func (s *nodeStats) served(w io.Writer) error {
	u, t := s.Usage, show.NewTable(w)
	if u == nil {
		t.Row("token hit ratio", "-", "not reported by this version of the daemon")
		return t.Flush()
	}
	t.Row("token hit ratio", hits(u), fmt.Sprintf("of %s prompt tokens; %s with the engine's own cache", show.Count(u.Prompt), allHits(u)))
	t.Row("", "", fmt.Sprintf("%s from prefixes, %s from segments, %s computed, of these %s in seams; %s in the engine",
		show.Count(u.Prefix), show.Count(u.Reused), show.Count(u.Computed), show.Count(u.Seam), show.Count(u.Engine)))
	if missed := missedText(u.Missed, 5); missed != "-" {
		t.Row("", "", "missed tokens: "+missed)
	}
	each := ""
	if u.Requests > 0 {
		each = fmt.Sprintf(", %s a request", show.Millis(u.Saved/float64(u.Requests)))
	}
	guess := ""
	if u.SavedGuess != 0 {
		guess = fmt.Sprintf("; %s of it is a guess: no engine has measured its prefill", show.LongMillis(u.SavedGuess))
	}
	t.Row("time saved", show.LongMillis(u.Saved), "estimated, by "+show.Count(u.Requests).String()+" requests"+each+guess)
	if u.Unverified > 0 {
		t.Row("unverified", show.Count(u.Unverified), fmt.Sprintf("reports, of %s prompt tokens, are not included: their clients had not looked up what they reported as reused", show.Count(u.UnverifiedTokens)))
	}
	if lately := s.lately(); lately != "" {
		t.Row("lately", "", lately)
	}
	if o := s.Overview; o != nil {
		t.Row("held", "", fmt.Sprintf("%s segments, %s checkpoints; %d leases of %d connections, which save %s by sharing",
			show.Count(o.Segments), show.Count(o.Checkpoints), o.Leases, o.Connections, show.Bytes(o.SharedSaved)))
	}
	return t.Flush()
}

// latelySteps is the number of steps of the recent history: ten minutes.
const latelySteps = 60

// lately describes the last minutes; "" if nothing is known.
func (s *nodeStats) lately() string {
	sum := func(name string) (total float64, steps int) {
		values := s.history.Series[name]
		for _, v := range values[max(0, len(values)-latelySteps):] {
			total, steps = total+v, steps+1
		}
		return total, steps
	}
	requests, steps := sum("requests")
	seconds := float64(steps * s.history.StepSeconds)
	if seconds == 0 {
		return ""
	}
	prompt, _ := sum("prompt_tokens")
	engine, _ := sum("engine_tokens")
	prefix, _ := sum("prefix_tokens")
	reused, _ := sum("reused_tokens")
	saved, _ := sum("saved_ms")
	return fmt.Sprintf("%s requests/s, %s tokens/s, hit ratio %s, %s saved, in the last %s", show.Number(requests/seconds), show.Number(prompt/seconds),
		show.ShareOf(prefix+reused, prompt-engine), show.LongMillis(saved), show.Long(time.Duration(seconds)*time.Second))
}

// toldCounters are the counters of the first screen, with their labels.
var toldCounters = []struct{ what, count, bytes string }{
	{"segments and checkpoints published", "published", "published_bytes"},
	{"evicted from memory for room", "evicted_room", "evicted_bytes"},
	{"evicted from memory for a quota", "evicted_quota", ""},
	{"read from disk", "disk_read", "disk_read_bytes"},
	{"written to disk", "disk_written", "disk_written_bytes"},
	{"brought back to memory", "promotions_done", "promoted_bytes"},
	{"copied to GPUs", "hbm_promotions_done", "hbm_promoted_bytes"},
	{"not sent again, since it was there", "reserve_exists", "reserve_exists_bytes"},
	{"fetched from other nodes", "peer_fetches_done", "peer_fetched_bytes"},
}

// rates prints the counts since the start, and their rates.
func (s *nodeStats) rates(w io.Writer, now time.Time) error {
	seconds := max(now.Sub(s.Status.Started).Seconds(), 1)
	t := show.NewTable(w, "SINCE THE START", "OBJECTS", "PER SECOND", "BYTES", "PER SECOND")
	for i, r := range toldCounters {
		count, bytes := s.Counters[r.count], s.Counters[r.bytes]
		if i > 1 && count == 0 && bytes == 0 {
			continue
		}
		row := []any{r.what, show.Count(count), show.Number(count / seconds)}
		if r.bytes != "" {
			row = append(row, show.Size(bytes), show.Bytes(int64(bytes/seconds))+"/s")
		}
		t.Row(row...)
	}
	return t.Flush()
}

// counters prints all counters by name, with units.
func (s *nodeStats) counters(w io.Writer, now time.Time) error {
	seconds := max(now.Sub(s.Status.Started).Seconds(), 1)
	t := show.NewTable(w, "COUNTER OR GAUGE", "VALUE", "PER SECOND")
	for _, name := range slices.Sorted(maps.Keys(s.Counters)) {
		v := s.Counters[name]
		t.Row(name, unitText(name, v), unitText(name, v/seconds))
	}
	return t.Flush()
}

// unitText formats a value with the unit at the end of its name.
func unitText(name string, v float64) string {
	switch {
	case strings.HasSuffix(name, "_bytes"):
		return show.Bytes(int64(v))
	case strings.HasSuffix(name, "_nanos"):
		return show.Long(time.Duration(v))
	case strings.HasSuffix(name, "_seconds"):
		return show.Long(time.Duration(v * float64(time.Second)))
	case strings.HasSuffix(name, "_tokens"):
		return numberText(v) + " tokens"
	}
	return numberText(v)
}

func numberText(v float64) string {
	if v >= 0 && v == float64(uint64(v)) {
		return show.Count(v).String()
	}
	return show.Number(v)
}

var gpuView = show.View[api.GPU]{
	Columns: []string{"GPU", "STATE", "COPIES", "PROMOTING", "USED", "CAPACITY", "OF CLIENTS", "SHARED BY", "NAME"},
	Row: func(g *api.GPU) []any {
		return []any{g.UUID, show.State(g.State), g.Copies, g.Promoting, show.Size(g.UsedBytes), show.Size(g.CapacityBytes), show.Size(g.Shared), g.Way, g.Name}
	},
}

// printAllStats prints a line for each node.
func printAllStats(c *cli.Call, answers []answer[*nodeStats]) error {
	var failed error
	documents := []*nodeStats{}
	t := show.NewTable(c.Stdout, "NODE", "STATE", "HIT", "SAVED", "REQUESTS", "DRAM", "DISK", "HBM", "UP", "VERSION")
	for _, a := range answers {
		s := a.value
		if a.err != nil {
			failed = cli.ErrFailed
			documents = append(documents, &nodeStats{Node: a.node, Error: a.err.Error()})
			t.Row(a.node, show.State(api.HealthUnavailable), "-", "-", "-", "-", "-", "-", "-", a.err.Error())
			continue
		}
		s.Node = a.node
		documents = append(documents, s)
		ratio, savedTime, requests := any("-"), any("-"), any("-")
		if u := s.Usage; u != nil {
			ratio, savedTime, requests = hits(u), show.LongMillis(u.Saved), show.Count(u.Requests)
		}
		t.Row(a.node, s.state(), ratio, savedTime, requests, s.fullness("dram"), s.fullness("disk"), s.fullness("hbm"),
			show.Long(time.Since(s.Status.Started)), s.Status.Version)
	}
	if c.JSON {
		return errors.Join(failed, c.Document(map[string]any{"nodes": documents}))
	}
	return errors.Join(failed, t.Flush())
}

// state returns the worst state of the node's checks.
func (s *nodeStats) state() show.State {
	if slices.ContainsFunc(s.Status.Checks, func(c api.Check) bool { return c.State != api.CheckOK }) {
		return api.CheckDegraded
	}
	return api.CheckOK
}

// fullness formats the used part of a tier.
func (s *nodeStats) fullness(tier string) string {
	var used, capacity int64
	for i := range s.Pools {
		if p := &s.Pools[i]; p.Tier == tier {
			used, capacity = used+p.UsedBytes, capacity+p.CapacityBytes
		}
	}
	if capacity == 0 {
		return "-"
	}
	return fmt.Sprintf("%s of %s", show.Bytes(used), show.Bytes(capacity))
}
