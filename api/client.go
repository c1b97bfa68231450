package api

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spliced-kv/spliced/policy/errkind"
)

// maxAnswerBytes bounds the size of a response. The largest page has about 1 MiB.
const maxAnswerBytes = 64 << 20

// ErrTokenRefused means that the node does not accept the client's token for a request.
var ErrTokenRefused = errors.New("token refused")

// Client is a client of the admin REST of one node. Errors that the server returns are
// *Problem; if it does not answer, the error is ErrUnavailable and its text says why. A Client
// is safe for concurrent use.
type Client struct {
	base   string
	at     string // the socket's path, or host and port; for errors
	socket bool   // at is a path
	token  string
	http   *http.Client
}

// NewClient creates a client of target: "unix:/path/to/admin.sock", or an "http://host:port" URL.
// It does not connect before the first call. A nonempty token is sent with every request over
// HTTP. It is not sent to a unix socket, whose mode controls access.
func NewClient(target, token string) (*Client, error) {
	transport := &http.Transport{MaxIdleConns: 4, IdleConnTimeout: 10 * time.Second}
	c := &Client{token: token, http: &http.Client{Transport: transport, Timeout: time.Minute}}
	if path, ok := strings.CutPrefix(target, "unix:"); ok && path != "" {
		if token != "" {
			return nil, errkind.With(fmt.Errorf("%s is a socket, which needs no token", path), ErrInvalid)
		}
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return dialUnix(ctx, path) }
		c.base, c.at, c.socket = "http://localhost", path, true
		return c, nil
	}
	u, err := url.Parse(target)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.RawQuery != "" {
		return nil, errkind.With(fmt.Errorf("%q is neither the path of a socket nor http://HOST:PORT or https://HOST:PORT", target), ErrInvalid)
	}
	if _, err := strconv.ParseUint(cmp.Or(u.Port(), "80"), 10, 16); err != nil {
		return nil, errkind.With(fmt.Errorf("%q: %s is not a port", target, u.Port()), ErrInvalid)
	}
	c.base, c.at = strings.TrimSuffix(u.String(), "/"), u.Host
	return c, nil
}

// SetTimeout sets the timeout of each request; the default is a minute, and 0 means that only
// the request's context ends it. SetTimeout must be called before the client is used. The
// timeout does not apply to a stream of events.
func (c *Client) SetTimeout(d time.Duration) { c.http.Timeout = d }

// Close drops idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Status returns the state of the process.
func (c *Client) Status(ctx context.Context) (Status, error) {
	return fetch[Status](ctx, c, "/api/v1/status", nil)
}

// Ready returns the result of the readiness probe. For an unready node it is a Health with
// HealthUnavailable, not an error.
func (c *Client) Ready(ctx context.Context) (Health, error) {
	return fetch[Health](ctx, c, "/readyz", url.Values{"verbose": {"true"}})
}

// Profiles lists the registered model identities.
func (c *Client) Profiles(ctx context.Context) ([]Profile, error) {
	return list[Profile](ctx, c, "/api/v1/profiles", nil)
}

// Pools lists the memory budgets.
func (c *Client) Pools(ctx context.Context) ([]Pool, error) {
	return list[Pool](ctx, c, "/api/v1/pools", nil)
}

// Connections lists the attached clients.
func (c *Client) Connections(ctx context.Context) ([]Connection, error) {
	return list[Connection](ctx, c, "/api/v1/connections", nil)
}

// Canaries lists the reports of engines that recomputed reused segments.
func (c *Client) Canaries(ctx context.Context) ([]Canary, error) {
	return list[Canary](ctx, c, "/api/v1/canaries", nil)
}

// SwitchProfile switches splicing of a profile off or on.
func (c *Client) SwitchProfile(ctx context.Context, q SwitchQuery) (Switched, error) {
	v := queryOf(q.Tenant, nil, nil, 0)
	v.Set("dry_run", strconv.FormatBool(q.Dry))
	method := http.MethodDelete
	if q.Off {
		method = http.MethodPut
		if q.Why != "" {
			v.Set("why", q.Why)
		}
	}
	return do[Switched](ctx, c, method, "/api/v1/canaries/"+q.Profile.String(), v)
}

// Decisions returns the latest decisions, newest first.
func (c *Client) Decisions(ctx context.Context, q DecisionQuery) ([]Decision, error) {
	v := queryOf(q.Tenant, q.Profile, nil, q.Limit)
	if q.What != "" {
		v.Set("what", q.What)
	}
	if q.Prefix != "" {
		v.Set("key_prefix", q.Prefix)
	}
	return list[Decision](ctx, c, "/api/v1/decisions", v)
}

// Requests returns how the latest reported prompts were served, newest first.
func (c *Client) Requests(ctx context.Context, q RequestQuery) ([]Request, error) {
	v := queryOf(q.Tenant, q.Profile, nil, q.Limit)
	if q.Way != "" {
		v.Set("way", q.Way)
	}
	return list[Request](ctx, c, "/api/v1/requests", v)
}

// Request returns one request with its spans.
func (c *Client) Request(ctx context.Context, id uint64) (Request, error) {
	return fetch[Request](ctx, c, "/api/v1/requests/"+strconv.FormatUint(id, 10), nil)
}

// Usage returns sums of how prompts were served, by tenant and model.
func (c *Client) Usage(ctx context.Context) ([]Usage, error) {
	return list[Usage](ctx, c, "/api/v1/usage", nil)
}

// Overview returns the content of the dashboard's first page. The parameter history is the length
// of the history on that page: one of the History constants. The default is HistoryHours.
func (c *Client) Overview(ctx context.Context, history string) (Overview, error) {
	return fetch[Overview](ctx, c, "/api/v1/overview", url.Values{"history": {history}})
}

// Counters lists counters and gauges.
func (c *Client) Counters(ctx context.Context) ([]Counter, error) {
	return list[Counter](ctx, c, "/api/v1/stats", nil)
}

// Cluster returns what the node knows of its cluster.
func (c *Client) Cluster(ctx context.Context) (Cluster, error) {
	return fetch[Cluster](ctx, c, "/api/v1/cluster", nil)
}

// Locate returns which nodes of the cluster have which parts of a prompt.
func (c *Client) Locate(ctx context.Context, q *LocateQuery) (*Located, error) {
	body, err := json.Marshal(q)
	if err != nil {
		return nil, fmt.Errorf("locate: %w: %w", err, ErrInvalid)
	}
	var out Located
	if err := c.send(ctx, http.MethodPost, locatePath, nil, body, &out); err != nil {
		return nil, err
	}
	return &out, nil
}

// ProbeObjectStore makes the node test its object store with a temporary object.
func (c *Client) ProbeObjectStore(ctx context.Context) (ObjectProbe, error) {
	return do[ObjectProbe](ctx, c, http.MethodPost, "/api/v1/object-store/probe", nil)
}

// Segments iterates over all segments that match the query. It requests pages of q.Limit
// segments (0 = DefaultLimit), and ends after the first error.
func (c *Client) Segments(ctx context.Context, q SegmentQuery) iter.Seq2[Segment, error] {
	v := queryOf(q.Tenant, q.Profile, q.After, q.Limit)
	if q.Prefix != "" {
		v.Set("key_prefix", q.Prefix)
	}
	return walk[Segment](ctx, c, "/api/v1/segments", v)
}

// Checkpoints iterates over all checkpoints that match the query, as Segments does.
func (c *Client) Checkpoints(ctx context.Context, q CheckpointQuery) iter.Seq2[Checkpoint, error] {
	return walk[Checkpoint](ctx, c, "/api/v1/checkpoints", queryOf(q.Tenant, q.Profile, q.After, q.Limit))
}

// Segment returns one segment with its parts.
func (c *Client) Segment(ctx context.Context, key Digest) (SegmentDetail, error) {
	return fetch[SegmentDetail](ctx, c, "/api/v1/segments/"+key.String(), nil)
}

// Remove evicts a segment. If dry is true, it changes nothing and returns what it would remove.
func (c *Client) Remove(ctx context.Context, key Digest, dry bool) (Removal, error) {
	return do[Removal](ctx, c, http.MethodDelete, "/api/v1/segments/"+key.String(), dryRun(dry))
}

func queryOf(tenant string, profile *uint32, after *Digest, limit int) url.Values {
	v := url.Values{}
	if tenant != "" {
		v.Set("tenant", tenant)
	}
	if profile != nil {
		v.Set("profile", strconv.FormatUint(uint64(*profile), 10))
	}
	if after != nil {
		v.Set("cursor", after.String())
	}
	if limit > 0 {
		v.Set("limit", strconv.Itoa(limit))
	}
	return v
}

func walk[T any](ctx context.Context, c *Client, path string, v url.Values) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for {
			page, err := fetch[Page[T]](ctx, c, path, v)
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			for _, item := range page.Items {
				if !yield(item, nil) {
					return
				}
			}
			if page.Next == "" {
				return
			}
			v.Set("cursor", page.Next)
		}
	}
}

// list requests a listing that always has a single page.
func list[T any](ctx context.Context, c *Client, path string, v url.Values) ([]T, error) {
	p, err := fetch[Page[T]](ctx, c, path, v)
	return p.Items, err
}

func fetch[T any](ctx context.Context, c *Client, path string, v url.Values) (T, error) {
	return do[T](ctx, c, http.MethodGet, path, v)
}

func do[T any](ctx context.Context, c *Client, method, path string, v url.Values) (out T, err error) {
	err = c.send(ctx, method, path, v, nil, &out)
	return out, err
}

// send sends a request with the body as a JSON document; nil = no body.
func (c *Client) send(ctx context.Context, method, path string, v url.Values, body []byte, out any) error {
	head := http.Header{}
	if body != nil {
		head.Set("Content-Type", "application/json")
	}
	_, err := c.exchange(ctx, method, path, v, head, body, out)
	return err
}

// exchange sends a request with headers, and returns those of the response.
func (c *Client) exchange(ctx context.Context, method, path string, v url.Values, head http.Header, body []byte, out any) (http.Header, error) {
	req, err := c.request(ctx, method, path, v, head, body)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return nil, c.unanswered(ctx, err)
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(res.Body, maxAnswerBytes+1))
	if err != nil {
		return nil, c.unanswered(ctx, err)
	}
	if len(answer) > maxAnswerBytes {
		err = fmt.Errorf("answer has more than %d bytes", maxAnswerBytes)
	} else {
		err = c.decode(res, answer, out)
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	return res.Header, nil
}

// request creates a request with the client's token. A nil body is no body.
func (c *Client) request(ctx context.Context, method, path string, v url.Values, head http.Header, body []byte) (*http.Request, error) {
	target := c.base + path
	if len(v) > 0 {
		target += "?" + v.Encode()
	}
	var content io.Reader
	if body != nil {
		content = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, target, content)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, ErrInvalid)
	}
	req.Header = head
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	return req, nil
}

// decode decodes an answer, and returns ErrTokenRefused for a refused token.
func (c *Client) decode(res *http.Response, body []byte, out any) error {
	err := decodeAnswer(res, body, out)
	if p, ok := errors.AsType[*Problem](err); ok && p.Code == CodeUnauthorized && c.token != "" {
		return errkind.With(err, ErrTokenRefused)
	}
	return err
}

func decodeAnswer(res *http.Response, body []byte, out any) error {
	media, _, err := mime.ParseMediaType(res.Header.Get("Content-Type"))
	if err != nil {
		return fmt.Errorf("HTTP %d without a content type", res.StatusCode)
	}
	switch media {
	case "application/json":
		return json.Unmarshal(body, out)
	case "application/problem+json":
		var p Problem
		if err := json.Unmarshal(body, &p); err != nil {
			return errors.Join(fmt.Errorf("HTTP %d: cannot decode problem+json body", res.StatusCode), err)
		}
		return &p
	}
	return fmt.Errorf("HTTP %d with content type %q: not the admin API of spliced", res.StatusCode, media)
}
