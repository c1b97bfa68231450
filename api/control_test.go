package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/valyala/fasthttp"
	"golang.org/x/time/rate"
)

// changesConfig tries each documented answer to a change of the configuration.
func changesConfig(t *testing.T, d document, c *checker, s *served) {
	t.Helper()
	op := d.Paths["/api/v1/config"]["patch"]
	httpc := unixHTTP(t, s.unix)
	for _, tc := range []struct {
		name, query, media, match, body string
		status                          int
	}{
		{"a new level", "", mergePatch, "*", `{"log_level": "debug"}`, 200},
		{"without effect", "dry_run=true", mergePatch, "*", `{"quotas": {"a": {"quota_bytes": 5}}}`, 200},
		{"a quota taken out", "", mergePatch, "*", `{"quotas": {"a": null}}`, 200},
		{"a canary's share", "", mergePatch, "*", `{"canary_share": 0.25}`, 200},
		{"no share", "", mergePatch, "*", `{"canary_share": null}`, 200},
		{"nothing", "", mergePatch, "*", `{}`, 200},
		{"of an older one", "", mergePatch, `"0000"`, `{}`, 412},
		{"of none", "", mergePatch, "", `{}`, 428},
		{"another form", "", "application/json", "*", `{}`, 415},
		{"no object", "", mergePatch, "*", `[1]`, 400},
		{"null", "", mergePatch, "*", `null`, 400},
		{"no JSON", "", mergePatch, "*", `{`, 400},
		{"no such field", "", mergePatch, "*", `{"tokens": 1}`, 400},
		{"another type", "", mergePatch, "*", `{"public_bytes": "1"}`, 400},
		{"no such tenant", "", mergePatch, "*", `{"quotas": {"nobody": {"quota_bytes": 5}}}`, 400},
		{"more than all", "", mergePatch, "*", `{"canary_share": 1.25}`, 400},
		{"a bad parameter", "when=now", mergePatch, "*", `{}`, 400},
		{"what is fixed", "", mergePatch, "*", `{"pools_bytes": 1, "draining": true, "settings": {"lease-ttl": "1h", "http": null}}`, 422},
		{"more than there is", "", mergePatch, "*", `{"public_bytes": 4194304}`, 400},
		{"one that is fixed", "", mergePatch, "*", `{"lease_ttl": "1h"}`, 422},
	} {
		headers := []string{"Content-Type", tc.media}
		if tc.match != "" {
			headers = append(headers, "If-Match", tc.match)
		}
		status, media, body := send(t, httpc, http.MethodPatch, strings.TrimSuffix("http://localhost/api/v1/config?"+tc.query, "?"), tc.body, headers...)
		if status != tc.status {
			t.Errorf("%s: status %d, want %d: %s", tc.name, status, tc.status, body)
			continue
		}
		if err := answers(c, op, status, media, body); err != nil {
			t.Errorf("%s: %v", tc.name, err)
		}
		if tc.name == "what is fixed" {
			var p Problem
			if err := json.Unmarshal(body, &p); err != nil || len(p.Errors) != 4 || p.Code != CodeUnsupported || p.Type != "urn:spliced:problem:unsupported" {
				t.Errorf("%s: %s", tc.name, body)
			}
		}
	}
}

func TestConfigChangesOnlyAsItWasSeen(t *testing.T) {
	s := serve(t, newFake(0), nil)
	c := s.client(t, "unix:"+s.unix, "")
	ctx := t.Context()
	_, first, err := c.Config(ctx)
	if err != nil || first == "" {
		t.Fatal(first, err)
	}
	quota := map[string]any{"quotas": map[string]any{"a": map[string]any{"quota_bytes": 77}}}
	if dry, err := c.ChangeConfig(ctx, first, quota, true); err != nil || dry.Quotas["a"].QuotaBytes != 77 {
		t.Fatalf("%+v, %v", dry, err)
	}
	if now, again, err := c.Config(ctx); err != nil || again != first || now.Quotas["a"].QuotaBytes == 77 {
		t.Fatalf("after a dry run: %+v, %s, %v", now, again, err)
	}
	if now, err := c.ChangeConfig(ctx, first, quota, false); err != nil || now.Quotas["a"].QuotaBytes != 77 {
		t.Fatalf("%+v, %v", now, err)
	}
	_, err = c.ChangeConfig(ctx, first, quota, false)
	var p *Problem
	if !errors.As(err, &p) || p.Code != CodeChanged {
		t.Fatalf("a change of what was changed: %v", err)
	}
}

// Each change leaves a line that says who, from where, what, and how it was and is.
func TestChangesAreAudited(t *testing.T) {
	var log strings.Builder
	s := serve(t, newFake(1), func(o *Options) {
		o.Log = zerolog.New(&log).Level(zerolog.ErrorLevel)
		o.Token = strings.Repeat("x", 16)
	})
	owner, tcp := s.client(t, "unix:"+s.unix, ""), s.client(t, s.tcp, strings.Repeat("x", 16))
	ctx := t.Context()
	key := Digest{2: 0xee}
	for what, do := range map[string]func(c *Client) error{
		"pin":                  func(c *Client) error { _, err := c.Pin(ctx, PinQuery{Key: key, TTL: time.Minute}); return err },
		"unpin":                func(c *Client) error { _, err := c.Unpin(ctx, key, false); return err },
		"drain":                func(c *Client) error { _, err := c.Drain(ctx, false, false); return err },
		"reload":               func(c *Client) error { _, err := c.Reload(ctx, true); return err },
		"remove segment":       func(c *Client) error { _, err := c.Remove(ctx, key, false); return err },
		"remove segments":      func(c *Client) error { _, err := c.RemoveSegments(ctx, RemovalQuery{Tenant: "a"}); return err },
		"remove checkpoints":   func(c *Client) error { _, err := c.RemoveCheckpoints(ctx, RemovalQuery{Dry: true}); return err },
		"remove checkpoint":    func(c *Client) error { _, err := c.RemoveCheckpoint(ctx, CheckpointName{Hash: key}, true); return err },
		"change configuration": func(c *Client) error { _, err := c.ChangeConfig(ctx, "*", map[string]any{}, false); return err },
		"switch splicing off": func(c *Client) error {
			_, err := c.SwitchProfile(ctx, SwitchQuery{Profile: key, Off: true})
			return err
		},
	} {
		for _, c := range []*Client{owner, tcp} {
			if err := do(c); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
	if _, err := owner.Pin(ctx, PinQuery{Key: Digest{8}, TTL: time.Minute}); !errors.Is(err, ErrFull) {
		t.Errorf("a pin without room: %v", err)
	}
	must(t, s.stop())
	seen := map[string]bool{}
	for line := range strings.Lines(log.String()) {
		var l map[string]any
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		_, unix := l["peer_uid"]
		remote, _ := l["remote"].(string)
		if unix == strings.HasPrefix(remote, "127.0.0.1:") || l["client"] == "" {
			t.Errorf("who was it? %s", line)
		}
		seen[fmt.Sprintf("%v %v %v", l["audit"], unix, l["error"] != nil)] = true
	}
	for _, what := range []string{"pin", "unpin", "drain", "reload", "remove segment", "remove segments", "remove checkpoints", "remove checkpoint", "change configuration", "switch splicing off"} {
		if !seen[what+" true false"] || !seen[what+" false false"] {
			t.Errorf("no line of %s by both ways", what)
		}
	}
	if !seen["pin true true"] {
		t.Error("no line of a refusal")
	}
}

// A request that is refused before anything is changed leaves a line too, and not more lines than
// the bound allows.
func TestRefusalsAreAudited(t *testing.T) {
	for _, r := range allRoutes() {
		if (r.needs == changes) != (actions[r.id] != "") {
			t.Errorf("%s has the name %q in the log", r.id, actions[r.id])
		}
	}
	var log strings.Builder
	s := serve(t, newFake(0), func(o *Options) {
		o.Log = zerolog.New(&log).Level(zerolog.ErrorLevel)
		o.Token = strings.Repeat("x", 16)
	})
	s.server.refusals.limit = rate.NewLimiter(0, 6)
	owner := unixHTTP(t, s.unix)
	const node = "http://localhost"
	patch := []string{"Content-Type", mergePatch, "If-Match", "*"}
	for _, x := range []struct {
		client       *http.Client
		method, path string
		status       int
		headers      []string
	}{
		{http.DefaultClient, http.MethodDelete, s.tcp + "/api/v1/segments?all=true&dry_run=1", 401, []string{"Authorization", "Bearer wrong"}},
		{http.DefaultClient, http.MethodPost, s.tcp + "/api/v1/reload", 403, []string{"Host", "evil.example"}},
		{owner, http.MethodPatch, node + "/api/v1/config", 400, patch}, // no body
		{owner, http.MethodPatch, node + "/api/v1/config", 412, []string{"Content-Type", mergePatch, "If-Match", "old"}},
		{owner, http.MethodPut, node + "/api/v1/pins/xyz", 400, nil},
		{owner, http.MethodGet, node + "/api/v1/segments?nosuch=1", 400, nil}, // changes nothing
		{owner, http.MethodPost, node + "/api/v1/drain?nosuch=1", 400, nil},
		{owner, http.MethodPost, node + "/api/v1/drain?nosuch=1", 400, nil}, // beyond the bound
		{owner, http.MethodPost, node + "/api/v1/drain?dry_run=1", 200, nil},
	} {
		if status, _, body := request(t, x.client, x.method, x.path, x.headers...); status != x.status {
			t.Errorf("%s %s: %d %s", x.method, x.path, status, body)
		}
	}
	must(t, s.stop())
	var got []string
	for line := range strings.Lines(log.String()) {
		var l map[string]any
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		reason, _ := l["error"].(string)
		got = append(got, fmt.Sprintf("%v|%v|%v|%.3s|%v", l["audit"], l["object"], l["dry_run"], reason, l["unlogged"]))
	}
	want := []string{
		"remove segments|all=true|true|401|<nil>", "reload|<nil>|false|403|<nil>", "change configuration|<nil>|false|400|<nil>",
		"change configuration|<nil>|false|412|<nil>", "pin|xyz|false|400|<nil>", "drain|nosuch=1|false|400|<nil>", "drain|<nil>|true||1",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s", strings.Join(got, "\n"))
	}
}

func TestRemovalsOfEverythingSaySo(t *testing.T) {
	s := serve(t, newFake(0), nil)
	httpc := unixHTTP(t, s.unix)
	for query, want := range map[string]int{"": 400, "dry_run=true": 400, "all=true": 200, "older_than=7d": 200, "older_than=0s": 400, "all=false": 400} {
		if status, _, body := request(t, httpc, http.MethodDelete, "http://localhost/api/v1/segments?"+query); status != want {
			t.Errorf("%q: %d %s", query, status, body)
		}
	}
}

// A proxy or a sidecar makes strangers look local: as soon as there is a token, loopback
// allows nothing that another address does not.
func TestReadingOverTCPNeedsATokenWhereOneIsSet(t *testing.T) {
	changes, reader := strings.Repeat("c", 16), strings.Repeat("r", 16)
	s := serve(t, newFake(0), func(o *Options) { o.Token, o.ReadToken = changes, reader })
	none := serve(t, newFake(0), nil)
	only := serve(t, newFake(0), func(o *Options) { o.Token = changes })
	router := serve(t, newFake(0), func(o *Options) { o.RouterToken = strings.Repeat("q", 16) })
	for _, r := range allRoutes() {
		for _, tc := range []struct {
			server *served
			from   origin
			token  string
		}{
			{s, owner, ""}, {none, owner, ""}, {only, owner, ""}, {none, local, ""}, {none, stranger, ""},
			{s, stranger, ""}, {s, stranger, reader}, {s, stranger, changes}, {s, stranger, "wrong"},
			{s, local, ""}, {s, local, reader}, {s, local, changes}, {s, local, "wrong"},
			{only, local, ""}, {only, local, changes}, {router, local, ""}, {router, stranger, ""},
		} {
			var h fasthttp.RequestHeader
			h.Set("Authorization", "Bearer "+tc.token)
			wanted := 0 // refused
			switch {
			case tc.from == owner, r.needs == open, tc.token == changes:
			case r.needs == reads && tc.server == none && tc.from == local:
			case r.needs == scrapes && tc.server != s:
			case (r.needs == reads || r.needs == scrapes) && tc.token == reader:
			case tc.server == none, tc.server == router && r.needs != asks:
				wanted = 403
			default:
				wanted = 401
			}
			got := 0
			if p := tc.server.server.guard(&h, r.needs, tc.from); p != nil {
				got = p.Status
				if !strings.Contains(p.Detail, "token-file") {
					t.Errorf("%s: the refusal names no setting: %s", r.id, p.Detail)
				}
			}
			if got != wanted {
				t.Errorf("%s from %d with token %.1q: %d, want %d", r.id, tc.from, tc.token, got, wanted)
			}
		}
	}
}

// A scraper may call us by any name; others are told which setting has names.
func TestProbesAndMetricsAreServedUnderAnyName(t *testing.T) {
	s := serve(t, newFake(0), nil)
	for path, want := range map[string]int{"/metrics": 200, "/livez": 200, "/readyz": 200, "/healthz": 200, "/openapi.json": 403, "/api/v1/status": 403, "/": 403, "/ui/": 403} {
		status, _, body := request(t, http.DefaultClient, http.MethodGet, s.tcp+path, "Host", "spliced.inference.svc:9400")
		if status != want || want == 403 && !strings.Contains(string(body), "-http-hosts") {
			t.Errorf("%s: %d %s", path, status, body)
		}
		status, _, _ = request(t, http.DefaultClient, http.MethodGet, s.tcp+path, "Origin", "http://evil.example")
		if status != 403 {
			t.Errorf("%s for another site's page: %d", path, status)
		}
	}
}

func TestTextOfStrangersIsMadePlain(t *testing.T) {
	for text, want := range map[string]string{
		"curl/8.5":                       "curl/8.5",
		"a\x1b[31mb\r\nc\xff":            "a[31mbc",
		strings.Repeat("x", 200):         strings.Repeat("x", 128),
		strings.Repeat("x", 127) + "é y": strings.Repeat("x", 127),
	} {
		if got := plain(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
