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
	key, profile := Digest{1}, uint32(3)
	filter := RemovalFilter{Tenant: "a", Profile: &profile, Prefix: "ab", OlderThan: time.Hour}
	path := key.String()
	for _, r := range []struct {
		do   func(context.Context, *Client) error
		body string
		want string
	}{
		{func(ctx context.Context, c *Client) error { _, err := c.RemoveSegments(ctx, filter, true); return err }, `{"matched":1}`,
			"DELETE /api/v1/segments?dry_run=true&older_than=1h0m0s&prefix=ab&profile=3&tenant=a"},
		{func(ctx context.Context, c *Client) error {
			_, err := c.RemoveCheckpoints(ctx, RemovalFilter{All: true}, false)
			return err
		},
			`{}`, "DELETE /api/v1/checkpoints?all=true&dry_run=false"},
		{func(ctx context.Context, c *Client) error { return c.RemoveCheckpoint(ctx, key, false) }, `{}`, "DELETE /api/v1/checkpoints/" + path + "?dry_run=false"},
		{func(ctx context.Context, c *Client) error {
			_, err := c.Pin(ctx, key, 10*time.Minute, false)
			return err
		}, `{}`, "PUT /api/v1/pins/" + path + "?dry_run=false&ttl=10m0s"},
		{func(ctx context.Context, c *Client) error { return c.Unpin(ctx, key, true) }, `{}`, "DELETE /api/v1/pins/" + path + "?dry_run=true"},
		{func(ctx context.Context, c *Client) error { return c.Drain(ctx, false) }, `{}`, "POST /api/v1/drain?dry_run=false"},
		{func(ctx context.Context, c *Client) error { return c.Reload(ctx, false) }, `{}`, "POST /api/v1/reload?dry_run=false"},
		{func(ctx context.Context, c *Client) error {
			_, err := c.PatchConfig(ctx, json.RawMessage(`{"log_level":"debug"}`), `"7"`, true)
			return err
		}, `{}`, `PATCH /api/v1/config?dry_run=true "7" application/merge-patch+json{"log_level":"debug"}`},
		{func(ctx context.Context, c *Client) error {
			_, err := c.Requests(ctx, RequestQuery{"a", &profile, WaySplice, 5})
			return err
		}, `{"items":[]}`, "GET /api/v1/requests?limit=5&profile=3&tenant=a&way=splice"},
		{func(ctx context.Context, c *Client) error { _, err := c.Request(ctx, 12); return err }, `{}`, "GET /api/v1/requests/12"},
		{func(ctx context.Context, c *Client) error {
			_, err := c.Leases(ctx, LeaseQuery{"a", 4})
			return err
		}, `{"items":[]}`, "GET /api/v1/leases?connection=4&tenant=a"},
		{func(ctx context.Context, c *Client) error { _, err := c.Overview(ctx, "7d"); return err }, `{}`, "GET /api/v1/overview?history=7d"},
		{func(ctx context.Context, c *Client) error {
			_, err := c.Events(ctx, EventQuery{9, []string{"evicted", "request"}, "a"})
			return err
		}, `{"items":[]}`, "GET /api/v1/events?after=9&kind=evicted%2Crequest&poll=1&tenant=a"},
	} {
		a := &canned{body: r.body}
		if err := r.do(t.Context(), clientOf(t, a)); err != nil || !reflect.DeepEqual(a.asked, []string{r.want}) {
			t.Errorf("%v: asked %q, want %q", err, a.asked, r.want)
		}
	}
}

func TestTheConfigurationComesWithItsVersion(t *testing.T) {
	c := clientOf(t, &canned{body: `{"log_level":"info"}`, header: http.Header{"Etag": {`"5"`}}})
	text, version, err := c.Config(t.Context())
	if err != nil || version != `"5"` || string(text) != `{"log_level":"info"}` {
		t.Errorf("%s %s %v", text, version, err)
	}
	c = clientOf(t, &canned{status: 412, body: `{"status":412,"code":"changed","detail":"somebody else has"}`})
	var p *Problem
	if _, err := c.PatchConfig(t.Context(), json.RawMessage(`{}`), `"5"`, false); !errors.As(err, &p) || p.Status != 412 {
		t.Errorf("%v", err)
	}
}

func TestACheckpointIsReadAloneAndAmongItsLike(t *testing.T) {
	for body, want := range map[string]int{`{"items":[{"tokens":3},{"tokens":3}]}`: 2, `{"tokens":3}`: 1} {
		got, err := clientOf(t, &canned{body: body}).Checkpoint(t.Context(), Digest{1})
		if err != nil || len(got) != want || got[0].Tokens != 3 {
			t.Errorf("%s: %+v, %v", body, got, err)
		}
	}
}

func TestATimeoutIsThatOfEachRequest(t *testing.T) {
	c := clientOf(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	c.SetTimeout(10 * time.Millisecond)
	if _, err := c.Status(t.Context()); !errors.Is(err, ErrUnavailable) {
		t.Errorf("%v", err)
	}
}

// stream answers events as server-sent, and then ends.
func stream(text string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, text)
	})
}

func TestEventsAreReadAsTheyCome(t *testing.T) {
	text := ": hello\n\nid: 4\nevent: evicted\ndata: {\"id\":4,\"kind\":\"evicted\",\"bytes\":9}\n\n" +
		"event: lost\ndata: {\"lost\":7}\n\nevent: lost\ndata: 8\n\nid: 5\r\nevent: disk\r\ndata: {\"id\":5,\r\ndata: \"text\":\"full\"}\r\n\r\nid: 6\ndata: {\"id\":6"
	var got []string
	err := clientOf(t, stream(text)).FollowEvents(t.Context(), EventQuery{}, func(e Event) error {
		got = append(got, fmt.Sprint(e.ID, e.Kind, e.Bytes, e.Tokens, e.Text))
		return nil
	})
	want := []string{"4evicted9 0", "0lost0 7 7 events are lost: they were not read in time", "0lost0 8 8 events are lost: they were not read in time", "5disk0 0 full"}
	if !errors.Is(err, ErrUnavailable) {
		t.Errorf("the end of a stream: %v", err)
	}
	for i := range got {
		got[i] = strings.ReplaceAll(got[i], " ", "")
		if i < len(want) {
			want[i] = strings.ReplaceAll(want[i], " ", "")
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%q", got)
	}
}

func TestAStreamEndsWithItsContextItsReaderAndRefusals(t *testing.T) {
	a := &canned{}
	follow := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.asked = append(a.asked, r.URL.RequestURI()+" "+r.Header.Get("Last-Event-ID"))
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: {\"id\":4}\n\n")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	c := clientOf(t, follow)
	c.SetTimeout(time.Nanosecond) // is not that of a stream
	stop := errors.New("enough")
	if err := c.FollowEvents(t.Context(), EventQuery{After: 3, Kinds: []string{"gpu"}}, func(Event) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("%v", err)
	}
	if len(a.asked) != 1 || a.asked[0] != "/api/v1/events?after=3&kind=gpu 3" {
		t.Errorf("asked %q", a.asked)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if err := c.FollowEvents(ctx, EventQuery{}, func(Event) error { cancel(); return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	refused := clientOf(t, &canned{status: 401, body: `{"status":401,"code":"unauthorized"}`})
	var p *Problem
	if err := refused.FollowEvents(t.Context(), EventQuery{}, nil); !errors.As(err, &p) || p.Code != CodeUnauthorized {
		t.Errorf("%v", err)
	}
	if err := clientOf(t, stream("data: {]\n\n")).FollowEvents(t.Context(), EventQuery{}, func(Event) error { return nil }); err == nil || errors.Is(err, ErrUnavailable) {
		t.Errorf("broken events: %v", err)
	}
	if err := clientOf(t, stream("data: "+strings.Repeat("x", 2<<20))).FollowEvents(t.Context(), EventQuery{}, nil); err == nil {
		t.Error("an endless line is read")
	}
}
