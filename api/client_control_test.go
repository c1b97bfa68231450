package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"
)

// canned is a server that answers one path with one document, and keeps what it was asked.
type canned struct {
	status int
	body   string
	header http.Header
	asked  []string // method, path and query; If-Match, content type and body where there are any
}

func (a *canned) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	asked := r.Method + " " + r.URL.RequestURI()
	for _, name := range []string{"If-Match", "Content-Type"} {
		if v := r.Header.Get(name); v != "" {
			asked += " " + v
		}
	}
	a.asked = append(a.asked, asked+string(body))
	for name, v := range a.header {
		w.Header()[name] = v
	}
	media := "application/json"
	if a.status >= 400 {
		media = "application/problem+json"
	}
	w.Header().Set("Content-Type", media)
	w.WriteHeader(max(a.status, 200))
	fmt.Fprint(w, a.body)
}

func clientOf(t *testing.T, h http.Handler) *Client {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	c, err := NewClient(s.URL, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestControlIsAskedForAsTheContractHasIt(t *testing.T) {
	key, profile, connection, after := Digest{1}, uint32(3), uint64(4), uint64(9)
	path := key.String()
	type client = *Client
	for _, r := range []struct {
		do   func(context.Context, client) error
		want string
	}{
		{func(ctx context.Context, c client) error {
			_, err := c.RemoveSegments(ctx, RemovalQuery{"a", &profile, "ab", time.Hour, true})
			return err
		}, "DELETE /api/v1/segments?dry_run=true&older_than=1h0m0s&prefix=ab&profile=3&tenant=a"},
		{func(ctx context.Context, c client) error {
			_, err := c.RemoveCheckpoints(ctx, RemovalQuery{})
			return err
		}, "DELETE /api/v1/checkpoints?all=true&dry_run=false"},
		{func(ctx context.Context, c client) error {
			_, err := c.RemoveCheckpoint(ctx, CheckpointName{Hash: key, Kind: "exact"}, false)
			return err
		}, "DELETE /api/v1/checkpoints/" + path + "?dry_run=false&kind=exact"},
		{func(ctx context.Context, c client) error {
			_, err := c.Pin(ctx, PinQuery{Key: key, TTL: 10 * time.Minute})
			return err
		}, "PUT /api/v1/pins/" + path + "?dry_run=false&ttl=10m0s"},
		{func(ctx context.Context, c client) error { _, err := c.Unpin(ctx, key, true); return err }, "DELETE /api/v1/pins/" + path + "?dry_run=true"},
		{func(ctx context.Context, c client) error { _, err := c.Drain(ctx, false, false); return err }, "POST /api/v1/drain?dry_run=false"},
		{func(ctx context.Context, c client) error { _, err := c.Drain(ctx, true, true); return err }, "DELETE /api/v1/drain?dry_run=true"},
		{func(ctx context.Context, c client) error { _, err := c.Reload(ctx, false); return err }, "POST /api/v1/reload?dry_run=false"},
		{func(ctx context.Context, c client) error {
			_, err := c.ChangeConfig(ctx, `"7"`, json.RawMessage(`{"log_level":"debug"}`), true)
			return err
		}, `PATCH /api/v1/config?dry_run=true "7" application/merge-patch+json{"log_level":"debug"}`},
		{func(ctx context.Context, c client) error {
			for range c.Leases(ctx, LeaseQuery{Tenant: "a", Connection: &connection, Limit: 5}) {
				t.Error("a lease out of nothing")
			}
			return nil
		}, "GET /api/v1/leases?connection=4&limit=5&tenant=a"},
		{func(ctx context.Context, c client) error {
			_, _, err := c.RecentEvents(ctx, EventQuery{[]string{"evicted", "request"}, "a", &after, 7})
			return err
		}, "GET /api/v1/events?after=9&kind=evicted%2Crequest&limit=7&poll=true&tenant=a"},
	} {
		a := &canned{body: "{}"}
		if err := r.do(t.Context(), clientOf(t, a)); err != nil || !reflect.DeepEqual(a.asked, []string{r.want}) {
			t.Errorf("%v: asked %q, want %q", err, a.asked, r.want)
		}
	}
}

func TestTheConfigurationComesWithItsVersion(t *testing.T) {
	c := clientOf(t, &canned{body: `{"log_level":"info"}`, header: http.Header{"Etag": {`"5"`}}})
	config, version, err := c.Config(t.Context())
	if err != nil || version != `"5"` || config.LogLevel != "info" {
		t.Errorf("%+v %s %v", config, version, err)
	}
	c = clientOf(t, &canned{status: 412, body: `{"status":412,"code":"changed","detail":"somebody else has"}`})
	var p *Problem
	if _, err := c.ChangeConfig(t.Context(), `"5"`, struct{}{}, false); !errors.As(err, &p) || p.Status != 412 {
		t.Errorf("%v", err)
	}
}

func TestATimeoutIsThatOfEachRequest(t *testing.T) {
	c := clientOf(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	c.SetTimeout(10 * time.Millisecond)
	if _, err := c.Status(t.Context()); !errors.Is(err, ErrUnavailable) {
		t.Errorf("%v", err)
	}
}

func TestEventsAreReadAsTheyCome(t *testing.T) {
	text := ": hello\n\nid: 4\nevent: evicted\ndata: {\"id\":4,\"kind\":\"evicted\",\"bytes\":9}\n\n" +
		"event: lost\ndata: {\"lost\":7}\n\nid: 5\r\nevent: disk\r\ndata: {\"id\":5,\r\ndata: \"text\":\"full\"}\r\n\r\nid: 6\ndata: {\"id\":6"
	var got []string
	err := readEvents(strings.NewReader(text), func(e Event) error {
		got = append(got, fmt.Sprint(e.ID, " ", e.Kind, " ", e.Bytes, " ", e.Lost, " ", e.Text))
		return nil
	})
	if want := []string{"4 evicted 9 0 ", "0 lost 0 7 ", "5 disk 0 0 full"}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v %q", err, got)
	}
}

// A stream that ends is asked for again, from where it ended.
func TestEventsGoOnWhereAStreamHasEnded(t *testing.T) {
	var asked []string
	c := clientOf(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.RequestURI())
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, "data: {\"id\":%d}\n\n", 10*len(asked))
	}))
	c.SetTimeout(time.Nanosecond) // is not that of a stream
	enough := errors.New("enough")
	err := c.Events(t.Context(), EventQuery{Kinds: []string{"gpu"}}, func(e Event) error {
		if e.ID == 30 {
			return enough
		}
		return nil
	})
	want := []string{"/api/v1/events?kind=gpu", "/api/v1/events?after=10&kind=gpu", "/api/v1/events?after=20&kind=gpu"}
	if !errors.Is(err, enough) || !reflect.DeepEqual(asked, want) {
		t.Errorf("%v, asked %q", err, asked)
	}
}

func TestEventsEndWithTheirContextAndWithRefusals(t *testing.T) {
	c := clientOf(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: {\"id\":4}\n\n")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	ctx, cancel := context.WithCancel(t.Context())
	if err := c.Events(ctx, EventQuery{}, func(Event) error { cancel(); return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	refused := clientOf(t, &canned{status: 401, body: `{"status":401,"code":"unauthorized"}`})
	var p *Problem
	if err := refused.Events(t.Context(), EventQuery{}, nil); !errors.As(err, &p) || p.Code != CodeUnauthorized {
		t.Errorf("%v", err)
	}
	nobody, err := NewClient("unix:/nonexistent/admin.sock", "")
	if err != nil {
		t.Fatal(err)
	}
	if err := nobody.Events(t.Context(), EventQuery{}, nil); !errors.Is(err, ErrUnavailable) {
		t.Errorf("%v", err)
	}
	for _, text := range []string{"data: {]\n\n", "data: " + strings.Repeat("x", 2<<20)} {
		broken := clientOf(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprint(w, text)
		}))
		if err := broken.Events(t.Context(), EventQuery{}, func(Event) error { return nil }); err == nil || errors.Is(err, ErrUnavailable) {
			t.Errorf("broken events: %v", err)
		}
	}
}
