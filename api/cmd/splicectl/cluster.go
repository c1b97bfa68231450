package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/api/cmd/cli"
	"github.com/spliced-kv/spliced/api/cmd/cli/show"
	"github.com/spliced-kv/spliced/api/cmd/cli/terminal"
)

// clusterShown is the JSON form of cluster.
type clusterShown struct {
	api.Cluster
	Findings []api.Finding `json:"findings"`
}

func clusterCommand() cli.Command {
	return cli.Command{
		Name: "cluster", Group: "look", Synopsis: cli.FlagsOnly,
		Summary: "Show the members of a node's cluster, the index of their objects, and the fetches from them",
		About: `This is the view of the node that is asked. LAG is the age of the last complete list of objects
received from a member. RATE is the measured speed of fetches from the member, and QUEUED the bytes
requested and not received yet. Nodes that failed (crashed or cut off) or left are listed for 72
hours; SINCE is then the time when they were last seen.

Exit status 1: a member cannot be used or reached, or the node is not in a cluster.`,
		Examples: []string{"", "--json", "--admin http://127.0.0.1:9400"},
		Setup: func(fs *pflag.FlagSet) func(context.Context, *cli.Call) error {
			var t target
			t.flags(fs)
			return func(ctx context.Context, c *cli.Call) error { return showCluster(ctx, c, &t) }
		},
	}
}

func showCluster(ctx context.Context, c *cli.Call, t *target) error {
	client, err := t.client()
	if err != nil {
		return err
	}
	defer client.Close()
	known, err := client.Cluster(ctx)
	if err != nil {
		return err
	}
	now := time.Now()
	s := clusterShown{known, known.Findings(now)}
	if s.Findings == nil {
		s.Findings = []api.Finding{}
	}
	return c.Conclude(s, func(w io.Writer) error { return s.print(w, now) }, s.Enabled && !s.failed())
}

// failed reports whether a member that should be usable is not.
func (s *clusterShown) failed() bool {
	for _, f := range s.Findings {
		if f.Kind == api.FoundUnusable || f.Kind == api.FoundUnreachable {
			return true
		}
	}
	return false
}

func (s *clusterShown) print(w io.Writer, now time.Time) error {
	if !s.Enabled {
		_, err := fmt.Fprintln(w, "The node is not in a cluster: cluster-seeds lists nodes to join.")
		return err
	}
	t := show.NewTable(w, "MEMBER", "STATE", "SINCE", "VERSION", "NAMES", "LAG", "RTT", "CLOCK", "RATE", "QUEUED", "ADDRESS")
	for i := range s.Members {
		s.row(t, &s.Members[i], now)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "\nCluster %s: %s, %d names of others in %s, %d own; %s fetched, %s sent.\n",
		terminal.Line(s.Name), s.states(), s.Index.Names, show.Bytes(s.Index.Bytes), s.Own.Names,
		show.Bytes(int64(s.Fetched)), show.Bytes(int64(s.Sent)))
	for i := range s.Workers {
		worker := &s.Workers[i]
		fmt.Fprintf(w, "Connection %d computes segments for others: tenant %s, profile %d, %d of %d jobs, %s queued.\n",
			worker.Connection, terminal.Line(worker.Tenant), worker.Profile, worker.Jobs, worker.AtOnce, secondsText(worker.Queued))
	}
	for _, f := range s.Findings {
		who := ""
		if f.Member != "" {
			who = f.Member + ": "
		}
		fmt.Fprintf(w, "%s: %s\n", f.Kind, terminal.Line(who+f.Text))
	}
	return nil
}

// states formats the number of members by state.
func (s *clusterShown) states() string {
	counts := map[string]int{}
	for i := range s.Members {
		counts[s.Members[i].State]++
	}
	text := fmt.Sprintf("%d alive", counts[api.MemberAlive])
	for _, state := range []string{api.MemberUnreachable, api.MemberLeaving, api.MemberFailed, api.MemberLeft} {
		if n := counts[state]; n > 0 {
			text += fmt.Sprintf(", %d %s", n, state)
		}
	}
	return text
}

func (s *clusterShown) row(t *show.Table, m *api.Member, now time.Time) {
	since := m.Since // for a member that is gone, this becomes the time when it was last seen
	name, state, names, lag, rtt, clock, rate, queued := m.Name, m.State, "-", "-", "-", "-", "-", "-"
	switch {
	case m.Self:
		name += " (asked)"
		names = strconv.FormatInt(s.Own.Names, 10)
	case m.State == api.MemberAlive && m.Unusable != "":
		state = "unusable"
	case (m.State == api.MemberFailed || m.State == api.MemberLeft) && m.Seen != nil:
		since = *m.Seen
	}
	if m.RTT != nil {
		rtt = secondsText(*m.RTT)
	}
	if m.ClockAhead != nil {
		clock = clockText(*m.ClockAhead)
	}
	if x := m.Index; x != nil {
		switch {
		case x.Complete:
			names = strconv.FormatInt(x.Names, 10)
		case x.Reading:
			names = "being read"
		}
		if x.AsOf != nil {
			lag = secondsText(now.Sub(*x.AsOf).Seconds())
		}
	}
	if f := m.Fetch; f != nil {
		if f.BytesPerSecond > 0 {
			rate = show.Bytes(int64(f.BytesPerSecond)) + "/s"
		}
		queued = show.Bytes(f.QueuedBytes)
	}
	t.Row(name, state, ageText(since, now), m.Version, names, lag, rtt, clock, rate, queued, m.Peer)
}

// clockText formats a clock difference without an exponent: +75 µs, -2 ms, +3600 s.
func clockText(s float64) string {
	size, unit := math.Abs(s), "s"
	switch {
	case size < 0.001:
		size, unit = size*1e6, "µs"
	case size < 1:
		size, unit = size*1e3, "ms"
	}
	decimals := 0
	if size < 10 {
		decimals = 1
	}
	sign := "+"
	if s < 0 {
		sign = "-"
	}
	return sign + strings.TrimSuffix(strconv.FormatFloat(size, 'f', decimals, 64), ".0") + " " + unit
}

// secondsText formats a short time: 0.5 ms, 12 s.
func secondsText(s float64) string {
	switch {
	case s < 0.001:
		return fmt.Sprintf("%.3g µs", s*1e6)
	case s < 1:
		return fmt.Sprintf("%.3g ms", s*1e3)
	}
	return fmt.Sprintf("%.3g s", s)
}
