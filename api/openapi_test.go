package api

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// document is the part of OpenAPI 3.1 that the test walks.
type document struct {
	Paths      map[string]map[string]documented
	Components struct{ Schemas map[string]any }
}

type documented struct {
	OperationID string
	Parameters  []struct {
		Name, In string
		Schema   map[string]any
	}
	RequestBody struct {
		Required bool
		Content  map[string]struct{ Schema map[string]any }
	}
	Responses map[string]struct {
		Content map[string]struct{ Schema map[string]any }
	}
}

func readDocument(t *testing.T) document {
	t.Helper()
	var d document
	must(t, json.Unmarshal(openAPI, &d))
	return d
}

// call is one request with the status it must get.
type call struct {
	path, query string
	status      int
	body        string
}

// goodQuery is a question where a prompt is held.
const goodQuery = `{"profile": "m", "token_ids": [1, 2, 3]}`

// bodiesOf makes requests of an operation that takes a document.
func bodiesOf(path string) []call {
	key := Digest{7}
	return []call{
		{path, "", 200, goodQuery}, {path, "", 400, goodQuery + "{}"}, {path, "", 400, `{"profile": "m"}`}, {path, "", 404, `{"profile": "unknown", "tokens": 1}`},
		{path, "", 200, `{"tenant": "a", "profile": "m", "accept": "exact", "limit": 2, "tokens": 4, "prefixes": [{"hash": "` + key.String() + `", "tokens": 2}],
			"segments": [{"begin": 2, "tokens": 2, "key": "` + key.String() + `", "excluded_tokens": 1}]}`},
		{path, "", 200, `{"profile": "m", "token_ids": [1, 2, 3, 4], "block_tokens": 2, "positions": [2], "seam_tokens": 8, "segments": [{"begin": 0, "tokens": 4}]}`},
		{path, "", 200, `{"profile": "m", "token_ids": [1, 2, 3, 4], "primer": "` + key.String() + `", "primed_from": 2, "segments": [{"begin": 2, "tokens": 2}]}`},
		{path, "no_such_parameter=1", 400, goodQuery},
	}
}

// needed are parameters without which an operation is refused.
var needed = map[string]string{"removeSegments": "all=true", "removeCheckpoints": "all=true", "pin": "ttl=10m"}

// callsOf makes requests of an operation that reach each documented status.
func callsOf(path string, op documented, held, missing Digest) []call {
	there, nowhere := held.String(), missing.String()
	if strings.HasPrefix(path, "/api/v1/requests/") {
		there, nowhere = "1", "99"
	}
	good := strings.ReplaceAll(path, "{key}", there)
	switch op.OperationID {
	case "locate":
		return bodiesOf(path)
	case "changeConfig": // TestConfigChangesAsDocumented
		return nil
	}
	if path == eventsPath {
		return listingsOfEvents()
	}
	base := needed[op.OperationID]
	calls := []call{{path: good, query: base, status: 200}}
	if strings.Contains(path, "{key}") {
		calls = append(calls, call{path: strings.ReplaceAll(path, "{key}", nowhere), status: 404},
			call{path: strings.ReplaceAll(path, "{key}", "zz"), status: 400})
		calls[1].query = base
	}
	if _, ok := op.Responses["400"]; ok {
		calls = append(calls, call{path: good, query: "no_such_parameter=1", status: 400})
	}
	samples := map[string][2]string{ // good, bad
		"tenant": {"a", ""}, "profile": {"1", "-1"}, "key_prefix": {"00", "xy"}, "cursor": {Digest{}.String(), "!"},
		"prefix": {"00", "xy"}, "older_than": {"1h", "-1s"}, "all": {"true", "2"}, "kind": {"exact", "whole"}, "connection": {"7", "seven"},
		"ttl": {"10m", "8d"}, "by": {"me", ""}, "undo": {"true", "2"},
		"limit": {"1", "1001"}, "verbose": {"true", "maybe"}, "what": {"evicted", "left"}, "dry_run": {"true", "2"}, "why": {"because", ""},
		"way": {"splice", "slow"}, "history": {"7d", "1y"},
	}
	for _, p := range op.Parameters {
		if p.In == "query" {
			s := samples[p.Name]
			if p.Name == "cursor" && op.OperationID == "listLeases" {
				s = [2]string{"1", "!"}
			}
			rest := "&" + base
			if base == "" || strings.HasPrefix(base, p.Name+"=") {
				rest = ""
			}
			calls = append(calls, call{path: good, query: p.Name + "=" + s[0] + rest, status: 200}, call{path: good, query: p.Name + "=" + s[1] + rest, status: 400},
				call{path: good, query: p.Name + "=" + s[0] + "&" + p.Name + "=" + s[0] + rest, status: 400})
		}
	}
	return calls
}

// listingsOfEvents ask for no stream, which does not end.
func listingsOfEvents() (calls []call) {
	for query, status := range map[string]int{
		"": 200, "&kind=evicted": 200, "&kind=evicted,request": 200, "&kind=": 400, "&kind=lost": 400, "&kind=evicted&kind=request": 400,
		"&tenant=a": 200, "&tenant=": 400, "&after=0": 200, "&after=-1": 400, "&limit=1": 200, "&limit=0": 400, "&poll=1": 400, "&no_such_parameter=1": 400,
	} {
		calls = append(calls, call{path: eventsPath, query: "poll=1" + query, status: status})
	}
	return append(calls, call{path: eventsPath, query: "poll=maybe", status: 400}, call{path: eventsPath, query: "limit=1", status: 400})
}

func TestEveryOperationAnswersAsDocumented(t *testing.T) {
	d := readDocument(t)
	f := newFake(3)
	f.removed = make(chan Digest, 100)
	s := serve(t, f, nil)
	httpc := unixHTTP(t, s.unix)
	c := &checker{schemas: d.Components.Schemas, seen: map[string]bool{}}
	for path, methods := range d.Paths {
		for method, op := range methods {
			for _, call := range callsOf(path, op, f.segments[0].Key, Digest{9}) {
				name := fmt.Sprintf("%s %s?%s", op.OperationID, call.path, call.query)
				target := strings.TrimSuffix("http://localhost"+call.path+"?"+call.query, "?")
				if call.body != "" && call.status == 200 {
					var v any
					must(t, json.Unmarshal([]byte(call.body), &v))
					if err := c.check(op.OperationID, op.RequestBody.Content["application/json"].Schema, v); err != nil {
						t.Errorf("%s: the request: %v", name, err)
					}
				}
				status, media, body := send(t, httpc, strings.ToUpper(method), target, call.body)
				if status != call.status {
					t.Errorf("%s: status %d, want %d: %s", name, status, call.status, body)
					continue
				}
				if err := answers(c, op, status, media, body); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
	}
	changesConfig(t, d, c, s)
	for name, s := range d.Components.Schemas {
		properties, _ := s.(map[string]any)["properties"].(map[string]any)
		for p := range properties {
			if !c.seen[name+"."+p] {
				t.Errorf("%s.%s is documented and was never answered", name, p)
			}
		}
	}
}

func answers(c *checker, op documented, status int, media string, body []byte) error {
	response, ok := op.Responses[fmt.Sprint(status)]
	if !ok {
		return fmt.Errorf("status %d is not documented", status)
	}
	content, ok := response.Content[media]
	if !ok {
		return fmt.Errorf("%s is not documented for %d", media, status)
	}
	if media == "text/plain" {
		return nil
	}
	var v any
	if err := json.Unmarshal(body, &v); err != nil {
		return err
	}
	return c.check(op.OperationID, content.Schema, v)
}

func unixHTTP(t *testing.T, path string) *http.Client {
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

func request(t *testing.T, c *http.Client, method, url string, headers ...string) (int, string, []byte) {
	t.Helper()
	return send(t, c, method, url, "", headers...)
}

func send(t *testing.T, c *http.Client, method, url, content string, headers ...string) (int, string, []byte) {
	t.Helper()
	req, err := http.NewRequest(method, url, strings.NewReader(content))
	must(t, err)
	for h := range slices.Chunk(headers, 2) {
		if h[0] == "Host" {
			req.Host = h[1]
			continue
		}
		req.Header.Set(h[0], h[1])
	}
	res, err := c.Do(req)
	must(t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	must(t, err)
	media, _, err := mime.ParseMediaType(res.Header.Get("Content-Type"))
	if err != nil && len(body) > 0 {
		t.Fatalf("%s %s: content type: %v", method, url, err)
	}
	return res.StatusCode, media, body
}
