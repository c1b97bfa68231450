package ragdemo

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// Print writes the report as text, at most 110 columns wide except for its last line.
func (r *Report) Print(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%d RAG requests over %d passages: %s\n", r.Requests, r.Passages, r.Source)
	fmt.Fprintf(&b, "model %s\nweights %s\n", r.Model, r.Weights)
	fmt.Fprintf(&b, "seam: %d tokens on either side of a join are recomputed\n", r.Seam)
	fmt.Fprintf(&b, "cold: %s;\n      %s\n", r.Cold, r.Split)
	r.printAnswers(&b)
	r.table(&b, "warm", func(w *Way) *Group { return &w.Warm })
	r.table(&b, "cold", func(w *Way) *Group { return &w.Cold })
	fmt.Fprintf(&b, "\n%-34s", "held by the daemon at the end, MiB")
	for i := range r.Ways[:3] {
		fmt.Fprintf(&b, "%16.1f", float64(r.Ways[i].HeldBytes)/(1<<20))
	}
	b.WriteByte('\n')
	r.Restart.print(&b)
	if len(r.Answers) == 0 {
		b.WriteString("\n* with random weights no measure of quality\n")
	}
	fmt.Fprintf(&b, "\n%s\n", r.Sentence)
	_, err := io.WriteString(w, b.String())
	return err
}

// print writes what survived the kill of the daemon, and the time until it answered again.
func (r *Restart) print(b *strings.Builder) {
	if r == nil {
		return
	}
	mib := func(n int64) float64 { return float64(n) / (1 << 20) }
	fmt.Fprintf(b, "\nafter request %d the daemon was killed with SIGKILL and started again on its disk directory:\n", r.AfterRequest)
	fmt.Fprintf(b, "  %d of %d segments came back (%.1f of %.1f MiB), and %d of %d checkpoints (%.1f of %.1f MiB)\n",
		r.Back.Segments, r.Published.Segments, mib(r.Back.SegmentBytes), mib(r.Published.SegmentBytes),
		r.Back.Checkpoints, r.Published.Checkpoints, mib(r.Back.CheckpointBytes), mib(r.Published.CheckpointBytes))
	fmt.Fprintf(b, "  %.0f ms from the kill until the engine was attached again\n", r.BackMs)
	fmt.Fprintf(b, "  %d of %d requests served before and after it have the same answer, bit for bit\n", r.Same, r.Replayed)
	fmt.Fprintf(b, "  segments hit before the kill: %s\n  in these %d requests after it: %s\n  after it to the end of the run: %s\n",
		r.Before, r.Replayed, r.Replay, r.After)
}

// String returns the hits for display.
func (h Hits) String() string { return fmt.Sprintf("%d in memory, %d on disk", h.Memory, h.Disk) }

// row is one line of a table. added means that the line has a value for naive addition, which
// has no times.
type row struct {
	name  string
	added bool
	cell  func(g *Group) string
}

var rows = []row{
	{"tokens computed", false, func(g *Group) string { return fmt.Sprint(g.ComputedTokens) }},
	{"token hit rate", false, func(g *Group) string { return fmt.Sprintf("%.1f %%", 100*g.TokenHitRate) }},
	{"TTFT p50, ms", false, func(g *Group) string { return fmt.Sprintf("%.1f", g.TTFTp50) }},
	{"TTFT p95, ms", false, func(g *Group) string { return fmt.Sprintf("%.1f", g.TTFTp95) }},
	{"TTFT p50, full recompute / this", false, func(g *Group) string { return fmt.Sprintf("%.2fx", g.OverFull) }},
	{"TTFT p50, prefix caching / this", false, func(g *Group) string { return fmt.Sprintf("%.2fx", g.OverPrefix) }},
	{"state error, first linear layer", true, func(g *Group) string { return g.First.String() }},
	{"state error, deepest linear layer", true, func(g *Group) string { return g.Deepest.String() }},
	{"next token as full recompute", true, func(g *Group) string { return fmt.Sprintf("%.0f %%", 100*g.NextTokenAgrees) }},
}

// answerRows are the rows for trained models only.
var answerRows = []row{
	{"answers right", true, func(g *Group) string { return fmt.Sprintf("%d of %d", g.Right, g.Requests) }},
	{"answers as full recompute", true, func(g *Group) string { return fmt.Sprintf("%d of %d", g.Same, g.Requests) }},
}

// String returns the relative error and the angle.
func (e Error) String() string {
	if e.Relative == 0 {
		return "0"
	}
	if e.Degrees >= 1 {
		return fmt.Sprintf("%.1e %.0f°", e.Relative, e.Degrees)
	}
	return fmt.Sprintf("%.1e %.1g°", e.Relative, e.Degrees)
}

func (r *Report) table(b *strings.Builder, name string, of func(*Way) *Group) {
	n := of(&r.Ways[0]).Requests
	if n == 0 {
		fmt.Fprintf(b, "\nno %s requests\n", name)
		return
	}
	fmt.Fprintf(b, "\n%-34s", fmt.Sprintf("%d %s requests, %d tokens", n, name, of(&r.Ways[0]).PromptTokens))
	for i := range r.Ways {
		fmt.Fprintf(b, "%16s", r.Ways[i].Name)
	}
	b.WriteByte('\n')
	lines := slices.Clone(rows)
	if len(r.Answers) == 0 {
		lines[len(lines)-1].name += " *"
	} else {
		lines = append(lines, answerRows...)
	}
	for _, line := range lines {
		fmt.Fprintf(b, "%-34s", line.name)
		for i := range r.Ways {
			cell := line.cell(of(&r.Ways[i]))
			if r.Ways[i].Name == WayAdded && !line.added {
				cell = "-"
			}
			// A degree sign has two bytes and one column.
			fmt.Fprintf(b, "%*s", 16+strings.Count(cell, "°"), cell)
		}
		b.WriteByte('\n')
	}
}

// say summarises the report in one line.
func (r *Report) say() string {
	spliced, added := r.Way(WaySpliced), r.Way(WayAdded)
	g, a := &spliced.Warm, &added.Warm
	if g.Requests == 0 {
		return fmt.Sprintf("No request found all its segments: the first token came %.2fx as fast as with prefix caching; run more requests.",
			spliced.Cold.OverPrefix)
	}
	text := fmt.Sprintf("When its passages were seen before, in any order and behind any prefix, a prompt's first token came "+
		"%.1fx sooner than with prefix caching and %.1fx sooner than computing everything, with %.1f %% of the tokens taken from "+
		"the daemon; the first recurrent state is exact to %.0e where adding states without transitions is off by %.0f %%.",
		g.OverPrefix, g.OverFull, 100*g.TokenHitRate, g.First.Relative, 100*a.First.Relative)
	if len(r.Answers) > 0 {
		count := func(way string) int { return r.Way(way).Cold.Right + r.Way(way).Warm.Right }
		text += fmt.Sprintf(" Of %d questions it answers %d right when all is computed, %d spliced and %d with added states.",
			len(r.Answers), count(WayFull), count(WaySpliced), count(WayAdded))
	}
	return text
}
