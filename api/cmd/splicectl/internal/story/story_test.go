package story

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spliced-kv/spliced/api"
)

func TestAPromptIsDrawnByWhereItsTokensCameFrom(t *testing.T) {
	spans := []api.Span{
		{Begin: 0, End: 400, From: api.FromPrefix}, {Begin: 400, End: 402, From: api.FromComputed},
		{Begin: 402, End: 800, From: api.FromSegment}, {Begin: 800, End: 900, From: api.FromComputed}, {Begin: 900, End: 1000, From: api.FromEngine},
	}
	got := Draw(1000, spans, 20, false)
	want := "▒▒▒▒▒▒▒▒████████··==\n0               1000\n" +
		"= 100 tokens in the engine's own cache (10.0 %)\n▒ 400 tokens a saved prefix (40.0 %)\n█ 398 tokens segments placed (39.8 %)\n· 102 tokens computed (10.2 %)\n"
	if got != want {
		t.Errorf("\n%s", got)
	}
	if coloured := Draw(1000, spans, 20, true); !strings.HasPrefix(coloured, "\x1b[34m▒▒▒▒▒▒▒▒\x1b[0m\x1b[32m█") {
		t.Errorf("%q", coloured)
	}
}

func TestASeamTooNarrowForAColumnIsSeen(t *testing.T) {
	spans := []api.Span{{Begin: 0, End: 5000, From: api.FromSegment}, {Begin: 5000, End: 5002, From: api.FromComputed, Reason: "seam"}, {Begin: 5002, End: 10000, From: api.FromSegment}}
	line, rest, _ := strings.Cut(Draw(10000, spans, 80, false), "\n")
	if strings.Count(line, "+") != 1 || utf8.RuneCountInString(line) != 80 || !strings.Contains(rest, "+ 2 tokens computed at joins") {
		t.Errorf("%s\n%s", line, rest)
	}
	// Wide ones are all seen.
	spans = nil
	for at := 0; at < 1000; at += 100 {
		spans = append(spans, api.Span{Begin: at, End: at + 90, From: api.FromSegment}, api.Span{Begin: at + 90, End: at + 100, From: api.FromComputed, Reason: "seam"})
	}
	if line, _, _ := strings.Cut(Draw(1000, spans, 50, false), "\n"); line != strings.Repeat("████+", 10) {
		t.Errorf("%s", line)
	}
}

func TestNothingThatANodeTellsBreaksADrawing(t *testing.T) {
	for _, r := range []struct {
		prompt int
		spans  []api.Span
	}{
		{0, nil}, {-5, nil}, {1, []api.Span{{Begin: 0, End: 1, From: "hyperspace"}}}, {7, nil}, {3, []api.Span{{Begin: -9, End: 99, From: api.FromPrefix}}},
		{100, []api.Span{{Begin: 50, End: 20, From: api.FromSegment}}}, {1 << 30, []api.Span{{Begin: 0, End: 1 << 30, From: api.FromEngine}}},
	} {
		for _, width := range []int{-1, 1, 20, 79, 100000} {
			line, _, _ := strings.Cut(Draw(r.prompt, r.spans, width, false), "\n")
			if n := utf8.RuneCountInString(line); n > 400 || n == 0 {
				t.Errorf("%+v on %d: %q", r, width, line)
			}
		}
	}
}
