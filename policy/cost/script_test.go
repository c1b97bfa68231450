package cost

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/policy/scripttest"
)

// TestScripts runs models that read commands.
func TestScripts(t *testing.T) {
	scripttest.Run(t, func(t *testing.T) func([]string, scripttest.Values) string {
		s := script{T: t}
		return s.run
	})
}

type script struct {
	*testing.T
	model *Model
}

var jobNames = []string{
	JobLoadHBM: "load-hbm", JobLoadDRAM: "load-dram", JobLoadDisk: "load-disk", JobLoadPeer: "load-peer",
	JobCompose: "compose", JobRotate: "rotate", JobReplay: "replay", JobPublish: "publish",
}

func (s *script) run(command []string, a scripttest.Values) string {
	switch command[0] {
	case "model":
		s.model = New(Options{
			Shape:   Shape{StateBytes: int64(a.Number("state")), KVBytes: int64(a.Number("row"))},
			Prefill: Prefill{Fixed: a.Number("fixed"), PerToken: a.Number("token"), PerTokenSquared: a.Number("squared")},
		})
	case "link":
		job := slices.Index(jobNames, command[1])
		if job < 0 {
			s.Fatalf("no job %q", command[1])
		}
		s.model.SetLink(Job(job), Bandwidth(a.Number("fixed"), 1e9*a.Number("gbps")))
	case "task":
		task := map[string]Task{"walk": TaskWalk, "capture": TaskCapture}[command[1]]
		s.model.SetTask(task, Prefill{Fixed: a.Number("fixed"), PerToken: a.Number("token")})
	case "admit":
		h := s.held(a)
		h.In = TierDRAM
		_, why := s.model.Admit(Candidate{
			Held: h, Asked: a["asked"] != "", Seen: a.Int("seen"), Returns: a.Number("returns"),
			Floor: a.Number("floor"), MaxBytes: int64(a.Number("max")),
		})
		verdict := "refused"
		if why.Admitted() {
			verdict = "admitted"
		}
		return fmt.Sprintf("%s: %s\n", verdict, why)
	case "saved":
		h := s.held(a)
		h.In, h.Below = tier(s.T, a["in"]), tier(s.T, a["below"])
		return fmt.Sprintf("%.1f ms, %.2f ms per MiB\n", s.model.Saved(h), s.model.Density(h))
	case "choose":
		return s.choose(a)
	default:
		s.Fatalf("no command %q", command[0])
	}
	return ""
}

// held is a checkpoint with the rows that it adds.
func (s *script) held(a scripttest.Values) Held {
	begin, end := a.Int("begin"), a.Int("end")
	return Held{Begin: begin, End: end, Bytes: s.model.Shape.PrefixBytes(end-begin, 1)}
}

func (s *script) choose(a scripttest.Values) string {
	shape := s.model.Shape
	r := Request{Tokens: a.Int("tokens"), ExactOnly: a["exact"] != ""}
	if n, where, ok := strings.Cut(a["prefix"], "@"); ok {
		r.Prefix = Prefix{Tokens: integer(s.T, n), Bytes: shape.PrefixBytes(integer(s.T, n), 1), Tier: tier(s.T, where)}
	}
	if n, where, ok := strings.Cut(a["buffer"], "@"); ok {
		r.Buffer = Buffer{
			Tokens: integer(s.T, n), Bytes: shape.PrefixBytes(integer(s.T, n), 1), RebuildBytes: shape.CheckpointBytes(), Tier: tier(s.T, where),
		}
	}
	for _, word := range strings.Split(a["segments"], ",") {
		span, where, ok := strings.Cut(word, "@")
		begin, tokens, _ := strings.Cut(span, "+")
		if ok {
			g := Segment{
				Begin: integer(s.T, begin), Tokens: integer(s.T, tokens), SeamTokens: a.Int("seam"),
				StateBytes: shape.SegmentTotalBytes(0), RowBytes: shape.RowBytes(integer(s.T, tokens)), Capture: where == "capture",
			}
			if !g.Capture {
				g.Tier = tier(s.T, where)
			}
			r.Segments = append(r.Segments, g)
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
