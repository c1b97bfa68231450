package schedule

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/policy/cost"
)

var update = flag.Bool("update", false, "rewrite testdata/*.txt")

// TestScripts runs each line that begins with > and compares what it says with
// the lines below it.
func TestScripts(t *testing.T) {
	const file = "testdata/plan.txt"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var pool Pool
	var got strings.Builder
	for line := range strings.Lines(string(text)) {
		switch {
		case strings.HasPrefix(line, "> "):
			got.WriteString(line + run(t, &pool, strings.Fields(line)[1:]))
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

func run(t *testing.T, pool *Pool, command []string) string {
	t.Helper()
	a := arguments(t, command[1:])
	switch command[0] {
	case "lpt", "whole":
		sizes, workers := a.sizes("sizes"), int(a.number("workers"))
		plan := LPT(sizes, workers)
		if command[0] == "whole" {
			plan, _ = Whole(sizes, workers)
		}
		return fmt.Sprintln("makespan", plan.Makespan(), "bound", LowerBound(sizes, workers), "workers", plan.Worker)
	case "pool":
		*pool = Pool{
			Workers: int(a.number("workers")),
			Prefill: cost.Prefill{Fixed: a.number("fixed"), PerToken: a.number("token"), PerTokenSquared: a.number("squared")},
			Cutting: Cutting{HandOver: a.number("handover"), MinTokens: int(a.number("min"))}, Comm: a.number("comm"), Combine: a.number("combine"),
		}
	case "plan":
		return describe(pool, command[1], a.sizes("tokens"))
	default:
		t.Fatalf("no command %q", command[0])
	}
	return ""
}

func describe(pool *Pool, how string, sizes []int64) string {
	tokens := make([]int, len(sizes))
	for i, n := range sizes {
		tokens[i] = int(n)
	}
	plan := pool.Best(tokens)
	if how == "lpt" {
		plan = pool.LPT(tokens)
	}
	var out strings.Builder
	fmt.Fprintf(&out, "first token after %.1f ms, dispatch %.1f, bound %.1f, cuts %d\n", plan.TTFT, plan.Makespan, plan.Bound, plan.Cuts)
	for w, list := range plan.Workers {
		fmt.Fprintf(&out, "worker %d:", w)
		for _, p := range list {
			fmt.Fprintf(&out, "  %d[%d,%d) %.0f-%.0f", p.Segment, p.Begin, p.End, p.Start, p.Finish)
			if p.After >= 0 {
				fmt.Fprintf(&out, " after worker %d", p.After)
			}
		}
		out.WriteString("\n")
	}
	return out.String()
}

// values are the arguments of a command, name=value.
type values map[string]string

func arguments(t *testing.T, words []string) values {
	t.Helper()
	a := values{}
	for _, w := range words {
		if name, value, ok := strings.Cut(w, "="); ok {
			a[name] = value
		}
	}
	return a
}

func (a values) number(name string) float64 {
	v, _ := strconv.ParseFloat(a[name], 64) // 0 where it is not given
	return v
}

// sizes reads 5,5,3 or 2400x11.
func (a values) sizes(name string) (all []int64) {
	for _, word := range strings.Split(a[name], ",") {
		size, times, _ := strings.Cut(word, "x")
		v, _ := strconv.ParseInt(size, 10, 64)
		n, err := strconv.Atoi(times)
		if err != nil {
			n = 1
		}
		all = append(all, slices.Repeat([]int64{v}, n)...)
	}
	return all
}
