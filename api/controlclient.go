package api

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strconv"
)

// Leases iterates over the leases that match the query, as Segments does.
func (c *Client) Leases(ctx context.Context, q LeaseQuery) iter.Seq2[Lease, error] {
	v := queryOf(q.Tenant, nil, nil, q.Limit)
	if q.Connection != nil {
		v.Set("connection", strconv.FormatUint(*q.Connection, 10))
	}
	if q.After > 0 {
		v.Set("cursor", strconv.FormatUint(q.After, 10))
	}
	return walk[Lease](ctx, c, "/api/v1/leases", v)
}

// RemoveSegments removes all segments that match the query. A query without filters matches all.
func (c *Client) RemoveSegments(ctx context.Context, q RemovalQuery) (Removed, error) {
	return c.removeMany(ctx, "/api/v1/segments", q)
}

// RemoveCheckpoints does the same with checkpoints.
func (c *Client) RemoveCheckpoints(ctx context.Context, q RemovalQuery) (Removed, error) {
	return c.removeMany(ctx, "/api/v1/checkpoints", q)
}

func (c *Client) removeMany(ctx context.Context, path string, q RemovalQuery) (Removed, error) {
	v := queryOf(q.Tenant, q.Profile, nil, 0)
	if q.Prefix != "" {
		v.Set("prefix", q.Prefix)
	}
	if q.OlderThan > 0 {
		v.Set("older_than", q.OlderThan.String())
	}
	if len(v) == 0 {
		v.Set("all", "true")
	}
	v.Set("dry_run", strconv.FormatBool(q.Dry))
	return do[Removed](ctx, c, http.MethodDelete, path, v)
}

// Checkpoint returns the first checkpoint with this name.
func (c *Client) Checkpoint(ctx context.Context, n CheckpointName) (CheckpointDetail, error) {
	return fetch[CheckpointDetail](ctx, c, "/api/v1/checkpoints/"+n.Hash.String(), n.values())
}

// RemoveCheckpoint removes all checkpoints with this name.
func (c *Client) RemoveCheckpoint(ctx context.Context, n CheckpointName, dry bool) (Removed, error) {
	v := n.values()
	v.Set("dry_run", strconv.FormatBool(dry))
	return do[Removed](ctx, c, http.MethodDelete, "/api/v1/checkpoints/"+n.Hash.String(), v)
}

func (n *CheckpointName) values() url.Values {
	v := queryOf(n.Tenant, n.Profile, nil, 0)
	if n.Kind != "" {
		v.Set("kind", n.Kind)
	}
	return v
}

// Pins lists the pins of operators.
func (c *Client) Pins(ctx context.Context) ([]Pin, error) {
	return list[Pin](ctx, c, "/api/v1/pins", nil)
}

// Pin pins the objects of a key, or changes the expiry of their pins.
func (c *Client) Pin(ctx context.Context, q PinQuery) (Pinned, error) {
	v := url.Values{"ttl": {q.TTL.String()}, "dry_run": {strconv.FormatBool(q.Dry)}}
	if q.By != "" {
		v.Set("by", q.By)
	}
	return do[Pinned](ctx, c, http.MethodPut, "/api/v1/pins/"+q.Key.String(), v)
}

// Unpin removes the pins of a key.
func (c *Client) Unpin(ctx context.Context, key Digest, dry bool) (Pinned, error) {
	return do[Pinned](ctx, c, http.MethodDelete, "/api/v1/pins/"+key.String(), dryRun(dry))
}

// Config returns the configuration and its version.
func (c *Client) Config(ctx context.Context) (out Config, etag string, err error) {
	head, err := c.exchange(ctx, http.MethodGet, "/api/v1/config", nil, http.Header{}, nil, &out)
	return out, head.Get("ETag"), err
}

// ChangeConfig merges a patch into the configuration. The patch is any value that encodes as a
// JSON object. The change fails unless the configuration has the given version; "*" is any.
func (c *Client) ChangeConfig(ctx context.Context, etag string, patch any, dry bool) (out Config, err error) {
	body, err := json.Marshal(patch)
	if err != nil {
		return out, fmt.Errorf("change configuration: %w: %w", err, ErrInvalid)
	}
	head := http.Header{"Content-Type": {mergePatch}, "If-Match": {etag}}
	_, err = c.exchange(ctx, http.MethodPatch, "/api/v1/config", dryRun(dry), head, body, &out)
	return out, err
}

// Drain makes the node refuse new clients and fills. If undo is true, the node accepts them again.
func (c *Client) Drain(ctx context.Context, undo, dry bool) (Drained, error) {
	method := http.MethodPost
	if undo {
		method = http.MethodDelete
	}
	return do[Drained](ctx, c, method, "/api/v1/drain", dryRun(dry))
}

// Reload makes the node read keys, tokens and certificates again.
func (c *Client) Reload(ctx context.Context, dry bool) (Reloaded, error) {
	return do[Reloaded](ctx, c, http.MethodPost, "/api/v1/reload", dryRun(dry))
}

func dryRun(dry bool) url.Values { return url.Values{"dry_run": {strconv.FormatBool(dry)}} }
