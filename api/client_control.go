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

// Leases walks the leases of clients that pass the query, as Segments does.
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

// RemoveSegments removes all segments that pass the query; one without filters takes all.
func (c *Client) RemoveSegments(ctx context.Context, q RemovalQuery) (Removed, error) {
	return c.removeAll(ctx, "/api/v1/segments", &q)
}

// RemoveCheckpoints does the same with checkpoints.
func (c *Client) RemoveCheckpoints(ctx context.Context, q RemovalQuery) (Removed, error) {
	return c.removeAll(ctx, "/api/v1/checkpoints", &q)
}

func (c *Client) removeAll(ctx context.Context, path string, q *RemovalQuery) (out Removed, err error) {
	v := queryOf(q.Tenant, q.Profile, nil, 0)
	setNonEmpty(v, "prefix", q.Prefix)
	if q.OlderThan > 0 {
		v.Set("older_than", q.OlderThan.String())
	}
	if len(v) == 0 {
		v.Set("all", "true")
	}
	v.Set("dry_run", strconv.FormatBool(q.Dry))
	err = c.do(ctx, http.MethodDelete, path, v, &out)
	return out, err
}

// RemoveCheckpoint removes the checkpoints of a hash that pass, or with dry says which
// would go.
func (c *Client) RemoveCheckpoint(ctx context.Context, n CheckpointName, dry bool) (out Removed, err error) {
	v := queryOf(n.Tenant, n.Profile, nil, 0)
	setNonEmpty(v, "kind", n.Kind)
	v.Set("dry_run", strconv.FormatBool(dry))
	err = c.do(ctx, http.MethodDelete, "/api/v1/checkpoints/"+n.Hash.String(), v, &out)
	return out, err
}

// Pins lists what is kept from being evicted.
func (c *Client) Pins(ctx context.Context) ([]Pin, error) {
	p, err := fetch[Page[Pin]](ctx, c, "/api/v1/pins", nil)
	return p.Items, err
}

// Pin pins what has a key, or gives its pins another time.
func (c *Client) Pin(ctx context.Context, q PinQuery) (out Pinned, err error) {
	v := tried(q.Dry)
	v.Set("ttl", q.TTL.String())
	setNonEmpty(v, "by", q.By)
	err = c.do(ctx, http.MethodPut, "/api/v1/pins/"+q.Key.String(), v, &out)
	return out, err
}

// Unpin ends the pins of a key.
func (c *Client) Unpin(ctx context.Context, key Digest, dry bool) (out Pinned, err error) {
	err = c.do(ctx, http.MethodDelete, "/api/v1/pins/"+key.String(), tried(dry), &out)
	return out, err
}

// Config answers what is set, without secrets, and its version for ChangeConfig.
func (c *Client) Config(ctx context.Context) (out Config, etag string, err error) {
	err = c.exchange(ctx, clientCall{method: http.MethodGet, path: "/api/v1/config", header: func(h http.Header) { etag = h.Get("ETag") }}, &out)
	return out, etag, err
}

// ChangeConfig changes what may change at run time by a merge patch (RFC 7396), a value
// that encodes as a JSON object, if the version is still the one that is set; "*" = in any
// case. It answers what is set then.
func (c *Client) ChangeConfig(ctx context.Context, etag string, patch any, dry bool) (out Config, err error) {
	body, err := json.Marshal(patch)
	if err != nil {
		return out, fmt.Errorf("change configuration: %w: %w", err, ErrInvalid)
	}
	err = c.exchange(ctx, clientCall{
		method: http.MethodPatch, path: "/api/v1/config", query: tried(dry), body: body, media: "application/merge-patch+json", match: etag,
	}, &out)
	return out, err
}

// Drain has the node take nothing new, or with undo ends that.
func (c *Client) Drain(ctx context.Context, undo, dry bool) (out Drained, err error) {
	method := http.MethodPost
	if undo {
		method = http.MethodDelete
	}
	err = c.do(ctx, method, "/api/v1/drain", tried(dry), &out)
	return out, err
}

// Reload has the node read keys and tokens again.
func (c *Client) Reload(ctx context.Context, dry bool) (out Reloaded, err error) {
	err = c.do(ctx, http.MethodPost, "/api/v1/reload", tried(dry), &out)
	return out, err
}

// tried is the parameter of what can be tried first.
func tried(dry bool) url.Values { return url.Values{"dry_run": {strconv.FormatBool(dry)}} }

func setNonEmpty(v url.Values, name, value string) {
	if value != "" {
		v.Set(name, value)
	}
}
