package main

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// full are results of which every attack is held off.
func full() results {
	r := results{}
	for _, a := range attacks {
		at := r.of(a.pkg, a.test)
		at.outcome = held
		if a.says == "" {
			at.lines = []string{a.test + " | tried: a | attacker got: b | others felt: c"}
		}
	}
	return r
}

func TestWhatMakesTheSuiteFail(t *testing.T) {
	const h1, low = "TestHostileSparseMemoryDoesNotTakeAllAddresses", "TestHostileSmallMachineIsEnough"
	for name, c := range map[string]struct {
		change func(r results)
		want   string // in what is bad; empty = nothing is
	}{
		"nothing":                     {func(results) {}, ""},
		"an attack succeeded":         {func(r results) { r.of(hostile, h1).outcome = failed }, h1 + " failed"},
		"one that must run, skipped":  {func(r results) { r.of(hostile, h1).outcome = skipped }, h1 + " was skipped"},
		"a part of it skipped":        {func(r results) { r.of(hostile, h1).lines = append(r.of(hostile, h1).lines, "") }, h1 + " was skipped"},
		"one that may be skipped":     {func(r results) { r.of(hostile, low).outcome = skipped }, ""},
		"one did not run":             {func(r results) { delete(r, [2]string{hostile, low}) }, low + " did not run"},
		"one without its line":        {func(r results) { r.of(hostile, h1).lines = nil }, h1 + " printed no line"},
		"the only one of its name":    {func(r results) { delete(r, [2]string{hostile, h1}) }, "H1: no attack of that name"},
		"one that is not in a row":    {func(r results) { r.of(hostile, "TestHostileNew").outcome = held }, "TestHostileNew is in no row"},
		"Python without environment":  {func(r results) { r.of(python, "test_client_trust.py").outcome = skipped }, ""},
		"Python's clients were taken": {func(r results) { r.of(python, "test_client_trust.py").outcome = failed }, "test_client_trust.py failed"},
	} {
		r := full()
		c.change(r)
		_, bad := judge(attacks, r)
		if text := strings.Join(bad, "\n"); c.want == "" && text != "" || !strings.Contains(text, c.want) {
			t.Errorf("%s: %q, want %q", name, text, c.want)
		}
	}
}

func TestEveryNameThatMustRunHasATest(t *testing.T) {
	for _, id := range mustRun {
		if !slices.ContainsFunc(attacks, func(a attack) bool { return a.id == id && a.pkg == hostile }) {
			t.Errorf("%s has no attack on the daemon itself", id)
		}
	}
}

func TestEventsBecomeRows(t *testing.T) {
	const name = "TestHostileSmallMachineIsEnough"
	var events strings.Builder
	say := func(action, test, output string) {
		fmt.Fprintf(&events, `{"Action":%q,"Package":"%s%s","Test":%q,"Output":%q}`+"\n", action, module, hostile, test, output)
	}
	say("output", name+"/a", "    x_test.go:3: HOSTILE "+name+"/a | tried: one | attacker got: a | b | others felt: 2x\n")
	say("pass", name+"/a", "")
	say("output", name, "    x_test.go:9: SKIP: no cgroup here\n")
	say("skip", name, "")
	r := results{}
	if err := r.read(strings.NewReader(events.String())); err != nil {
		t.Fatal(err)
	}
	at := r.of(hostile, name)
	if at.outcome != skipped || len(at.lines) != 2 {
		t.Fatalf("%+v", at)
	}
	if got := parse(attack{id: "low", test: name}, held, at.lines[0]); got.tried != "one" || got.got != "a" || got.felt != "2x" {
		t.Errorf("%+v", got)
	}
	at.lines = at.lines[1:]
	rows, _ := judge([]attack{{"low", hostile, name, ""}}, r)
	var text bytes.Buffer
	if err := print(&text, rows); err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(text.String(), "1 attacks, 0 held, 1 skipped: "+name+": no cgroup here\n") {
		t.Errorf("%s", &text)
	}
	if err := r.read(strings.NewReader("no event\n")); err == nil {
		t.Error("what is no event was read")
	}
}
