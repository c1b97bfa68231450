package main

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

func cli(t *testing.T, args ...string) (int, string, string) {
	t.Helper()
	var out, errs bytes.Buffer
	code := run(t.Context(), args, &out, &errs)
	return code, out.String(), errs.String()
}

func TestEveryCommandHasHelpWithExamplesAndJSON(t *testing.T) {
	_, list, _ := cli(t, "-h")
	for _, c := range commands() {
		if c.hidden {
			continue
		}
		code, out, errs := cli(t, c.name, "-h")
		if code != exitOK || errs != "" {
			t.Errorf("%s -h: exit %d, %s", c.name, code, errs)
		}
		for _, want := range []string{c.summary, "usage: splicectl " + c.name, "-json", "examples:\n  splicectl " + c.name} {
			if !strings.Contains(out, want) {
				t.Errorf("%s -h lacks %q:\n%s", c.name, want, out)
			}
		}
		if !strings.Contains(list, c.summary) {
			t.Errorf("splicectl -h lacks %s", c.name)
		}
	}
}

func TestWrongUsageIsTwoAndSaysWhatIsRight(t *testing.T) {
	t.Setenv("SPLICED_ADMIN_SOCKET", "/nonexistent/admin.sock")
	for _, args := range [][]string{
		{}, {"frobnicate"}, {"ls", "-nope"}, {"ls", "a", "b"}, {"ls", "cats"}, {"ls", "-limit", "-1"},
		{"inspect"}, {"inspect", "a", "b"}, {"inspect", "decisions", "-limit", "0"}, {"stats", "x"}, {"version", "x"},
		{"disk"}, {"disk", "check"}, {"disk", "mend", "/x"}, {"disk", "repair", "-deep", "/x"}, {"disk", "check", "-long", "/x"}, {"torture", "x"}, {"torture", "-loops", "-1"}, {"torture", "-power", "-2"}, {"torture", "-segments", "0"}, {"torture", "-soak", "1ms"}, {"torture", "-soak", "1m", "-load", "2"}, {"torture", "-soak", "1m", "-every", "1ms"}, {"torture", "-soak", "1m", "-bound", "0"},
	} {
		code, out, errs := cli(t, args...)
		if code != exitUsage || out != "" || !strings.Contains(errs, "splicectl") {
			t.Errorf("%q: exit %d, out %q, err %q", args, code, out, errs)
		}
	}
}

func TestAbsentNodeIsOneWithARemedy(t *testing.T) {
	t.Setenv("SPLICED_ADMIN_SOCKET", "/nonexistent/admin.sock")
	for _, args := range [][]string{{"ls"}, {"inspect", "ab"}, {"stats", "--json"}} {
		code, out, errs := cli(t, args...)
		if code != exitFailed || out != "" || !strings.Contains(errs, "Is spliced running?") {
			t.Errorf("%q: exit %d, out %q, err %q", args, code, out, errs)
		}
	}
}

func TestFlagsMayStandAnywhere(t *testing.T) {
	var got []string
	for _, args := range [][]string{{"-x", "1", "a", "b"}, {"a", "-x", "1", "b"}, {"a", "b", "-x=1"}} {
		fs, x := testFlags()
		pos, err := parse(fs, args)
		if err != nil || *x != 1 || !slices.Equal(pos, []string{"a", "b"}) {
			t.Errorf("%q: %q x=%d %v", args, pos, *x, err)
		}
	}
	fs, x := testFlags()
	got, err := parse(fs, []string{"a", "--", "-x", "1"})
	if err != nil || *x != 0 || !slices.Equal(got, []string{"a", "-x", "1"}) {
		t.Errorf("after --: %q x=%d %v", got, *x, err)
	}
}

func TestVersionJSONIsOneDocument(t *testing.T) {
	code, out, _ := cli(t, "version", "--json")
	var v map[string]string
	if err := json.Unmarshal([]byte(out), &v); code != exitOK || err != nil || v["go"] == "" || v["version"] == "" {
		t.Errorf("exit %d, %v: %s", code, err, out)
	}
}
