package checkpoint

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite testdata/*.txt")

// script is a planner that reads commands.
type script struct{ planner *Planner }

// TestScripts runs each line that begins with > and compares what it says with
// the lines below it.
func TestScripts(t *testing.T) {
	const file = "testdata/place.txt"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var s script
	var got strings.Builder
	for line := range strings.Lines(string(text)) {
		switch {
		case strings.HasPrefix(line, "> "):
			got.WriteString(line + s.run(t, strings.Fields(line)[1:]))
		case line == "\n" || strings.HasPrefix(line, "#"):
			got.WriteString(line)
		}
	}
	if *update {
		if err := os.WriteFile(file, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if got.String() != string(text) {
		t.Errorf("%s: says now\n%s", file, got.String())
	}
}

func (s *script) run(t *testing.T, command []string) string {
	t.Helper()
	a := arguments(t, command[1:])
	switch command[0] {
	case "planner":
		s.planner = New(Options{Budget: a.number("budget"), BlockTokens: a.number("block")})
	case "request":
		for range max(1, a.number("times")) {
			s.planner.Request(Hit{
				Depth: a.number("depth"), Length: a.number("length"), Branch: a.number("branch"), Cut: a.number("cut"), Cuts: a.number("cuts"),
			})
		}
	case "due":
		return fmt.Sprintln(s.planner.Due())
	case "solve":
		s.planner.Install(s.planner.Problem().Solve())
	case "rule":
		return fmt.Sprintln(s.planner.Rule(s.planner.options.Budget))
	case "place":
		var out strings.Builder
		for _, p := range s.planner.Place(Prompt{
			Tokens: a.number("tokens"), From: a.number("from"), Branch: a.number("branch"), Cuts: a.numbers("cuts"), Budget: a.number("budget"),
		}) {
			fmt.Fprintln(&out, p.Tokens, p.Why)
		}
		return out.String()
	default:
		t.Fatalf("no command %q", command[0])
	}
	return ""
}

// values are the arguments of a command, name=value.
type values map[string]string

func arguments(t *testing.T, words []string) values {
	t.Helper()
	a := values{}
	for _, w := range words {
		name, value, ok := strings.Cut(w, "=")
		if !ok {
			t.Fatalf("argument %q, want name=value", w)
		}
		a[name] = value
	}
	return a
}

func (a values) number(name string) int {
	n, _ := strconv.Atoi(a[name]) // 0 where it is not given
	return n
}

func (a values) numbers(name string) (all []int) {
	for _, word := range strings.Split(a[name], ",") {
		if n, err := strconv.Atoi(word); err == nil {
			all = append(all, n)
		}
	}
	return all
}
