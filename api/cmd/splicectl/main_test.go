package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/api/cmd/cli"
)

func ctl(t *testing.T, args ...string) (int, string, string) {
	t.Helper()
	var out, errs bytes.Buffer
	code := run(t.Context(), args, &out, &errs)
	return code, out.String(), errs.String()
}

func TestEveryCommandHasHelpWithExamplesAndJSON(t *testing.T) {
	_, list, _ := ctl(t, "-h")
	var check func(path []string, c cli.Command)
	check = func(path []string, c cli.Command) {
		name := strings.Join(path, " ")
		for _, help := range []string{"-h", "-help", "--help"} {
			code, out, errs := ctl(t, append(slices.Clone(path), help)...)
			if code != cli.ExitOK || errs != "" {
				t.Errorf("%s %s: exit %d, %s", name, help, code, errs)
			}
			wanted := []string{c.Summary, "Usage:\n  splicectl " + name, "Examples:\n  splicectl " + name}
			if c.Setup != nil && !c.Screen {
				wanted = append(wanted, "--json", "-o, --output")
			}
			for _, want := range wanted {
				if !strings.Contains(out, want) {
					t.Errorf("%s %s lacks %q:\n%s", name, help, want, out)
				}
			}
		}
		for _, sub := range c.Subs {
			check(append(slices.Clone(path), sub.Name), sub)
		}
	}
	for _, c := range commands() {
		if c.Verbatim { // its help is the other program's
			if !strings.Contains(list, c.Summary) {
				t.Errorf("splicectl -h lacks %s", c.Name)
			}
			continue
		}
		if c.Hidden {
			if strings.Contains(list, c.Summary) {
				t.Errorf("splicectl -h has %s", c.Name)
			}
			continue
		}
		check([]string{c.Name}, c)
		if !strings.Contains(list, c.Summary) {
			t.Errorf("splicectl -h lacks %s", c.Name)
		}
	}
	if code, out, errs := ctl(t, "help", "ls"); code != cli.ExitOK || errs != "" || !strings.Contains(out, "splicectl ls") {
		t.Errorf("help ls: exit %d, %s%s", code, out, errs)
	}
}

func TestWrongUsageIsTwoAndSaysWhatIsRight(t *testing.T) {
	t.Setenv("SPLICED_ADMIN_SOCKET", "/nonexistent/admin.sock")
	for _, args := range [][]string{
		{}, {"frobnicate"}, {"help", "frobnicate"}, {"frobnicate", "-x"}, {"config"}, {"config", "sett"}, {"context", "use"}, {"ls", "-nope"}, {"ls", "-o", "xml"}, {"stats", "-o", "wide"},
		{"ls", "--json", "-o", "yaml"}, {"ls", "--sort", "colour", "pools", "x"}, {"ls", "pools", "-tenant", "a"}, {"ls", "--timeout", "0s"}, {"ls", "--context", "a", "--admin", "b"}, {"ls", "a", "b"}, {"ls", "cats"}, {"ls", "-limit", "-1"},
		{"inspect"}, {"inspect", "a", "b"}, {"inspect", "decisions", "-limit", "0"}, {"stats", "x"}, {"version", "x"},
		{"completion"}, {"completion", "foo"}, {"completion", "bash", "foo"}, {"ls", "--admin", "ftp://x"},
		{"disk"}, {"disk", "check"}, {"disk", "mend", "/x"}, {"disk", "repair", "-deep", "/x"}, {"disk", "check", "-long", "/x"},
	} {
		code, out, errs := ctl(t, args...)
		if code != cli.ExitUsage || out != "" || !strings.Contains(errs, "splicectl") {
			t.Errorf("%q: exit %d, out %q, err %q", args, code, out, errs)
		}
	}
}

func TestBadValuesOfFlagsAreSaidInWords(t *testing.T) {
	for line, want := range map[string]string{
		"ls --limit abc":                       `--limit "abc" is not a number`,
		"ls -n 1e99":                           `--limit "1e99" is not a number`,
		"ls --connection -1":                   `--connection "-1" is not a number of at least 0`,
		"ls --connection 99999999999999999999": `--connection "99999999999999999999" is too large`,
		"ls --timeout 7x":                      `--timeout "7x" is not a time such as 90s or 10m`,
		"pin ab --ttl 7x":                      `--ttl "7x" is not a time such as 90s or 10m`,
		"rm segments --older-than d":           `--older-than "d" is not a time such as 90s or 10m`,
		"ls --long=maybe":                      `--long "maybe" is neither true nor false`,
		"events --kind a,,b":                   `--kind "a,,b": empty value`,
	} {
		code, _, errs := ctl(t, strings.Fields(line)...)
		if command, _, _ := strings.Cut(line, " "); code != cli.ExitUsage || !strings.HasPrefix(errs, "splicectl "+command+": "+want+"\n") {
			t.Errorf("%s: exit %d, %s", line, code, errs)
		}
	}
}

func TestWhatTakesNoArgumentsRefusesThem(t *testing.T) {
	var check func(path []string, list []cli.Command)
	check = func(path []string, list []cli.Command) {
		for _, c := range list {
			args := append(slices.Clone(path), c.Name)
			check(args, c.Subs)
			if c.Synopsis != cli.FlagsOnly || c.Verbatim {
				continue
			}
			code, out, errs := ctl(t, append(args, "x")...)
			if code != cli.ExitUsage || out != "" || !strings.Contains(errs, `takes no arguments, got ["x"]`) {
				t.Errorf("%q: exit %d\n%s%s", args, code, out, errs)
			}
		}
	}
	check(nil, commands())
}

func TestAbsentNodeIsOneWithARemedy(t *testing.T) {
	t.Setenv("SPLICED_ADMIN_SOCKET", "/nonexistent/admin.sock")
	for _, args := range [][]string{{"ls"}, {"inspect", "ab"}, {"stats", "--json"}} {
		code, out, errs := ctl(t, args...)
		if code != cli.ExitFailed || out != "" || !strings.Contains(errs, "Is spliced running?") {
			t.Errorf("%q: exit %d, out %q, err %q", args, code, out, errs)
		}
	}
}

func TestFailuresHaveTheRemedyThatFits(t *testing.T) {
	n := newNode(t)
	dir := t.TempDir()
	empty, token := filepath.Join(dir, "empty"), filepath.Join(dir, "token")
	must(t, os.WriteFile(empty, []byte("\n"), 0o600))
	must(t, os.WriteFile(token, []byte("wrong\n"), 0o600))
	refusing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprint(w, `{"status":401,"code":"unauthorized","detail":"this needs a token"}`)
	}))
	defer refusing.Close()
	slow := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer slow.Close()
	for _, r := range []struct {
		args string
		exit int
		want string // all of the error but the command's name
	}{
		{"--admin " + dir + "/none.sock", cli.ExitFailed, dir + "/none.sock: no such socket\nIs spliced running?"},
		{"--admin none.sock", cli.ExitFailed, "none.sock: no such socket\nIs spliced running?"},
		{"--admin 127.0.0.1:19400", cli.ExitUsage, "there is no socket 127.0.0.1:19400 here; for TCP write http://127.0.0.1:19400\nusage:"},
		{"--admin ftp://x", cli.ExitUsage, `"ftp://x" is neither`},
		{"--admin " + n.url + "/foo", cli.ExitFailed, "GET /api/v1/segments: 404 not_found: no such path: /foo/api/v1/segments\nThe address has a path: leave it out.\n"},
		{"--admin " + refusing.URL, cli.ExitFailed, "GET /api/v1/segments: 401 unauthorized: this needs a token\nGive one with --token-file"},
		{"--admin " + refusing.URL + " --token-file " + token, cli.ExitFailed, "GET /api/v1/segments: 401 unauthorized: this needs a token\nThe token given is not the node's"},
		{"--admin " + refusing.URL + " --token-file " + empty, cli.ExitFailed, "token: " + empty + " is empty\n"},
		{"--timeout 1ms --admin " + slow.URL, cli.ExitFailed, "no answer from " + slow.Listener.Addr().String() + " within 1ms\n--timeout sets"},
	} {
		code, out, errs := ctl(t, append([]string{"ls"}, strings.Fields(r.args)...)...)
		if code != r.exit || out != "" || !strings.HasPrefix(errs, "splicectl ls: "+r.want) {
			t.Errorf("%s: exit %d\n%s%s", r.args, code, out, errs)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	var errs bytes.Buffer
	if code := run(ended, []string{"ls", "--admin", n.url}, io.Discard, &errs); code != cli.ExitFailed || errs.String() != "splicectl ls: interrupted\n" {
		t.Errorf("exit %d, %s", code, &errs)
	}
	denied := fmt.Errorf("token: %w", os.ErrPermission)
	if text := explain(denied); text != denied.Error() {
		t.Errorf("a file that cannot be read: %s", text)
	}
}

func TestVersionJSONIsOneDocument(t *testing.T) {
	code, out, _ := ctl(t, "version", "--json")
	var v map[string]string
	if err := json.Unmarshal([]byte(out), &v); code != cli.ExitOK || err != nil || v["go"] == "" || v["version"] == "" {
		t.Errorf("exit %d, %v: %s", code, err, out)
	}
}
