package main

import (
	"context"
	"flag"
	"iter"
	"strings"
	"time"

	"github.com/spliced-kv/spliced/api"
)

type listing struct {
	target  target
	tenant  string
	profile int
	prefix  string
	limit   int
	long    bool
}

func lsCommand() command {
	return command{
		name: "ls", synopsis: "[flags] [segments|checkpoints|profiles|canaries|pools|connections]",
		summary:  "List what a node holds",
		examples: []string{"", "-tenant team-a -limit 20", "checkpoints --json", "pools", "connections"},
		setup: func(fs *flag.FlagSet) func(context.Context, *call) error {
			var l listing
			l.target.flags(fs)
			fs.StringVar(&l.tenant, "tenant", "", "only this `tenant`'s segments or checkpoints")
			fs.IntVar(&l.profile, "profile", -1, "only segments or checkpoints of this profile `id`")
			fs.StringVar(&l.prefix, "key-prefix", "", "only segments whose key begins with these hex `digits`")
			fs.IntVar(&l.limit, "limit", 100, "list at most this `number`; 0 = all")
			fs.BoolVar(&l.long, "long", false, "whole keys")
			return l.run
		},
	}
}

func (l *listing) run(ctx context.Context, c *call) error {
	if len(c.args) > 1 {
		return usagef("one kind of thing at a time, not %q", c.args)
	}
	if l.limit < 0 {
		return usagef("-limit %d is negative", l.limit)
	}
	kind := "segments"
	if len(c.args) == 1 {
		kind = c.args[0]
	}
	client, err := l.target.client()
	if err != nil {
		return err
	}
	defer client.Close()
	switch kind {
	case "segments":
		q := api.SegmentQuery{Tenant: l.tenant, Profile: l.profileID(), Prefix: strings.ToLower(l.prefix), Limit: l.page()}
		items, more, err := take(client.Segments(ctx, q), l.limit)
		return show(c, items, more, err, l.segments)
	case "checkpoints":
		q := api.CheckpointQuery{Tenant: l.tenant, Profile: l.profileID(), Limit: l.page()}
		items, more, err := take(client.Checkpoints(ctx, q), l.limit)
		return show(c, items, more, err, l.checkpoints)
	case "profiles":
		items, err := client.Profiles(ctx)
		return show(c, items, false, err, profileTable)
	case "canaries":
		items, err := client.Canaries(ctx)
		return show(c, items, false, err, canaryTable)
	case "pools":
		items, err := client.Pools(ctx)
		return show(c, items, false, err, poolTable)
	case "connections":
		items, err := client.Connections(ctx)
		return show(c, items, false, err, connectionTable)
	}
	return usagef("cannot list %q", kind)
}

func (l *listing) profileID() *uint32 {
	if l.profile < 0 {
		return nil
	}
	id := uint32(l.profile)
	return &id
}

func (l *listing) page() int {
	if l.limit == 0 {
		return api.MaxLimit
	}
	return min(l.limit, api.MaxLimit)
}

// take reads at most limit items (0 = all) and says whether there were more.
func take[T any](seq iter.Seq2[T, error], limit int) ([]T, bool, error) {
	items := []T{}
	for item, err := range seq {
		if err != nil {
			return nil, false, err
		}
		if limit > 0 && len(items) == limit {
			return items, true, nil
		}
		items = append(items, item)
	}
	return items, false, nil
}

// listed is the JSON form of a listing.
type listed[T any] struct {
	Items []T  `json:"items"`
	More  bool `json:"more"` // -limit cut it
}

func show[T any](c *call, items []T, more bool, err error, rows func(*table, []T)) error {
	if err != nil {
		return err
	}
	if c.json {
		return printJSON(c.stdout, listed[T]{Items: items, More: more})
	}
	t := newTable(c.stdout)
	rows(t, items)
	if more {
		t.row("… and more: raise -limit")
	}
	return t.flush()
}

func (l *listing) key(d api.Digest) string {
	if l.long {
		return d.String()
	}
	return shortKey(d)
}

func (l *listing) segments(t *table, items []api.Segment) {
	now := time.Now()
	t.row("KEY", "STATE", "TIERS", "LEVEL", "ROLE", "TOKENS", "BYTES", "LEASES", "HITS", "USED", "TENANT", "MODEL")
	for _, s := range items {
		t.row(l.key(s.Key), s.State, tiersText(s.Tiers), s.Level, s.Role, s.Tokens, bytesText(s.Bytes), s.Leases, s.Hits,
			ageText(s.LastUsed, now), s.Tenant, s.Model)
	}
}

func (l *listing) checkpoints(t *table, items []api.Checkpoint) {
	now := time.Now()
	t.row("HASH", "KIND", "TIERS", "LEVEL", "TOKENS", "ROWS", "BYTES", "LEASES", "CHILDREN", "USED", "TENANT", "MODEL")
	for _, s := range items {
		t.row(l.key(s.Hash), s.Kind, tiersText(s.Tiers), s.Level, s.Tokens, s.Rows, bytesText(s.Bytes), s.Leases, s.Children,
			ageText(s.LastUsed, now), s.Tenant, s.Model)
	}
}

// tiersText names tiers, fastest first.
func tiersText(tiers []string) string {
	if len(tiers) == 0 {
		return "-"
	}
	return strings.Join(tiers, "+")
}

func profileTable(t *table, items []api.Profile) {
	t.row("ID", "FINGERPRINT", "LAYERS", "LINEAR", "ATTENTION", "TP", "STATE/RANK", "ROW/RANK", "SEGMENTS", "CHECKPOINTS", "MODEL")
	for _, p := range items {
		t.row(p.ID, shortKey(p.Fingerprint), p.Layers, p.LinearLayers, p.AttentionLayers, p.TPSize,
			bytesText(p.StateBytes), bytesText(p.RowBytes), p.Segments, p.Checkpoints, p.Model)
	}
}

func poolTable(t *table, items []api.Pool) {
	t.row("POOL", "TIER", "USED", "CAPACITY", "LEASED", "PENDING", "QUARANTINED", "OBJECTS", "DEVICE")
	for _, p := range items {
		t.row(p.Name, p.Tier, bytesText(p.UsedBytes), bytesText(p.CapacityBytes), bytesText(p.LeasedBytes),
			bytesText(p.PendingBytes), bytesText(p.QuarantinedBytes), p.Objects, p.Device)
		for _, q := range p.Tenants {
			t.row("  "+q.Tenant, "", bytesText(q.UsedBytes), quotaText(q.QuotaBytes))
		}
	}
}

func quotaText(n int64) string {
	if n == 0 {
		return "no quota"
	}
	return bytesText(n)
}

func connectionTable(t *table, items []api.Connection) {
	now := time.Now()
	t.row("ID", "CLIENT", "UID", "PID", "AGE", "REQUESTS", "IN FLIGHT", "LEASES", "STAGING", "GPU", "TENANTS")
	for _, n := range items {
		t.row(n.ID, n.Client, n.UID, n.PID, ageText(n.Since, now), n.Requests, n.InFlight, n.Leases,
			bytesText(n.StagingBytes), bytesText(n.DeviceBytes), strings.Join(n.Tenants, ","))
	}
}
