package main

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/api/cmd/cli"
	"github.com/spliced-kv/spliced/api/cmd/cli/show"
)

// tenantRow is the usage and statistics of a tenant on a node.
type tenantRow struct {
	Tenant      string           `json:"tenant"`
	UsedBytes   map[string]int64 `json:"used_bytes"` // by tier; as counted by its quota
	QuotaBytes  int64            `json:"quota_bytes"`
	Connections int              `json:"connections"`
	Usage       *api.Usage       `json:"usage,omitempty"` // of all its models; nil = not reported
}

var tenantColumns = []string{"TENANT", "HBM", "DRAM", "DISK", "USED", "QUOTA", "OF QUOTA", "CONNECTIONS", "REQUESTS", "HIT", "SAVED", "+PROMPT", "+MISSED"}

var tenantView = show.View[tenantRow]{Columns: tenantColumns, Row: func(t *tenantRow) []any {
	quota, of := any("no quota"), show.ShareOf(float64(t.used()), float64(t.QuotaBytes))
	if t.QuotaBytes > 0 {
		quota = show.Size(t.QuotaBytes)
	}
	row := []any{t.Tenant, show.Size(t.UsedBytes["hbm"]), show.Size(t.UsedBytes["dram"]), show.Size(t.UsedBytes["disk"]), show.Size(t.used()), quota, of, t.Connections}
	if u := t.Usage; u != nil {
		return append(row, show.Count(u.Requests), hits(u), show.LongMillis(u.Saved), show.Count(u.Prompt), missedText(u.Missed, 3))
	}
	return append(row, "-", "-", "-", "-", "-")
}}

func (t *tenantRow) used() (n int64) {
	for _, bytes := range t.UsedBytes {
		n += bytes
	}
	return n
}

// tenants lists the tenants that a node is configured with, and those that have objects on it.
func (l *listing) tenants(ctx context.Context, _ *cli.Call, client *api.Client) (*show.Page, error) {
	rows, err := tenantsOf(ctx, client)
	rows = slices.DeleteFunc(rows, func(t tenantRow) bool { return l.tenant != "" && t.Tenant != l.tenant })
	return show.Of(rows, false, tenantView), err
}

// tenantsOf merges the information of a node about tenants, by name.
func tenantsOf(ctx context.Context, client *api.Client) ([]tenantRow, error) {
	pools, err := client.Pools(ctx)
	if err != nil {
		return nil, err
	}
	connections, err := client.Connections(ctx)
	if err != nil {
		return nil, err
	}
	usage, err := client.Usage(ctx)
	told := err == nil
	if err != nil && !errors.Is(err, api.ErrNotFound) {
		return nil, err
	}
	var rows []tenantRow
	row := func(name string) *tenantRow {
		at := slices.IndexFunc(rows, func(t tenantRow) bool { return t.Tenant == name })
		if at < 0 {
			at, rows = len(rows), append(rows, tenantRow{Tenant: name, UsedBytes: map[string]int64{}})
			if told {
				rows[at].Usage = &api.Usage{Tenant: name}
			}
		}
		return &rows[at]
	}
	for i := range pools {
		for _, t := range pools[i].Tenants {
			r := row(t.Tenant)
			r.UsedBytes[pools[i].Tier] += t.UsedBytes
			r.QuotaBytes = max(r.QuotaBytes, t.QuotaBytes)
		}
	}
	for i := range connections {
		for _, name := range connections[i].Tenants {
			row(name).Connections++
		}
	}
	for i := range usage {
		row(usage[i].Tenant).Usage.Add(&usage[i])
	}
	slices.SortFunc(rows, func(a, b tenantRow) int { return strings.Compare(a.Tenant, b.Tenant) })
	return rows, nil
}
