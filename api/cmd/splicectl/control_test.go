package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/api/cmd/cli"
)

func TestControlAsksForWhatItIsTold(t *testing.T) {
	n := newNode(t)
	key, checkpoint := api.Digest{0xab, 0xcd}.String(), api.Digest{0xee}.String()
	for _, r := range []struct {
		line  string
		texts []string
		asked []string // changes alone
	}{
		{"rm segments abcd", []string{"segment  " + key + "  removed"}, []string{"DELETE segments/" + key + "?dry_run=false"}},
		{"rm segments ABCD -dry-run", []string{"would be removed"}, []string{"DELETE segments/" + key + "?dry_run=true"}},
		{"rm checkpoints ee", []string{"checkpoint  " + checkpoint + "  removed"}, []string{"DELETE checkpoints/" + checkpoint + "?dry_run=false"}},
		{"rm segments --tenant a --older-than 1d --key-prefix AB --profile 3", []string{"2 of 3 segments that match removed, 2 KiB; busy and kept: 1"},
			[]string{"DELETE segments?dry_run=false&older_than=24h0m0s&prefix=ab&profile=3&tenant=a"}},
		{"rm checkpoints --all --dry-run", []string{"1 of 1 checkpoints that match would be removed, 0 B; busy and kept: 0"}, []string{"DELETE checkpoints?all=true&dry_run=true"}},
		{"flush --tenant a --profile 0x0102", []string{"segments", "checkpoints"}, []string{"DELETE segments?dry_run=false&profile=3&tenant=a", "DELETE checkpoints?dry_run=false&profile=3&tenant=a"}},
		{"flush --all -o json", []string{`"matched": 3`}, []string{"DELETE segments?all=true&dry_run=false", "DELETE checkpoints?all=true&dry_run=false"}},
		{"pin abcd --ttl 2h", []string{"abcd00000000 is pinned for 2.0 h, 100 B of tenant a"}, []string{"PUT pins/" + key + "?dry_run=false&ttl=2h0m0s"}},
		{"pin abcd --ttl 7d", []string{"pinned for 7.0 days"}, []string{"PUT pins/" + key + "?dry_run=false&ttl=168h0m0s"}},
		{"pin abcd --dry-run", []string{"could be pinned for 10.0 min"}, []string{"PUT pins/" + key + "?dry_run=true&ttl=10m0s"}},
		{"unpin abcd", []string{"not pinned any more"}, []string{"DELETE pins/" + key + "?dry_run=false"}},
		{"drain", []string{"The node drains: 2 connections, with 3 leases."}, []string{"POST drain?dry_run=false"}},
		{"drain --undo --dry-run", []string{"Nothing was changed; the node would not drain"}, []string{"DELETE drain?dry_run=true"}},
		{"config reload", []string{"admin-token-file    as before", "cluster-keyring     changed"}, []string{"POST reload?dry_run=false"}},
		{"config set log_level=debug quotas.a.b.quota_bytes=10GiB x=0.5 quotas.z=null -dry-run", []string{"nothing was changed", "log_level      debug"},
			[]string{`PATCH config?dry_run=true {"log_level":"debug","quotas":{"a.b":{"quota_bytes":10737418240},"z":null},"x":0.5}`}},
	} {
		n.questions()
		sees(t, n, cli.ExitOK, r.line, r.texts...)
		asked := slices.DeleteFunc(n.questions(), func(q string) bool { return strings.HasPrefix(q, "GET") })
		if !slices.Equal(asked, r.asked) {
			t.Errorf("%s: asked %q, want %q", r.line, asked, r.asked)
		}
	}
}

func TestNothingIsChangedByWhatIsNotClear(t *testing.T) {
	n := newNode(t)
	for line, code := range map[string]int{
		"rm": cli.ExitUsage, "rm segments": cli.ExitUsage, "rm cats --all": cli.ExitUsage, "rm segments ab --tenant a": cli.ExitUsage, "rm segments ab --all": cli.ExitUsage, "rm segments --all --tenant a": cli.ExitUsage, "rm segments --older-than -1h --all": cli.ExitUsage,
		"rm segments ab": cli.ExitFailed, "rm segments abcd 77": cli.ExitFailed, "rm segments --profile 9": cli.ExitFailed, "rm segments --profile 0x99": cli.ExitFailed, "rm checkpoints zz": cli.ExitUsage,
		"flush": cli.ExitUsage, "flush --all --tenant a": cli.ExitUsage, "flush x": cli.ExitUsage, "pin": cli.ExitUsage, "pin abcd --ttl 0s": cli.ExitUsage, "pin 77": cli.ExitFailed,
		"unpin 77": cli.ExitFailed, "drain now": cli.ExitUsage, "config set": cli.ExitUsage, "config set log_level": cli.ExitUsage, "config set =3": cli.ExitUsage, "config set a.=3": cli.ExitUsage,
		"config set public_bytes=many": cli.ExitUsage, "config set a=1 a=2": cli.ExitUsage, "config set a=1 a.b=2": cli.ExitUsage, "config set a.b=2 a=1": cli.ExitUsage, "config get nothing": cli.ExitFailed,
	} {
		sees(t, n, code, line)
	}
	if asked := slices.DeleteFunc(n.questions(), func(q string) bool { return strings.HasPrefix(q, "GET") }); len(asked) > 0 {
		t.Errorf("asked %q", asked)
	}
}

func TestWhatIsPinnedIsSaidToBe(t *testing.T) {
	n := newNode(t)
	for _, key := range []api.Digest{{0xab, 0xcd}, {0xab, 0xff}} {
		n.docs["DELETE /api/v1/segments/"+key.String()] = api.Problem{Status: 409, Code: api.CodeBusy, Detail: "remove segment: busy with something"}
	}
	sees(t, n, cli.ExitFailed, "rm segments abcd", "it is pinned: splicectl unpin abcd00000000\n")
	sees(t, n, cli.ExitFailed, "rm segments abff", "busy with something\n")
}

// Every key begins with no digits: a script whose variable is empty names nothing.
func TestNoDigitsNameNothing(t *testing.T) {
	n := newNode(t)
	for _, args := range [][]string{
		{"inspect", ""}, {"pin", ""}, {"unpin", ""}, {"profile", "off", ""}, {"profile", "on", ""}, {"rm", "segments", ""}, {"rm", "checkpoints", ""},
		{"rm", "segments", "--profile", "0x"}, {"flush", "--profile", "0x"}, {"flush", "--profile", "0xzz"},
	} {
		code, out, errs := ctl(t, append(args, "--admin", n.url)...)
		if code != cli.ExitUsage || !strings.Contains(errs, "is not a key in hex digits") {
			t.Errorf("%q: exit %d\n%s%s", args, code, out, errs)
		}
	}
	if asked := slices.DeleteFunc(n.questions(), func(q string) bool { return strings.HasPrefix(q, "GET") }); len(asked) > 0 {
		t.Errorf("asked %q", asked)
	}
}

func TestTheConfigurationIsShown(t *testing.T) {
	n := newNode(t)
	n.docs["PATCH /api/v1/config"] = api.Config{LogLevel: "debug", Settings: map[string]string{"arena": "1GiB"}}
	if _, out, _ := ctl(t, "config", "set", "log_level=debug", "--admin", n.url); strings.Contains(out, "settings") || strings.Contains(out, "-\n") || !strings.Contains(out, "log_level") {
		t.Errorf("what cannot change is shown as well:\n%s", out)
	}
	if _, out, _ := ctl(t, "config", "set", "log_level=debug", "-o", "json", "--admin", n.url); !strings.Contains(out, `"arena": "1GiB"`) {
		t.Errorf("the document:\n%s", out)
	}
	sees(t, n, cli.ExitOK, "config get", "log_level               info", "public_bytes            9007199254740993 (8 PiB)", "quotas.a.b.quota_bytes  2048 (2 KiB)", "settings.arena          1GiB")
	if out := sees(t, n, cli.ExitOK, "config get quotas.a.b.quota_bytes"); out != "2048 (2 KiB)\n" {
		t.Errorf("%q", out)
	}
	sees(t, n, cli.ExitFailed, "config get arena", `unknown setting "arena"; did you mean settings.arena?`)
	sees(t, n, cli.ExitFailed, "config get colour", `unknown setting "colour"; splicectl config get lists them`)
	sees(t, n, cli.ExitUsage, "config set disk-size", "disk-size has no value: want disk-size=VALUE")
	if out := sees(t, n, cli.ExitOK, "config get public_bytes -o json"); out != "9007199254740993\n" {
		t.Errorf("%q", out)
	}
}

func TestAnswersToQuestions(t *testing.T) {
	for text, want := range map[string]bool{"y\n": true, "Yes\n": true, "n\n": false, "": false, "yesterday\n": false} {
		if agreed(strings.NewReader(text)) != want {
			t.Errorf("%q", text)
		}
	}
}

func TestDaemonsHaveNames(t *testing.T) {
	n, other := newNode(t), newNode(t)
	t.Setenv("SPLICECTL_CONTEXTS", filepath.Join(t.TempDir(), "c", "contexts.yaml"))
	token := filepath.Join(t.TempDir(), "token")
	must(t, os.WriteFile(token, []byte("secret\n"), 0o600))
	ok := func(want int, text string, args ...string) {
		t.Helper()
		code, out, errs := ctl(t, args...)
		if code != want || !strings.Contains(out+errs, text) {
			t.Errorf("%q: exit %d, want %d and %q:\n%s%s", args, code, want, text, out, errs)
		}
	}
	ok(cli.ExitFailed, "there are no contexts", "health", "--all-contexts")
	ok(cli.ExitOK, "one is "+n.url, "context", "add", "one", n.url)
	ok(cli.ExitOK, "two is "+other.url, "context", "add", "two", other.url, "--token-file", token)
	ok(cli.ExitOK, "three is /", "context", "add", "three", "relative.sock")
	ok(cli.ExitUsage, "neither the path of a socket nor http://HOST:PORT", "context", "add", "bad", "ftp://x")
	ok(cli.ExitUsage, "99999 is not a port", "context", "add", "bad", "http://h:99999")
	ok(cli.ExitUsage, "for TCP write http://h:9400\n", "context", "add", "bad", "h")
	ok(cli.ExitFailed, "invalid context name", "context", "add", "a/b", n.url)
	ok(cli.ExitUsage, "a name and an address", "context", "add", "x")
	ok(cli.ExitOK, "one    *       "+n.url, "context", "ls")
	ok(cli.ExitOK, "node-1", "stats") // the first one is in use
	ok(cli.ExitOK, "node-1", "stats", "--context", "two")
	ok(cli.ExitOK, "two is asked", "context", "use", "two")
	ok(cli.ExitFailed, "no context", "context", "use", "four")
	ok(cli.ExitFailed, "no context", "stats", "--context", "four")
	ok(cli.ExitUsage, "cannot be combined", "stats", "--context", "one", "--admin", n.url)
	n.questions()
	other.questions()
	ok(cli.ExitOK, "drains", "drain", "-y")
	if a, b := n.questions(), other.questions(); len(a) != 0 || len(b) != 1 {
		t.Errorf("asked %q and %q", a, b)
	}
	ok(cli.ExitFailed, "no such socket", "health", "--all-contexts")
	ok(cli.ExitOK, "three is forgotten", "context", "rm", "three")
	ok(cli.ExitFailed, "no context", "context", "rm", "three")
	for _, args := range [][]string{{"health"}, {"stats"}, {"ls"}, {"usage"}} {
		code, out, errs := ctl(t, append(args, "--all-contexts")...)
		if code != cli.ExitOK || !strings.Contains(out, "\none ") || !strings.Contains(out, "\ntwo ") {
			t.Errorf("%q: exit %d\n%s%s", args, code, out, errs)
		}
		code, out, _ = ctl(t, append(args, "--all-contexts", "-o", "json")...)
		var d struct{ Nodes []struct{ Node string } }
		if err := json.Unmarshal([]byte(out), &d); err != nil || code != cli.ExitOK || len(d.Nodes) != 2 || d.Nodes[1].Node != "two" {
			t.Errorf("%q: exit %d, %v\n%s", args, code, err, out)
		}
	}
	_, out, _ := ctl(t, "__complete", "stats", "--context", "")
	if !strings.HasPrefix(out, "one\ntwo\n") {
		t.Errorf("completed %q", out)
	}
}

func TestMembersAreAskedWhereTheNodeIs(t *testing.T) {
	n := newNode(t)
	n.docs["GET /api/v1/cluster"] = api.Cluster{Enabled: true, Members: []api.Member{
		{Name: "a", Self: true, State: api.MemberAlive}, {Name: "b", State: api.MemberAlive, Peer: "127.0.0.1:7947"},
		{Name: "c", State: api.MemberUnreachable, Peer: "10.0.0.9:7947"}, {Name: "d", State: api.MemberAlive},
	}}
	sees(t, n, cli.ExitFailed, "health --members", "a     degraded", "b     degraded", "c     unavailable  it is unreachable", "d     unavailable  its address is unknown")
	sees(t, n, cli.ExitFailed, "ls pools --members --sort=-capacity", "NODE  POOL", "a     public  disk", "b     public  disk", "c: it is unreachable")
	sees(t, n, cli.ExitFailed, "stats --members --json", `"node": "b"`, `"error": "it is unreachable`)
	sees(t, n, cli.ExitUsage, "stats --members -all", "one node")
	sees(t, n, cli.ExitUsage, "health --member-port 9", "goes with --members")
	n.docs["GET /api/v1/cluster"] = api.Cluster{}
	sees(t, n, cli.ExitFailed, "health --members", "not in a cluster")
}

func TestEventsAreFollowed(t *testing.T) {
	var asked []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.RequestURI())
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, "id: %[1]d\nevent: disk\ndata: {\"id\":%[1]d,\"kind\":\"disk\",\"text\":\"stream %[1]d\\u001b[2J\"}\n\nevent: lost\ndata: {\"kind\":\"lost\",\"lost\":1200}\n\n", len(asked))
	}))
	defer s.Close()
	for form, want := range map[string]string{"table": "  disk       stream 1", "json": `"text":"stream 1`, "yaml": "text: \"stream 1"} {
		asked = nil
		ctx, cancel := context.WithCancel(t.Context())
		out := &output{on: func(text string) {
			if strings.Contains(text, "stream 2") {
				cancel()
			}
		}}
		var errs bytes.Buffer
		code := run(ctx, []string{"events", "-f", "--kind", "disk", "--after", "0", "-o", form, "--admin", s.URL}, out, &errs)
		cancel()
		text := out.b.String()
		if code != cli.ExitOK || errs.Len() > 0 || !strings.Contains(text, want) || strings.Contains(text, "\x1b") || len(asked) < 2 || asked[0] != "/api/v1/events?after=0&kind=disk" || asked[1] != "/api/v1/events?after=1&kind=disk" {
			t.Errorf("%s: exit %d, asked %q\n%s%s", form, code, asked, text, &errs)
		}
		if form == "table" && !strings.Contains(text, "lost       1,200 events are missing here") {
			t.Errorf("%s", text)
		}
	}
}
