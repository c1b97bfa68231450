package main

import (
	"context"
	"flag"
	"fmt"
	"strings"
	"time"

	"github.com/spliced-kv/spliced/api"
)

func inspectCommand() command {
	return command{
		name: "inspect", synopsis: "[flags] KEY",
		summary:  "Show one segment with its parts",
		examples: []string{"9f86d081884c", "9f86d081884c --json"},
		setup: func(fs *flag.FlagSet) func(context.Context, *call) error {
			var t target
			t.flags(fs)
			return func(ctx context.Context, c *call) error { return inspect(ctx, c, &t) }
		},
	}
}

func inspect(ctx context.Context, c *call, t *target) error {
	if len(c.args) != 1 {
		return usagef("want one segment key or the first digits of one")
	}
	client, err := t.client()
	if err != nil {
		return err
	}
	defer client.Close()
	key, err := resolveKey(ctx, client, strings.ToLower(c.args[0]))
	if err != nil {
		return err
	}
	d, err := client.Segment(ctx, key)
	if err != nil {
		return err
	}
	if c.json {
		return printJSON(c.stdout, d)
	}
	return printSegment(c, &d)
}

// resolveKey finds the only key that begins with digits.
func resolveKey(ctx context.Context, client *api.Client, digits string) (api.Digest, error) {
	var key api.Digest
	if key.UnmarshalText([]byte(digits)) == nil {
		return key, nil
	}
	found, more, err := take(client.Segments(ctx, api.SegmentQuery{Prefix: digits, Limit: 2}), 1)
	switch {
	case err != nil:
		return key, err
	case len(found) == 0:
		return key, fmt.Errorf("no segment begins with %q: %w", digits, api.ErrNotFound)
	case more:
		return key, fmt.Errorf("several segments begin with %q: give more digits", digits)
	}
	return found[0].Key, nil
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
