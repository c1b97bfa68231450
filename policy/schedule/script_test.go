package schedule

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/policy/scripttest"
)

// TestScripts runs commands on a pool of workers.
func TestScripts(t *testing.T) {
	scripttest.Run(t, func(t *testing.T) func([]string, scripttest.Values) string {
		var pool Pool
		return func(command []string, a scripttest.Values) string { return run(t, &pool, command, a) }
	})
}

func run(t *testing.T, pool *Pool, command []string, a scripttest.Values) string {
	t.Helper()
	switch command[0] {
	case "lpt", "whole":
		list, workers := sizes(a, "sizes"), a.Int("workers")
		plan := LPT(list, workers)
		if command[0] == "whole" {
			plan, _ = Whole(list, workers)
		}
		return fmt.Sprintln("makespan", plan.Makespan(), "bound", LowerBound(list, workers), "workers", plan.Worker)
	case "pool":
		*pool = Pool{
			Workers: a.Int("workers"),
			Prefill: cost.Prefill{Fixed: a.Number("fixed"), PerToken: a.Number("token"), PerTokenSquared: a.Number("squared")},
			Cutting: Cutting{HandOver: a.Number("handover"), MinTokens: a.Int("min")}, Comm: a.Number("comm"), Combine: a.Number("combine"),
		}
	case "plan":
		return describe(pool, command[1], sizes(a, "tokens"))
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

// sizes reads 5,5,3 or 2400x11.
func sizes(a scripttest.Values, name string) (all []int64) {
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
