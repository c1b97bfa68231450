package main

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/api/cmd/cli"
)

// sees runs a command and looks for texts in what it prints.
func sees(t *testing.T, n *nodeOfTests, want int, line string, texts ...string) string {
	t.Helper()
	args := append(strings.Fields(line), "--admin", n.url)
	code, out, errs := ctl(t, args...)
	if code != want || strings.Contains(out+errs, "\x1b") {
		t.Fatalf("%s: exit %d, want %d\n%s%s", line, code, want, out, errs)
	}
	for _, text := range texts {
		if !strings.Contains(out+errs, text) {
			t.Errorf("%s has no %q:\n%s%s", line, text, out, errs)
		}
	}
	return out
}

func TestWhatIsToBeSeenIsOnOneScreen(t *testing.T) {
	n := newNode(t)
	out := sees(t, n, cli.ExitOK, "stats", "node-1  spliced v9  host  up 36.0 h", "degraded: disk: slow\\u001b[2J", "60.1 %", "of 12,000 prompt tokens; 66.8 % with the engine's own cache",
		"4,000 from prefixes, 2,010 from segments, 3,990 computed, of these 100 in seams; 2,000 in the engine", "missed tokens: unknown 3,000, evicted 990",
		"1.5 min  ", "by 10 requests, 9.00 s a request", "0.2 requests/s, 20 tokens/s, hit ratio 50.0 %", "1,234 segments, 5 checkpoints; 3 leases of 2 connections",
		"public  dram  512 MiB  1 GiB     50.0 %", "720", "0.2")
	if strings.Contains(out, "hit_tokens") || strings.Count(out, "\n") > 24 {
		t.Errorf("more than a screen:\n%s", out)
	}
	sees(t, n, cli.ExitOK, "stats -all", "published_bytes", "1 GiB", "hit_tokens", "2,010 tokens")
	var s nodeStats
	if err := json.Unmarshal([]byte(sees(t, n, cli.ExitOK, "stats -o json")), &s); err != nil || s.Counters["published"] != 720 || s.Usage.Requests != 10 || s.Overview.Segments != 1234 {
		t.Errorf("%v %+v", err, s)
	}
	n.without("overview")
	sees(t, n, cli.ExitOK, "stats", "not reported by this version of the daemon", "512 MiB", "720")
}

func TestHealthIsToldWithItsStatus(t *testing.T) {
	n := newNode(t)
	sees(t, n, cli.ExitOK, "health", "degraded\n", "disk    degraded  slow")
	n.docs["GET /readyz"] = api.Health{Status: api.HealthUnavailable}
	sees(t, n, cli.ExitFailed, "health", "unavailable")
	sees(t, n, cli.ExitFailed, "health --json", `"status": "unavailable"`)
}

func TestListingsHaveColumnsFormsAndAnOrder(t *testing.T) {
	n := newNode(t)
	for line, texts := range map[string][]string{
		"ls --sort=-bytes":         {"abff00000000  pending    -      ", "1 MiB"},
		"ls --sort bytes -n 1":     {"abcd00000000", "raise --limit"},
		"ls -o wide":               {api.Digest{0xab, 0xcd}.String(), "PUBLISHER"},
		"ls segments -long":        {api.Digest{0xab, 0xcd}.String()},
		"ls -o yaml":               {"- key: abcd", "more: false"},
		"ls -tenant b":             {"KEY"},
		"ls pools":                 {"POOL", "50.0 %", "4 GiB"},
		"ls tenants":               {"a       0 B  512 MiB  1 MiB  513 MiB  1 GiB", "50.1 %", "60.1 %", "no quota", "\nc  "},
		"ls tenants --sort=-used":  {"a  "},
		"ls requests -o wide":      {"12  1m   a       splice", "90.0 %", "55.0 ms", "300.0 ms", "chatcmpl-7"},
		"ls leases --connection 1": {"segment  abcd00000000  a       vllm    1", "1m", "in 36.0 h", "100 B"},
		"ls pins":                  {"abcd00000000  segment  a       100 B", "in 36.0 h", "uid 0"},
		"ls connections -tenant c": {"vllm"},
		"ls profiles":              {"010200000000", "m"},
		"usage":                    {"a       m      010203040506  10        12,000  60.1 %  66.8 %  1.5 min  unknown 3,000, evicted 990", "\nb  "},
		"usage --tenant a -o json": {`"saved_ms": 90000`},
		"inspect abcd":             {"key", "abcd"},
	} {
		sees(t, n, cli.ExitOK, line, texts...)
	}
	for line, text := range map[string]string{
		"ls -tenant nobody":          `no such tenant: "nobody"; splicectl ls tenants lists them`,
		"ls checkpoints -tenant no":  "no such tenant",
		"usage -tenant no":           "no such tenant",
		"ls connections -tenant no":  "no such tenant",
		"ls pins -tenant no":         "no such tenant",
		"rm segments -tenant no":     "no such tenant",
		"flush -tenant no":           "no such tenant",
		"profile off 77":             "give the whole fingerprint",
		"inspect 77":                 "no segment",
		"trace nothing":              `request "nothing" not found`,
		"ls canaries -tenant no":     "no such tenant",
		"ls tenants -tenant nothing": "no such tenant",
	} {
		if line != "ls checkpoints -tenant no" { // the node of tests does not filter these
			sees(t, n, cli.ExitFailed, line, text)
		}
	}
	for line, text := range map[string]string{
		"ls --sort colour": `no column "colour" to sort by, want one of key, state`, "ls --way splice": "--way is not for segments",
		"ls requests --way fly": `"fly" is none of`, "inspect xyz": "is not a key in hex digits", "ls --watch=1ms": "less than 100ms", "ls --all-contexts": "cannot be combined",
	} {
		sees(t, n, cli.ExitUsage, line, text)
	}
	n.docs["GET /api/v1/requests"] = map[string]any{"items": []api.Request{}}
	n.docs["GET /api/v1/decisions"] = map[string]any{"items": []api.Decision{}}
	sees(t, n, cli.ExitOK, "ls requests -profile 3", "WAY")
	sees(t, n, cli.ExitFailed, "ls requests -profile 99", `no engine has registered a profile "99" since the start`)
	sees(t, n, cli.ExitFailed, "inspect decisions -tenant no", "no such tenant")
	n.without("requests")
	sees(t, n, cli.ExitFailed, "ls requests", "The daemon is older than this splicectl")
}

func TestDocumentsAreTheSameInBothForms(t *testing.T) {
	n := newNode(t)
	for _, line := range []string{"ls", "ls tenants", "usage", "trace", "config get", "events", "ls requests", "version"} {
		_, j, _ := ctl(t, append(strings.Fields(line), "-o", "json", "--admin", n.url)...)
		_, y, _ := ctl(t, append(strings.Fields(line), "-o", "yaml", "--admin", n.url)...)
		if line == "version" {
			_, j, _ = ctl(t, "version", "--json")
			_, y, _ = ctl(t, "version", "-o", "yaml")
		}
		var a, b any
		d := json.NewDecoder(strings.NewReader(j))
		d.UseNumber()
		if err := d.Decode(&a); err != nil {
			t.Fatalf("%s: %v in %s", line, err, j)
		}
		if err := yaml.Unmarshal([]byte(y), &b); err != nil {
			t.Fatalf("%s: %v in %s", line, err, y)
		}
		x, _ := json.Marshal(a)
		z, _ := json.Marshal(b)
		if !bytes.Equal(x, z) {
			t.Errorf("%s:\n%s\n%s", line, x, z)
		}
	}
}

func TestARequestsStoryIsDrawn(t *testing.T) {
	n := newNode(t)
	for _, line := range []string{"trace", "trace 12", "trace chatcmpl-7", "trace --tenant a --way splice"} {
		sees(t, n, cli.ExitOK, line+" --width 40", "12, to the engine chatcmpl-7", "hit ratio 90.0 %", "400 tokens, from disk", "match 0.5 ms, waits 2.0 ms, first token 55.0 ms",
			"▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒████████████████████····", "0                                   1000", "█ 500 tokens segments placed (50.0 %)",
			"400-900   500    segment   dram  abcd00000000", "unknown\\u001b]0;x", "splice     55.0 ms     chosen", "recompute  355.0 ms")
	}
	var r api.Request
	if err := json.Unmarshal([]byte(sees(t, n, cli.ExitOK, "trace 12 --json")), &r); err != nil || len(r.Spans) != 3 || *r.Spans[1].Key != (api.Digest{0xab, 0xcd}) {
		t.Errorf("%v %+v", err, r)
	}
	sees(t, n, cli.ExitUsage, "trace 12 --tenant a", "choose the last request")
	n.docs["GET /api/v1/requests"] = map[string]any{"items": []api.Request{}}
	if code, _, errs := ctl(t, "trace", "--tenant", "nosuch", "--admin", n.url); code != cli.ExitFailed || errs != "splicectl trace: no such tenant: \"nosuch\"; splicectl ls tenants lists them\n" {
		t.Errorf("exit %d, %s", code, errs)
	}
}

// output is what a command that does not end has printed so far.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
	on func(text string)
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.b.Write(p)
	o.on(o.b.String())
	return len(p), nil
}

func TestWatchRepeatsUntilItIsInterrupted(t *testing.T) {
	n := newNode(t)
	for line, again := range map[string]string{"ls pools": "POOL", "stats": "node-1", "health": "degraded\n", "usage -o json": `"items"`, "ls pins -o yaml": "items:"} {
		ctx, cancel := context.WithCancel(t.Context())
		out := &output{on: func(text string) {
			if strings.Count(text, again) >= 3 {
				cancel()
			}
		}}
		var errs bytes.Buffer
		code := run(ctx, append(strings.Fields(line), "--watch=100ms", "--admin", n.url), out, &errs)
		cancel()
		if code != cli.ExitOK || errs.Len() > 0 {
			t.Errorf("%s: exit %d, %s", line, code, &errs)
		}
	}
}

func TestEventsAreListedAndFollowed(t *testing.T) {
	n := newNode(t)
	sees(t, n, cli.ExitOK, "events -n 5", "evicted  segment abcd00000000, tenant a, 100 B, by default, for room, x\\u001b[2J")
	sees(t, n, cli.ExitUsage, "events --kind nothing", "no kind")
	sees(t, n, cli.ExitUsage, "events -f -n 3", "do not go together")
	sees(t, n, cli.ExitFailed, "events --tenant nobody", "no such tenant")
	if asked := n.questions(); len(asked) != 1 || asked[0] != "GET events?limit=5&poll=true" {
		t.Errorf("asked %q", asked)
	}
}
