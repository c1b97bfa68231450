package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/api/cmd/cli"
	"github.com/spliced-kv/spliced/api/cmd/cli/show"
)

func inspectCommand() cli.Command {
	return cli.Command{
		Name: "inspect", Group: "look", Listing: true, Words: []string{"decisions"}, Synopsis: "[flags] KEY | decisions",
		Summary: "Show one segment or checkpoint and the decisions about it, or the latest decisions",
		About: "Decisions record which objects were admitted, refused, evicted, thinned (kept without their states) or demoted,\n" +
			"and why. They also record the advice to engines to store an object or not; such an object has no key yet.\n" +
			"A node keeps the last few thousand decisions. With a disk it keeps up to 2,000 of them, without advice,\n" +
			"across restarts.",
		Examples: []string{"9f86d081884c", "9f86d081884c --json", "decisions", "decisions --what evicted --limit 20"},
		Setup: func(fs *pflag.FlagSet) func(context.Context, *cli.Call) error {
			var i inspection
			i.target.flags(fs)
			fs.StringVar(&i.query.Tenant, "tenant", "", "only decisions about objects of this `tenant`")
			fs.StringVar(&i.query.What, "what", "", "only `decisions` of this kind: "+strings.Join(decided, ", "))
			fs.IntVar(&i.query.Limit, "limit", 20, "show at most this `number` of decisions")
			return i.run
		},
	}
}

// decided are the kinds of decisions.
var decided = []string{api.DecidedAdmitted, api.DecidedRefused, api.DecidedEvicted, api.DecidedThinned, api.DecidedDemoted, api.DecidedDropped,
	api.DecidedAdvised, api.DecidedDiscouraged}

type inspection struct {
	target target
	query  api.DecisionQuery
}

// inspected is the JSON form of one object: its own fields and, next to them, its decisions.
type inspected struct {
	*api.SegmentDetail
	Checkpoint *api.Checkpoint `json:"checkpoint,omitempty"`
	Decisions  []api.Decision  `json:"decisions"`
}

func (i *inspection) run(ctx context.Context, c *cli.Call) error {
	if len(c.Args) != 1 {
		return cli.Usagef("want one key, the first digits of one, or decisions")
	}
	if i.query.Limit < 1 || i.query.Limit > api.MaxLimit {
		return cli.Usagef("--limit %d is not from 1 to %d", i.query.Limit, api.MaxLimit)
	}
	client, err := i.target.client()
	if err != nil {
		return err
	}
	defer client.Close()
	if c.Args[0] == "decisions" {
		items, err := client.Decisions(ctx, i.query)
		if err == nil && len(items) == 0 && i.query.Tenant != "" {
			err = knownTenant(ctx, client, i.query.Tenant)
		}
		if err != nil {
			return err
		}
		return c.Page(show.Of(items, false, decisionView(c)))
	}
	digits := strings.ToLower(c.Args[0])
	found, err := find(ctx, client, digits)
	gone := errors.Is(err, api.ErrNotFound)
	if err != nil && !gone {
		return err
	}
	i.query.Prefix = digits
	if !gone {
		i.query.Prefix = found.key().String()
	}
	if found.Decisions, err = decisionsOf(ctx, client, i.query); err != nil {
		return err
	}
	if gone {
		return i.printGone(c, digits, found.Decisions)
	}
	if c.JSON {
		return c.Document(found)
	}
	return found.print(c)
}

// decisionsOf returns the decisions about one object. It returns none if the node runs an older
// version that does not provide them.
func decisionsOf(ctx context.Context, client *api.Client, q api.DecisionQuery) ([]api.Decision, error) {
	list, err := client.Decisions(ctx, q)
	if errors.Is(err, api.ErrNotFound) {
		return []api.Decision{}, nil
	}
	return list, err
}

// printGone prints what happened to an object that is no longer cached.
func (i *inspection) printGone(c *cli.Call, digits string, decisions []api.Decision) error {
	if len(decisions) == 0 || c.JSON {
		return api.NotFound("no segment begins with %q, and no checkpoint", digits)
	}
	fmt.Fprintf(c.Stdout, "%s is not held. Decisions about it:\n\n", digits)
	if err := show.Of(decisions, false, decisionView(c)).Write(c.Stdout, c.Output == cli.FormWide); err != nil {
		return err
	}
	return cli.ErrFailed
}

// find returns the segment whose key begins with the given hex digits. If no segment does, it
// returns the checkpoint whose hash begins with them. It returns an error if several match.
func find(ctx context.Context, client *api.Client, digits string) (inspected, error) {
	key, err := findSegment(ctx, client, digits)
	if err == nil {
		d, err := client.Segment(ctx, key)
		return inspected{SegmentDetail: &d}, err
	}
	if !errors.Is(err, api.ErrNotFound) {
		return inspected{}, err
	}
	p, err := findCheckpoint(ctx, client, digits)
	if errors.Is(err, api.ErrNotFound) {
		err = api.NotFound("no segment and no checkpoint begins with %q", digits)
	}
	return inspected{Checkpoint: p}, err
}

func findSegment(ctx context.Context, client *api.Client, digits string) (api.Digest, error) {
	if err := hexDigits(digits); err != nil {
		return api.Digest{}, err
	}
	found, more, err := take(client.Segments(ctx, api.SegmentQuery{Prefix: digits, Limit: 2}), 1)
	switch {
	case err != nil:
		return api.Digest{}, err
	case more:
		return api.Digest{}, fmt.Errorf("several segments begin with %q: give more digits", digits)
	case len(found) == 0:
		return api.Digest{}, api.NotFound("no segment begins with %q", digits)
	}
	return found[0].Key, nil
}

func findCheckpoint(ctx context.Context, client *api.Client, digits string) (found *api.Checkpoint, err error) {
	if err := hexDigits(digits); err != nil {
		return nil, err
	}
	for p, err := range client.Checkpoints(ctx, api.CheckpointQuery{Limit: api.MaxLimit}) {
		switch {
		case err != nil:
			return nil, err
		case !strings.HasPrefix(p.Hash.String(), digits):
		case found != nil && found.Hash != p.Hash:
			return nil, fmt.Errorf("several checkpoints begin with %q: give more digits", digits)
		default:
			found = &p
		}
	}
	if found == nil {
		return nil, api.NotFound("no checkpoint begins with %q", digits)
	}
	return found, nil
}

// hexDigits returns an error unless text is 1 to 64 lower-case hex digits.
func hexDigits(text string) error {
	if text == "" || len(text) > 64 || strings.Trim(text, "0123456789abcdef") != "" {
		return cli.Usagef("%q is not a key in hex digits", text)
	}
	return nil
}

// onlyKey returns the key that begins with the given hex digits. The slice keys may contain a key
// repeatedly. If several different keys match, onlyKey returns an error, whose text uses the plural
// noun in the parameter what. If no key matches, it returns the parameter none.
func onlyKey(keys []api.Digest, digits, what string, none error) (api.Digest, error) {
	if err := hexDigits(digits); err != nil {
		return api.Digest{}, err
	}
	keys = slices.DeleteFunc(keys, func(key api.Digest) bool { return !strings.HasPrefix(key.String(), digits) })
	if len(keys) == 0 {
		return api.Digest{}, none
	}
	if slices.ContainsFunc(keys, func(key api.Digest) bool { return key != keys[0] }) {
		return api.Digest{}, fmt.Errorf("several %s begin with %q: give more digits", what, digits)
	}
	return keys[0], nil
}

// key returns the key of the object.
func (d *inspected) key() api.Digest {
	if d.SegmentDetail != nil {
		return d.Key
	}
	return d.Checkpoint.Hash
}

func (d *inspected) print(c *cli.Call) error {
	var err error
	if d.SegmentDetail != nil {
		err = printSegment(c, d.SegmentDetail)
	} else {
		err = printCheckpoint(c, d.Checkpoint)
	}
	if err != nil || len(d.Decisions) == 0 {
		return err
	}
	fmt.Fprintln(c.Stdout)
	return show.Of(d.Decisions, false, decisionView(c)).Write(c.Stdout, c.Output == cli.FormWide)
}

func printCheckpoint(c *cli.Call, p *api.Checkpoint) error {
	now := time.Now()
	t := show.NewTable(c.Stdout)
	t.Row("hash", p.Hash)
	t.Row("model", fmt.Sprintf("%s (profile %d)", p.Model, p.Profile))
	t.Row("tenant", p.Tenant)
	t.Row("kind", fmt.Sprintf("%s in %s, %s, %d leases", p.Kind, tiersText(p.Tiers), p.Level, p.Leases))
	t.Row("tokens", fmt.Sprintf("%d, of which %d are its own rows", p.Tokens, p.Rows))
	if p.Thinned {
		t.Row("thinned", "its states have left memory; what extends it needs its rows")
	}
	t.Row("bytes", show.Bytes(p.Bytes))
	if p.Parent != nil {
		t.Row("extends", shortKey(p.Parent))
	}
	t.Row("extended by", p.Children)
	t.Row("saved", ageText(p.Created, now)+" ago")
	t.Row("used", fmt.Sprintf("last %s ago", ageText(p.LastUsed, now)))
	return t.Flush()
}

func printSegment(c *cli.Call, d *api.SegmentDetail) error {
	now := time.Now()
	t := show.NewTable(c.Stdout)
	t.Row("key", d.Key)
	t.Row("model", fmt.Sprintf("%s (profile %d)", d.Model, d.Profile))
	t.Row("tenant", d.Tenant)
	t.Row("state", fmt.Sprintf("%s in %s, %s, %d leases", d.State, tiersText(d.Tiers), d.Level, d.Leases))
	t.Row("tokens", fmt.Sprintf("%d, role %s: %d held, %d at the head and %d at the tail are recomputed",
		d.Tokens, d.Role, d.Interior, d.HeadExcluded, d.TailExcluded))
	if d.Primer != nil {
		t.Row("primer", d.Primer)
	}
	t.Row("bytes", fmt.Sprintf("%s in %d parts and %d extents", show.Bytes(d.Bytes), len(d.Parts), d.Extents))
	if k := d.Packed; k != nil {
		t.Row("packed", fmt.Sprintf("%s as it was written; transitions are off by at most %s, the rest by %s of its norm",
			show.Size(k.PlainBytes), show.Number(k.TransitionError), show.Number(k.StateError)))
	}
	if d.DiskBytes > 0 {
		t.Row("on disk", fmt.Sprintf("%s in %d extents, codec %s", show.Bytes(d.DiskBytes), d.DiskExtents, d.Codec))
	}
	if d.OtherNodes > 0 || d.ObjectStore {
		where := fmt.Sprintf("%d other nodes", d.OtherNodes)
		if d.ObjectStore {
			where += " and the object store"
		}
		t.Row("believed at", where)
	}
	t.Row("published", fmt.Sprintf("%s ago by %s", ageText(d.Created, now), d.Publisher))
	t.Row("used", fmt.Sprintf("%d times, last %s ago", d.Hits, ageText(d.LastUsed, now)))
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(c.Stdout)
	t = show.NewTable(c.Stdout, "RANK", "LAYER", "PART", "TYPE", "SHAPE", "BYTES")
	for _, p := range d.Parts {
		shape := make([]string, len(p.Shape))
		for i, n := range p.Shape {
			shape[i] = fmt.Sprint(n)
		}
		t.Row(p.Rank, p.Layer, p.Kind, p.DType, strings.Join(shape, "×"), show.Bytes(p.Bytes))
	}
	return t.Flush()
}
