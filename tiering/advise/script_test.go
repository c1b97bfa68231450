package advise

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/policy/goldentest"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// TestAdviceScripts runs testdata: each line is a command, and below it
// stands what it has to answer.
//
//	prompt = names with lengths, "sys:1000 question:50"; the same name has the same tokens
//	ask, serve TENANT: prompt [| out=N block=N max=N prefix=N tier=N buffer=N seam=N cuts=A,B segs=BEGIN+TOKENS:STATUS,…]
//	measure TENANT [TIMES]: BEGIN-END=MS …
//	work: what advice leaves to the worker is done
//	share TENANT: what comes back of what was advised
//	decisions: N of them, the newest first
//	stats
func TestAdviceScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := runAdvice(t, string(raw))
			goldentest.File(t, file, []byte(got), "the script prints something else; run with -update and review the diff\n"+got)
		})
	}
}

// runAdvice answers a script with fresh answers: lines that are indented are
// those of last time.
func runAdvice(t *testing.T, script string) string {
	b := newBench(t, func(o *Options) { o.Nodes, o.Bytes = 1<<10, 1<<20 })
	b.store.limit.MaxBytes = 32 << 20
	var out strings.Builder
	for line := range strings.Lines(script) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "  ") {
			continue
		}
		out.WriteString(line + "\n")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		command, rest, _ := strings.Cut(line, ":")
		for answer := range strings.Lines(adviceCommand(b, strings.Fields(command), strings.TrimSpace(rest))) {
			out.WriteString("  " + answer)
		}
	}
	return out.String()
}

func adviceCommand(b *bench, command []string, rest string) string {
	b.Helper()
	tenant := tenantA
	if len(command) > 1 && command[1] == "b" {
		tenant = tenantB
	}
	key := scopeKey{b.id, tenant}
	switch command[0] {
	case "ask", "serve":
		q := adviceQuery(b, rest)
		q.Tenant, q.Record = tenant, command[0] == "serve"
		var a Advice
		if err := b.Advise(q, &a); err != nil {
			return err.Error() + "\n"
		}
		return adviceText(&a)
	case "measure":
		q := &Query{Profile: b.id, Tenant: tenant, Tokens: []uint32{1}}
		for _, f := range strings.Fields(rest) {
			var m cost.Sample
			if _, err := fmt.Sscanf(f, "%d-%d=%f", &m.Begin, &m.End, &m.Millis); err != nil {
				b.Fatalf("%q: %v", f, err)
			}
			q.Samples = append(q.Samples, m)
		}
		if len(command) > 2 {
			times, _ := strconv.Atoi(command[2])
			q.Samples = slices.Repeat(q.Samples, times)
		}
		b.must(b.Advise(q, &Advice{}))
		b.Work(b.ctx)
		fit := b.store.learned[b.id].Model().Prefill()
		return fmt.Sprintf("%.2f ms and %.4f ms a token\n", fit.Fixed, fit.PerToken)
	case "work":
		before := b.Stats()
		b.Work(b.ctx)
		after := b.Stats()
		return fmt.Sprintf("%d solved, %d nodes dropped, %d left\n", after.Solved-before.Solved, after.Dropped-before.Dropped, after.Nodes)
	case "share":
		var out strings.Builder
		names := [origins]string{"", "branch", "prompt", "answer", "boundary", "placed", "segment"}
		for o := originBranch; o < origins; o++ {
			if r := &b.mu.scopes[key].returns[o]; r.ended > 0 {
				fmt.Fprintf(&out, "%s: %.0f of %.0f, expected %.2f\n", names[o], r.back, r.ended, r.share(o))
			}
		}
		return out.String()
	case "decisions":
		var out strings.Builder
		n, _ := strconv.Atoi(rest)
		for d := range b.log.Last() {
			if n--; n < 0 {
				break
			}
			what := "segment"
			if d.Name.Kind != 0 {
				what = "checkpoint"
			}
			fmt.Fprintf(&out, "%s [%d, %d) %s: %s, %.2f ms/MiB, %d bytes\n", what, d.Begin, d.End, d.What, d.Why, d.Value, d.Bytes)
		}
		return out.String()
	case "stats":
		var out strings.Builder
		s := b.Stats()
		s.Each(func(name string, value uint64) {
			if value > 0 && name != "advice_bytes" {
				fmt.Fprintf(&out, "%s %d\n", name, value)
			}
		})
		return out.String()
	}
	b.Fatalf("no command %q", command)
	return ""
}

func adviceText(a *Advice) string {
	var out strings.Builder
	fmt.Fprintf(&out, "seen %d, %s", a.SeenTokens, a.Choice.Best)
	for way := cost.WayRecompute; way <= cost.Ways; way++ {
		if ms := a.Choice.Of(way); ms < 1e9 {
			fmt.Fprintf(&out, ", %s %.1f ms", way, ms)
		}
	}
	out.WriteString("\n")
	verdict := map[bool]string{true: "save", false: "leave"}
	for _, p := range a.Positions {
		fmt.Fprintf(&out, "%s %d: %s, %s, %.2f ms/MiB\n", verdict[p.Admit], p.Tokens, p.Why, p.Reason.Code(), p.Value)
	}
	for i, g := range a.Segments {
		fmt.Fprintf(&out, "segment %d: %s, %s, %.2f ms/MiB\n", i, map[bool]string{true: "publish", false: "leave"}[g.Admit], g.Reason.Code(), g.Value)
	}
	return out.String()
}

func adviceQuery(b *bench, text string) *Query {
	b.Helper()
	prompt, settings, _ := strings.Cut(text, "|")
	q := &Query{Profile: b.id, Tokens: promptOf(b, prompt)}
	for _, f := range strings.Fields(settings) {
		name, value, _ := strings.Cut(f, "=")
		n, _ := strconv.Atoi(value)
		switch name {
		case "out":
			q.Output = n
		case "block":
			q.BlockTokens = n
		case "max":
			q.MaxCheckpoints = n
		case "prefix":
			q.PrefixTokens = n
		case "tier":
			q.PrefixPlace = tier.Place(n)
		case "buffer":
			q.BufferTokens = n
		case "seam":
			q.SeamTokens = n
		case "cuts":
			for c := range strings.SplitSeq(value, ",") {
				n, _ := strconv.Atoi(c)
				q.Cuts = append(q.Cuts, uint32(n))
			}
		case "segs":
			for g := range strings.SplitSeq(value, ",") {
				var s Segment
				var status int
				if _, err := fmt.Sscanf(g, "%d+%d:%d", &s.Begin, &s.Tokens, &status); err != nil {
					b.Fatalf("%q: %v", g, err)
				}
				s.Status = tier.Status(status)
				q.Segments = append(q.Segments, s)
			}
		default:
			b.Fatalf("no setting %q", f)
		}
	}
	return q
}
