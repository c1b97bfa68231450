package cost

import (
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite testdata/*.txt")

// TestScripts runs each line that begins with > and compares what it says with
// the lines below it.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
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
		})
	}
}

// script is a model that reads commands.
type script struct{ model *Model }

var jobNames = []string{
	JobLoadHBM: "load-hbm", JobLoadDRAM: "load-dram", JobLoadDisk: "load-disk", JobLoadPeer: "load-peer",
	JobCompose: "compose", JobRotate: "rotate", JobReplay: "replay", JobPublish: "publish",
}

func (s *script) run(t *testing.T, command []string) string {
	t.Helper()
	a := values{}
	for _, word := range command[1:] {
		name, value, _ := strings.Cut(word, "=")
		a[name] = value
	}
	switch command[0] {
	case "model":
		s.model = New(Options{
			Shape:   Shape{StateBytes: int64(a.number("state")), KVBytes: int64(a.number("row"))},
			Prefill: Prefill{Fixed: a.number("fixed"), PerToken: a.number("token"), PerTokenSquared: a.number("squared")},
		})
	case "link":
		job := slices.Index(jobNames, command[1])
		if job < 0 {
			t.Fatalf("no job %q", command[1])
		}
		s.model.SetLink(Job(job), Bandwidth(a.number("fixed"), 1e9*a.number("gbps")))
	case "admit":
		h := s.held(a)
		h.In = TierDRAM
		_, why := s.model.Admit(Candidate{
			Held: h, Asked: a["asked"] != "", Seen: int(a.number("seen")), Returns: a.number("returns"),
			Floor: a.number("floor"), MaxBytes: int64(a.number("max")),
		})
		verdict := "refused"
		if why.Admitted() {
			verdict = "admitted"
		}
		return fmt.Sprintf("%s: %s\n", verdict, why)
	case "saved":
		h := s.held(a)
		h.In, h.Below = tier(t, a["in"]), tier(t, a["below"])
		return fmt.Sprintf("%.1f ms, %.2f ms per MiB\n", s.model.Saved(h), s.model.Density(h))
	case "choose":
		return s.choose(t, a)
	default:
		t.Fatalf("no command %q", command[0])
	}
	return ""
}

// held is a checkpoint with the rows that it adds.
func (s *script) held(a values) Held {
	begin, end := int(a.number("begin")), int(a.number("end"))
	return Held{Begin: begin, End: end, Bytes: s.model.Shape.PrefixBytes(end-begin, 1)}
}

func (s *script) choose(t *testing.T, a values) string {
	t.Helper()
	shape := s.model.Shape
	r := Request{Tokens: int(a.number("tokens")), ExactOnly: a["exact"] != ""}
	if n, where, ok := strings.Cut(a["prefix"], "@"); ok {
		r.Prefix = Prefix{Tokens: integer(t, n), Bytes: shape.PrefixBytes(integer(t, n), 1), Tier: tier(t, where)}
	}
	if n, where, ok := strings.Cut(a["buffer"], "@"); ok {
		r.Buffer = Buffer{
			Tokens: integer(t, n), Bytes: shape.PrefixBytes(integer(t, n), 1), RebuildBytes: shape.CheckpointBytes(), Tier: tier(t, where),
		}
	}
	for _, word := range strings.Split(a["segments"], ",") {
		span, where, ok := strings.Cut(word, "@")
		begin, tokens, _ := strings.Cut(span, "+")
		if ok {
			r.Segments = append(r.Segments, Segment{
				Begin: integer(t, begin), Tokens: integer(t, tokens), SeamTokens: int(a.number("seam")),
				StateBytes: shape.SegmentTotalBytes(0), RowBytes: shape.RowBytes(integer(t, tokens)), Tier: tier(t, where),
			})
		}
	}
	c := s.model.Choose(r)
	var out strings.Builder
	fmt.Fprintf(&out, "%s:", c.Best)
	for w := WayRecompute; w <= Ways; w++ {
		if ms := c.Of(w); math.IsInf(ms, 1) {
			fmt.Fprintf(&out, "  %s -", w)
		} else {
			fmt.Fprintf(&out, "  %s %.1f ms", w, ms)
		}
	}
	return out.String() + "\n"
}

// values are the arguments of a command, name=value.
type values map[string]string

func (a values) number(name string) float64 {
	v, _ := strconv.ParseFloat(a[name], 64) // 0 where it is not given
	return v
}

func integer(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return n
}

func tier(t *testing.T, name string) Tier {
	t.Helper()
	for at := TierNone; at <= TierPeer; at++ {
		if at.String() == name || at == TierNone && name == "" {
			return at
		}
	}
	t.Fatalf("no tier %q", name)
	return TierNone
}
