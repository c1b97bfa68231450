package main

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/api/cmd/cli"
)

type canaries = api.Canaries // embedded by its own name, that would hide its method Canaries

// locator answers where a prompt is held, and remembers the question.
type locator struct {
	api.Catalogue
	asked api.LocateQuery
	found api.Located
}

func (l *locator) Locate(q *api.LocateQuery) (*api.Located, error) {
	l.asked = *q
	return &l.found, nil
}

func serveLocator(t *testing.T, l *locator, token string) (address string) {
	t.Helper()
	shown := api.Shown{Node: struct{ api.Node }{}, Catalogue: l, Canaries: struct{ canaries }{}, Control: struct{ api.Control }{}}
	s, err := api.New(api.Options{Shown: shown, Metrics: prometheus.NewRegistry(), Log: zerolog.Nop(), Tokens: api.Tokens{RouterToken: token}})
	must(t, err)
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, api.Listener{Listener: tcp}) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return "http://" + tcp.Addr().String()
}

func TestLocateAsksAndShows(t *testing.T) {
	const token = "0123456789abcdef"
	memory, disk := 512, 0
	l := &locator{found: api.Located{Tokens: 3, RecomputeMillis: 20.25, Measured: true, Best: "b\x1b[2J", Members: 2, ExpectedFalse: 0.125, Nodes: []api.LocatedNode{
		{Node: "b\x1b[2J", Tokens: 640, PrefixTokens: 512, SegmentTokens: 128, Share: 0.8, SavedMillis: 15, PeerTokens: 3, SavedWithPeersMillis: 16},
		{Node: "a", Self: true, Tokens: 512, MemoryTokens: &memory, DiskTokens: &disk},
	}}}
	address := serveLocator(t, l, token)
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	tokenFile := write("token", token+"\n")
	ids, query := write("ids", "[1, 2\n4294967295]"), write("query", `{"profile": "m", "tokens": 9, "limit": 3}`)

	code, out, errs := ctl(t, "locate", "-admin", address, "-token-file", tokenFile, "-model", "m", "-tenant", "t", "-block", "2", "-seam", "8", "-segments", "0:1,1:2", ids)
	want := api.LocateQuery{
		Tenant: "t", Profile: "m", Tokens: 3, TokenIDs: []uint32{1, 2, 1<<32 - 1}, BlockTokens: 2, SeamTokens: 8, Limit: api.DefaultNodes,
		Segments: []api.LocateSegment{{Begin: 0, Tokens: 1}, {Begin: 1, Tokens: 2}},
	}
	if code != cli.ExitOK || errs != "" || !reflect.DeepEqual(l.asked, want) {
		t.Errorf("exit %d, %s, asked %+v, want %+v", code, errs, l.asked, want)
	}
	for _, text := range []string{"prompt of 3 tokens, 20.2 ms to compute (measured); 2 nodes", "80%", "15.0 ms", "16.0 ms", "asked: 512 in memory, 0 on disk", "not all it holds is known", "0.125 keys are expected"} {
		if !strings.Contains(out, text) {
			t.Errorf("no %q in\n%s", text, out)
		}
	}
	if strings.Contains(out, "\x1b") {
		t.Errorf("a name reaches the terminal: %q", out)
	}

	l.found.Best = ""
	code, out, _ = ctl(t, "locate", "--json", "-admin", address, "-token-file", tokenFile, "-nodes", "2", query)
	var got api.Located
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != cli.ExitFailed || len(got.Nodes) != 2 || l.asked.Limit != 2 || l.asked.Tokens != 9 {
		t.Errorf("exit %d, %v, asked %+v:\n%s", code, err, l.asked, out)
	}
	for _, args := range [][]string{{query, ids}, {"-seam", "8", query}, {"-model", "m", "-segments", "1", ids}} {
		if code, _, _ := ctl(t, append([]string{"locate", "-admin", address, "-token-file", tokenFile}, args...)...); code != cli.ExitUsage {
			t.Errorf("%q: exit %d", args, code)
		}
	}
	for _, args := range [][]string{{"locate"}, {"locate", "-model", "m", write("empty", " \n")}} {
		if code, _, errs := ctl(t, args...); code != cli.ExitUsage || !strings.Contains(errs, "the query is empty: name a FILE, or write the query to standard input") {
			t.Errorf("%q: exit %d, %s", args, code, errs)
		}
	}
	for text, want := range map[string]string{"surely not": "not JSON at byte 1", "[1]": "not a JSON object", `{"token_ids": "a"}`: "token_ids cannot be a JSON string"} {
		if code, _, errs := ctl(t, "locate", "-admin", address, write("bad", text)); code != cli.ExitFailed || !strings.Contains(errs, "invalid query: "+want+"\n") {
			t.Errorf("%s: exit %d, %s", text, code, errs)
		}
	}
	if code, _, errs := ctl(t, "locate", "-admin", address, query); code != cli.ExitFailed || !strings.Contains(errs, "token") {
		t.Errorf("without the token: exit %d, %s", code, errs)
	}
}
