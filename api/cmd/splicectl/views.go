package main

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/api/cmd/cli"
	"github.com/spliced-kv/spliced/api/cmd/cli/show"
)

// Columns of listings, and their cells. Columns with a plus are only shown with -o wide.

var segmentColumns = []string{"KEY", "STATE", "TIERS", "LEVEL", "ROLE", "TOKENS", "BYTES", "LEASES", "HITS", "USED", "TENANT", "MODEL", "+PROFILE", "+INTERIOR", "+ON DISK", "+CREATED", "+PUBLISHER"}

func segmentView(c *cli.Call, long bool) show.View[api.Segment] {
	now := time.Now()
	return show.View[api.Segment]{Columns: segmentColumns, Row: func(s *api.Segment) []any {
		return []any{keyOf(c, s.Key, long), show.State(s.State), tiersText(s.Tiers), s.Level, s.Role, s.Tokens, show.Size(s.Bytes), s.Leases, s.Hits,
			show.Age{At: s.LastUsed, Now: now}, s.Tenant, s.Model, s.Profile, s.Interior, show.Size(s.DiskBytes), show.Age{At: s.Created, Now: now}, s.Publisher}
	}}
}

var checkpointColumns = []string{"HASH", "KIND", "TIERS", "LEVEL", "TOKENS", "ROWS", "BYTES", "LEASES", "CHILDREN", "USED", "TENANT", "MODEL", "+PROFILE", "+ON DISK", "+CREATED", "+THINNED", "+EXTENDS"}

func checkpointView(c *cli.Call, long bool) show.View[api.Checkpoint] {
	now := time.Now()
	return show.View[api.Checkpoint]{Columns: checkpointColumns, Row: func(s *api.Checkpoint) []any {
		extends := "-"
		if s.Parent != nil {
			extends = keyOf(c, *s.Parent, long)
		}
		return []any{keyOf(c, s.Hash, long), s.Kind, tiersText(s.Tiers), s.Level, s.Tokens, s.Rows, show.Size(s.Bytes), s.Leases, s.Children,
			show.Age{At: s.LastUsed, Now: now}, s.Tenant, s.Model, s.Profile, show.Size(s.DiskBytes), show.Age{At: s.Created, Now: now}, s.Thinned, extends}
	}}
}

// tiersText names tiers, fastest first.
func tiersText(tiers []string) string {
	if len(tiers) == 0 {
		return "-"
	}
	return strings.Join(tiers, "+")
}

var requestColumns = []string{"ID", "AGE", "TENANT", "WAY", "PROMPT", "ENGINE", "PREFIX", "REUSED", "COMPUTED", "HIT", "TTFT", "SAVED", "MODEL", "+SEAM", "+MATCH", "+WAIT", "+BYTES", "+CLIENT", "+NAME", "+TRACE", "+BY", "+LOSS", "+UNVERIFIED"}

func requestView(*cli.Call) show.View[api.Request] {
	now := time.Now()
	return show.View[api.Request]{Columns: requestColumns, Row: func(r *api.Request) []any {
		return []any{r.ID, show.Age{At: r.At, Now: now}, r.Tenant, r.Way, r.Prompt, r.Engine, r.Prefix, r.Reused, r.Computed,
			requestHits(r), told(r.TTFTMillis), show.Millis(r.SavedMillis), r.Model, r.Seam, show.Millis(r.MatchMillis), show.Millis(r.WaitMillis),
			show.Size(r.Bytes), r.Client, r.Name, r.Trace, r.SavedBy, lossOf(r), r.Unverified}
	}}
}

func lossOf(r *api.Request) string {
	if r.ExpectedLoss == nil {
		return "-"
	}
	return fmt.Sprintf("%.2g %%", 100**r.ExpectedLoss)
}

// told formats a time that the engine may not have reported.
func told(millis float64) any {
	if millis == 0 {
		return "-"
	}
	return show.Millis(millis)
}

var leaseColumns = []string{"LEASE", "OBJECT", "KEY", "TENANT", "CLIENT", "CONNECTION", "RANK", "HELD", "EXPIRES", "BYTES", "+PROFILE", "+DEVICE"}

func leaseView(c *cli.Call, long bool) show.View[api.Lease] {
	now := time.Now()
	return show.View[api.Lease]{Columns: leaseColumns, Row: func(l *api.Lease) []any {
		return []any{l.Lease, l.Object, keyOf(c, l.Key, long), l.Tenant, l.Client, l.Connection, l.Rank, show.Age{At: l.Since, Now: now},
			untilText(l.Expires, now), show.Size(l.Bytes), l.Profile, l.Device}
	}}
}

var pinColumns = []string{"KEY", "OBJECT", "TENANT", "BYTES", "EXPIRES", "BY", "+PROFILE"}

func pinView(c *cli.Call, long bool) show.View[api.Pin] {
	now := time.Now()
	return show.View[api.Pin]{Columns: pinColumns, Row: func(p *api.Pin) []any {
		return []any{keyOf(c, p.Key, long), p.Object, p.Tenant, show.Size(p.Bytes), untilText(p.Expires, now), p.By, p.Profile}
	}}
}

// untilText returns the time from now until then.
func untilText(then, now time.Time) string {
	switch {
	case then.IsZero():
		return "-"
	case !then.After(now):
		return "over"
	}
	return "in " + show.Long(then.Sub(now))
}

var poolColumns = []string{"POOL", "TIER", "USED", "CAPACITY", "FULL", "LEASED", "PENDING", "QUARANTINED", "OBJECTS", "DEVICE", "+PAGE", "+TENANTS"}

func poolView(*cli.Call) show.View[api.Pool] {
	return show.View[api.Pool]{Columns: poolColumns, Row: func(p *api.Pool) []any {
		return []any{p.Name, p.Tier, show.Size(p.UsedBytes), show.Size(p.CapacityBytes), show.ShareOf(float64(p.UsedBytes), float64(p.CapacityBytes)), show.Size(p.LeasedBytes),
			show.Size(p.PendingBytes), show.Size(p.QuarantinedBytes), p.Objects, p.Device, show.Size(p.PageBytes), len(p.Tenants)}
	}}
}

var connectionColumns = []string{"ID", "CLIENT", "UID", "PID", "AGE", "REQUESTS", "IN FLIGHT", "LEASES", "STAGING", "GPU", "TENANTS", "+SLOTS", "+RESERVATIONS", "+PROFILES", "+DEVICE", "+ENGINES"}

func connectionView(*cli.Call) show.View[api.Connection] {
	now := time.Now()
	return show.View[api.Connection]{Columns: connectionColumns, Row: func(n *api.Connection) []any {
		return []any{n.ID, n.Client, n.UID, n.PID, show.Age{At: n.Since, Now: now}, n.Requests, n.InFlight, n.Leases,
			show.Size(n.StagingBytes), show.Size(n.DeviceBytes), strings.Join(n.Tenants, ","), show.Size(n.SlotBytes), n.Reservations, fmt.Sprint(n.Profiles), n.Device, strings.Join(n.Engines, ", ")}
	}}
}

var profileColumns = []string{"ID", "FINGERPRINT", "LAYERS", "LINEAR", "ATTENTION", "TP", "STATE/RANK", "ROW/RANK", "SEGMENTS", "CHECKPOINTS", "MODEL", "+ENGINES"}

func profileView(c *cli.Call) show.View[api.Profile] {
	return show.View[api.Profile]{Columns: profileColumns, Row: func(p *api.Profile) []any {
		return []any{p.ID, keyOf(c, p.Fingerprint, false), p.Layers, p.LinearLayers, p.AttentionLayers, p.TPSize,
			show.Size(p.StateBytes), show.Size(p.RowBytes), p.Segments, p.Checkpoints, p.Model, strings.Join(p.Engines, ", ")}
	}}
}

var canaryColumns = []string{"PROFILE", "SPLICING", "COMPARED", "FAILED", "WORST", "BOUND", "EXPECTED LOSS", "REPORTED", "TENANT", "MODEL", "WHY"}

func canaryView(c *cli.Call) show.View[api.Canary] {
	now := time.Now()
	return show.View[api.Canary]{Columns: canaryColumns, Row: func(r *api.Canary) []any {
		state, worst, reported := show.State("on"), "not a number", "-"
		if r.Off {
			state = "off"
			if r.Since != nil {
				state += show.State(" for " + ageText(*r.Since, now))
			}
		}
		switch {
		case r.Worst != nil:
			worst = show.Number(*r.Worst)
		case r.Compared == 0:
			worst = "-"
		}
		if r.Reported != nil {
			reported = ageText(*r.Reported, now) + " ago"
		}
		return []any{keyOf(c, r.Profile, false), state, r.Compared, r.Failed, worst, show.Number(r.Bound), lossText(r.Losses), reported, r.Tenant, r.Model, r.Why}
	}}
}

// lossText formats the losses: for each way of splicing, its name, the expected loss in percent,
// and the number of requests that were compared or measured offline.
func lossText(losses []api.Loss) string {
	var list []string
	for _, l := range losses {
		way, loss := "no primer", "unknown"
		if l.Primed {
			way = "primer"
		}
		if l.Refreshed {
			way += ", refreshed"
		}
		if l.Expected != nil {
			loss = fmt.Sprintf("%.2g %%", 100**l.Expected)
		}
		list = append(list, fmt.Sprintf("%s: %s of %d", way, loss, l.Compared+l.OfflineCompared))
	}
	return cmp.Or(strings.Join(list, "; "), "-")
}

var decisionColumns = []string{"AGE", "DECISION", "OBJECT", "KEY", "TOKENS", "BYTES", "MS/MIB", "TENANT", "WHY"}

func decisionView(c *cli.Call) show.View[api.Decision] {
	now := time.Now()
	return show.View[api.Decision]{Columns: decisionColumns, Row: func(d *api.Decision) []any {
		key := "-"
		if d.Key != nil {
			key = keyOf(c, *d.Key, false)
		}
		return []any{show.Age{At: d.At, Now: now}, d.What, d.Object, key, fmt.Sprintf("%d-%d", d.Begin, d.End), show.Size(d.Bytes),
			show.Number(d.Value), d.Tenant, d.Why}
	}}
}

// keyOf returns a short form of a key, or the whole key if there is room or it was requested.
func keyOf(c *cli.Call, key api.Digest, long bool) string {
	if long || c.Output == cli.FormWide {
		return key.String()
	}
	return shortKey(key)
}
