package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// SetTimeout says how long each request may take, in place of a minute; 0 = as long as
// its context. Before the client is used.
func (c *Client) SetTimeout(d time.Duration) { c.http.Timeout = d }

// LeaseQuery selects leases. Zero fields select all.
type LeaseQuery struct {
	Tenant     string
	Connection uint64
}

// Leases lists who may read or fill what.
func (c *Client) Leases(ctx context.Context, q LeaseQuery) ([]Lease, error) {
	v := queryOf(q.Tenant, nil, nil, 0)
	if q.Connection != 0 {
		v.Set("connection", strconv.FormatUint(q.Connection, 10))
	}
	p, err := fetch[Page[Lease]](ctx, c, "/api/v1/leases", v)
	return p.Items, err
}

// RemovalFilter selects what a bulk removal is about. Without any filter All has to be set.
type RemovalFilter struct {
	Tenant    string
	Profile   *uint32
	Prefix    string        // lower-case hex digits that the key begins with
	OlderThan time.Duration // not used for so long
	All       bool
}

// Empty reports whether it selects nothing.
func (f *RemovalFilter) Empty() bool { return *f == RemovalFilter{} }

func (f *RemovalFilter) query(dry bool) url.Values {
	v := queryOf(f.Tenant, f.Profile, nil, 0)
	setNonEmpty(v, "prefix", f.Prefix)
	if f.OlderThan > 0 {
		v.Set("older_than", f.OlderThan.String())
	}
	if f.All {
		v.Set("all", "true")
	}
	v.Set("dry_run", strconv.FormatBool(dry))
	return v
}

// RemoveSegments evicts all segments that pass a filter, or with dry says what would go.
func (c *Client) RemoveSegments(ctx context.Context, f RemovalFilter, dry bool) (BulkRemoval, error) {
	var out BulkRemoval
	err := c.do(ctx, http.MethodDelete, "/api/v1/segments", f.query(dry), &out)
	return out, err
}

// RemoveCheckpoints does the same to checkpoints.
func (c *Client) RemoveCheckpoints(ctx context.Context, f RemovalFilter, dry bool) (BulkRemoval, error) {
	var out BulkRemoval
	err := c.do(ctx, http.MethodDelete, "/api/v1/checkpoints", f.query(dry), &out)
	return out, err
}

// RemoveCheckpoint evicts the checkpoints of one hash, or with dry says whether it would.
func (c *Client) RemoveCheckpoint(ctx context.Context, hash Digest, dry bool) error {
	var out json.RawMessage
	return c.do(ctx, http.MethodDelete, "/api/v1/checkpoints/"+hash.String(), url.Values{"dry_run": {strconv.FormatBool(dry)}}, &out)
}

// Pins lists what is kept from being evicted.
func (c *Client) Pins(ctx context.Context) ([]Pin, error) {
	p, err := fetch[Page[Pin]](ctx, c, "/api/v1/pins", nil)
	return p.Items, err
}

// Pin keeps an object for a time.
func (c *Client) Pin(ctx context.Context, key Digest, ttl time.Duration, dry bool) (Pin, error) {
	var out Pin
	v := url.Values{"ttl": {ttl.String()}, "dry_run": {strconv.FormatBool(dry)}}
	err := c.do(ctx, http.MethodPut, "/api/v1/pins/"+key.String(), v, &out)
	return out, err
}

// Unpin ends that.
func (c *Client) Unpin(ctx context.Context, key Digest, dry bool) error {
	var out json.RawMessage
	return c.do(ctx, http.MethodDelete, "/api/v1/pins/"+key.String(), url.Values{"dry_run": {strconv.FormatBool(dry)}}, &out)
}

// Config answers what is set, without secrets, as a JSON object, and its version for
// PatchConfig.
func (c *Client) Config(ctx context.Context) (config json.RawMessage, version string, err error) {
	err = c.exchange(ctx, clientCall{method: http.MethodGet, path: "/api/v1/config", header: func(h http.Header) { version = h.Get("ETag") }}, &config)
	return config, version, err
}

// PatchConfig changes what may change at run time by a merge patch (RFC 7396), if the
// version is still the one that is set; "" = in any case. It answers what is set then.
func (c *Client) PatchConfig(ctx context.Context, patch json.RawMessage, version string, dry bool) (json.RawMessage, error) {
	var out json.RawMessage
	err := c.exchange(ctx, clientCall{
		method: http.MethodPatch, path: "/api/v1/config", query: url.Values{"dry_run": {strconv.FormatBool(dry)}},
		body: patch, media: "application/merge-patch+json", match: version,
	}, &out)
	return out, err
}

// Drain has the node take no new requests and write out what only memory has.
func (c *Client) Drain(ctx context.Context, dry bool) error {
	var out json.RawMessage
	return c.do(ctx, http.MethodPost, "/api/v1/drain", url.Values{"dry_run": {strconv.FormatBool(dry)}}, &out)
}

// Reload has the node read keys and tokens again.
func (c *Client) Reload(ctx context.Context, dry bool) error {
	var out json.RawMessage
	return c.do(ctx, http.MethodPost, "/api/v1/reload", url.Values{"dry_run": {strconv.FormatBool(dry)}}, &out)
}

// Checkpoint answers those of one hash, of which there may be an exact and a spliced one.
func (c *Client) Checkpoint(ctx context.Context, hash Digest) ([]Checkpoint, error) {
	raw, err := fetch[json.RawMessage](ctx, c, "/api/v1/checkpoints/"+hash.String(), nil)
	if err != nil {
		return nil, err
	}
	var page Page[Checkpoint]
	if err := json.Unmarshal(raw, &page); err == nil && page.Items != nil {
		return page.Items, nil
	}
	var one Checkpoint
	if err := json.Unmarshal(raw, &one); err != nil {
		return nil, fmt.Errorf("checkpoint %s: %w", hash, err)
	}
	return []Checkpoint{one}, nil
}

func setNonEmpty(v url.Values, name, value string) {
	if value != "" {
		v.Set(name, value)
	}
}
