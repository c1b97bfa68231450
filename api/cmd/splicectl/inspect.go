package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"
	"time"

	"github.com/spliced-kv/spliced/api"
)

func inspectCommand() command {
	return command{
		name: "inspect", synopsis: "[flags] KEY | decisions",
		summary: "Show one segment or checkpoint and what was decided about it, or the last decisions",
		about: "Decisions say what was admitted, refused, evicted, thinned or demoted, and why, and what engines\n" +
			"were advised to store or not to, which has no key yet. A node remembers the last few thousand.",
		examples: []string{"9f86d081884c", "9f86d081884c --json", "decisions", "decisions -what evicted -limit 20"},
		setup: func(fs *flag.FlagSet) func(context.Context, *call) error {
			var i inspection
			i.target.flags(fs)
			fs.StringVar(&i.query.Tenant, "tenant", "", "only decisions about this `tenant`")
			fs.StringVar(&i.query.What, "what", "", "only `decisions` of this kind: admitted, refused, evicted, thinned, demoted, dropped, advised, discouraged")
			fs.IntVar(&i.query.Limit, "limit", 20, "show at most this `number` of decisions")
			return i.run
		},
	}
}

type inspection struct {
	target target
	query  api.DecisionQuery
}

// inspected is the JSON form of one object. Its fields stand beside those of
// decisions.
type inspected struct {
	*api.SegmentDetail
	Checkpoint *api.Checkpoint `json:"checkpoint,omitempty"`
	Decisions  []api.Decision  `json:"decisions"`
}

func (i *inspection) run(ctx context.Context, c *call) error {
	if len(c.args) != 1 {
		return usagef("want one key, the first digits of one, or decisions")
	}
	if i.query.Limit < 1 || i.query.Limit > api.MaxLimit {
		return usagef("-limit %d is not from 1 to %d", i.query.Limit, api.MaxLimit)
	}
	client, err := i.target.client()
	if err != nil {
		return err
	}
	defer client.Close()
	if c.args[0] == "decisions" {
		items, err := client.Decisions(ctx, i.query)
		return show(c, items, false, err, decisionTable)
	}
	digits := strings.ToLower(c.args[0])
	found, err := find(ctx, client, digits)
	gone := errors.Is(err, api.ErrNotFound)
	if err != nil && !gone {
		return err
	}
	i.query.Prefix = found.digits(digits)
	if found.Decisions, err = decisionsOf(ctx, client, i.query); err != nil {
		return err
	}
	if gone {
		return i.printGone(c, digits, found.Decisions)
	}
	if c.json {
		return printJSON(c.stdout, found)
	}
	return found.print(c)
}

// decisionsOf are those about one object; none of a node that is too old to tell.
func decisionsOf(ctx context.Context, client *api.Client, q api.DecisionQuery) ([]api.Decision, error) {
	list, err := client.Decisions(ctx, q)
	if errors.Is(err, api.ErrNotFound) {
		return []api.Decision{}, nil
	}
	return list, err
}

// printGone says what became of something that is not held any more.
func (i *inspection) printGone(c *call, digits string, decisions []api.Decision) error {
	if len(decisions) == 0 || c.json {
		return fmt.Errorf("no segment begins with %q, and no checkpoint: %w", digits, api.ErrNotFound)
	}
	fmt.Fprintf(c.stdout, "%s is not held. What was decided about it:\n\n", digits)
	t := newTable(c.stdout)
	decisionTable(t, decisions)
	if err := t.flush(); err != nil {
		return err
	}
	return errFailed
}

// find looks for the only segment, or else the only checkpoint, whose key begins
// with digits.
func find(ctx context.Context, client *api.Client, digits string) (inspected, error) {
	segments, more, err := take(client.Segments(ctx, api.SegmentQuery{Prefix: digits, Limit: 2}), 1)
	switch {
	case err != nil:
		return inspected{}, err
	case more:
		return inspected{}, fmt.Errorf("several segments begin with %q: give more digits", digits)
	case len(segments) == 1:
		d, err := client.Segment(ctx, segments[0].Key)
		return inspected{SegmentDetail: &d}, err
	}
	var found inspected
	for p, err := range client.Checkpoints(ctx, api.CheckpointQuery{Limit: api.MaxLimit}) {
		switch {
		case err != nil:
			return found, err
		case !strings.HasPrefix(p.Hash.String(), digits):
		case found.Checkpoint != nil && found.Checkpoint.Hash != p.Hash:
			return inspected{}, fmt.Errorf("several checkpoints begin with %q: give more digits", digits)
		default:
			found.Checkpoint = &p
		}
	}
	if found.Checkpoint == nil {
		return found, fmt.Errorf("%q: %w", digits, api.ErrNotFound)
	}
	return found, nil
}

// digits is the whole key of what was found, else what was asked for.
func (d *inspected) digits(asked string) string {
	switch {
	case d.SegmentDetail != nil:
		return d.Key.String()
	case d.Checkpoint != nil:
		return d.Checkpoint.Hash.String()
	}
	return asked
}

func (d *inspected) print(c *call) error {
	var err error
	if d.SegmentDetail != nil {
		err = printSegment(c, d.SegmentDetail)
	} else {
		err = printCheckpoint(c, d.Checkpoint)
	}
	if err != nil || len(d.Decisions) == 0 {
		return err
	}
	fmt.Fprintln(c.stdout)
	t := newTable(c.stdout)
	decisionTable(t, d.Decisions)
	return t.flush()
}

func decisionTable(t *table, items []api.Decision) {
	now := time.Now()
	t.row("AGE", "DECISION", "OBJECT", "KEY", "TOKENS", "BYTES", "MS/MIB", "TENANT", "WHY")
	for _, d := range items {
		key := "-"
		if d.Key != nil {
			key = shortKey(d.Key)
		}
		t.row(ageText(d.At, now), d.What, d.Object, key, fmt.Sprintf("%d-%d", d.Begin, d.End), bytesText(d.Bytes),
			fmt.Sprintf("%.3g", d.Value), d.Tenant, d.Why)
	}
}

func printCheckpoint(c *call, p *api.Checkpoint) error {
	now := time.Now()
	t := newTable(c.stdout)
	t.row("hash", p.Hash)
	t.row("model", fmt.Sprintf("%s (profile %d)", p.Model, p.Profile))
	t.row("tenant", p.Tenant)
	t.row("kind", fmt.Sprintf("%s in %s, %s, %d leases", p.Kind, tiersText(p.Tiers), p.Level, p.Leases))
	t.row("tokens", fmt.Sprintf("%d, of which %d are its own rows", p.Tokens, p.Rows))
	if p.Thinned {
		t.row("thinned", "its states have left memory; what extends it needs its rows")
	}
	t.row("bytes", bytesText(p.Bytes))
	if p.Parent != nil {
		t.row("extends", shortKey(p.Parent))
	}
	t.row("extended by", p.Children)
	t.row("saved", ageText(p.Created, now)+" ago")
	t.row("used", fmt.Sprintf("last %s ago", ageText(p.LastUsed, now)))
	return t.flush()
}

func printSegment(c *call, d *api.SegmentDetail) error {
	now := time.Now()
	t := newTable(c.stdout)
	t.row("key", d.Key)
	t.row("model", fmt.Sprintf("%s (profile %d)", d.Model, d.Profile))
	t.row("tenant", d.Tenant)
	t.row("state", fmt.Sprintf("%s in %s, %s, %d leases", d.State, tiersText(d.Tiers), d.Level, d.Leases))
	t.row("tokens", fmt.Sprintf("%d, role %s: %d held, %d at the head and %d at the tail are recomputed",
		d.Tokens, d.Role, d.Interior, d.HeadExcluded, d.TailExcluded))
	t.row("bytes", fmt.Sprintf("%s in %d parts and %d extents", bytesText(d.Bytes), len(d.Parts), d.Extents))
	if d.DiskBytes > 0 {
		t.row("on disk", fmt.Sprintf("%s in %d extents, codec %s", bytesText(d.DiskBytes), d.DiskExtents, d.Codec))
	}
	if d.OtherNodes > 0 || d.ObjectStore {
		where := fmt.Sprintf("%d other nodes", d.OtherNodes)
		if d.ObjectStore {
			where += " and the object store"
		}
		t.row("believed at", where)
	}
	t.row("published", fmt.Sprintf("%s ago by %s", ageText(d.Created, now), d.Publisher))
	t.row("used", fmt.Sprintf("%d times, last %s ago", d.Hits, ageText(d.LastUsed, now)))
	if err := t.flush(); err != nil {
		return err
	}
	fmt.Fprintln(c.stdout)
	t = newTable(c.stdout, "RANK", "LAYER", "PART", "TYPE", "SHAPE", "BYTES")
	for _, p := range d.Parts {
		shape := make([]string, len(p.Shape))
		for i, n := range p.Shape {
			shape[i] = fmt.Sprint(n)
		}
		t.row(p.Rank, p.Layer, p.Kind, p.DType, strings.Join(shape, "×"), bytesText(p.Bytes))
	}
	return t.flush()
}
