package replay

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spliced-kv/spliced/scripts/lab/replay/trace"
)

// WriteJSON writes one object per line, one line per run.
func (r *Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	for i := range r.Runs {
		if err := e.Encode(&r.Runs[i]); err != nil {
			return err
		}
	}
	return nil
}

// Print writes the report as text.
func (r *Report) Print(w io.Writer) error {
	var b strings.Builder
	first := &r.Runs[0]
	fmt.Fprintf(&b, "%s: %s, %d requests, %.4g M tokens\n", r.Trace, describe(r.Info), first.Requests, float64(first.InputTokens)/1e6)
	fmt.Fprintf(&b, "model: %s\n", r.Model.Name)
	switch r.Info.Kind {
	case trace.Prompts:
		fmt.Fprintf(&b, "       %.4g MB a checkpoint, %d B of attention rows a token\n", float64(r.Model.Shape.CheckpointBytes())/1e6, r.Model.Shape.KVBytes)
	case trace.FlatPieces:
		fmt.Fprintf(&b, "       %.4g MB a segment, and %d B of attention rows a token; %d tokens in front of each prompt, %d computed again at either side of a segment\n",
			float64(r.Model.Shape.SegmentTotalBytes(0))/1e6, r.Model.Shape.KVBytes, r.Options.System, r.Options.Seam)
	}
	fmt.Fprintf(&b, "TTFT is modelled: %.4g ms + %.4g ms/1000 tokens", r.Model.Prefill.Fixed, 1e3*r.Model.Prefill.PerToken)
	if q := r.Model.Prefill.PerTokenSquared; q > 0 {
		fmt.Fprintf(&b, " + %.3g ms/(1000 tokens)²", 1e6*q)
	}
	fmt.Fprintf(&b, ", %s\n", r.Model.Fit)
	fmt.Fprintf(&b, "without a cache: TTFT P5/P50/P95 %s ms\n\n", r.NoCache)
	if _, err := io.WriteString(w, b.String()); err != nil {
		return err
	}
	if err := r.table(w); err != nil {
		return err
	}
	return r.speed(w)
}

// String returns P5/P50/P95.
func (p Percentiles) String() string { return fmt.Sprintf("%.0f/%.0f/%.0f", p.P5, p.P50, p.P95) }

func describe(i trace.Info) string {
	switch {
	case i.Kind == trace.FlatPieces:
		return fmt.Sprintf("%s, segments that may stand anywhere", i.Format)
	case i.Kind == trace.Overlaps:
		return fmt.Sprintf("%s, how much of each prompt an earlier one shares", i.Format)
	case i.BlockTokens > 1:
		return fmt.Sprintf("%s, prompts in blocks of %d tokens", i.Format, i.BlockTokens)
	}
	return fmt.Sprintf("%s, prompts in tokens", i.Format)
}

func (r *Report) table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', tabwriter.AlignRight)
	head, row := r.columns()
	fmt.Fprintln(t, strings.Join(head, "\t")+"\t")
	for i := range r.Runs {
		fmt.Fprintln(t, strings.Join(row(&r.Runs[i]), "\t")+"\t")
	}
	return t.Flush()
}

func (r *Report) columns() (head []string, row func(*Result) []string) {
	if r.Info.Kind == trace.Overlaps {
		return []string{"placement", "states a prompt, most", "placed", "tokens saved of shared", "of all", "TTFT P5/P50/P95, ms"},
			func(v *Result) []string {
				return []string{v.Policy, fmt.Sprint(v.Checkpoints), fmt.Sprintf("%.2f", *v.StatesPerPrompt), fmt.Sprintf("%.4f", *v.SavedOfHits),
					fmt.Sprintf("%.4f", v.TokenHitRate), v.TTFT.String()}
			}
	}
	head = []string{"policy", "capacity", "token hit rate", "hit tokens, M", "TTFT P5/P50/P95, ms", "P95 cut", "evictions", "refused", "held", "peak"}
	if r.Options.Bound {
		head = append(head, "bound", "of it")
	}
	return head, func(v *Result) []string {
		cells := []string{v.Policy, CapacityText(v.CapacityBytes), percent(v.TokenHitRate), fmt.Sprintf("%.3f", float64(v.HitTokens)/1e6), v.TTFT.String(),
			fmt.Sprintf("%.1f %%", 100*(1-v.TTFT.P95/r.NoCache.P95)), fmt.Sprint(v.Evictions), fmt.Sprint(v.Refused), gb(v.UsedBytes), gb(v.PeakBytes)}
		if v.Alpha != nil {
			cells[0] = fmt.Sprintf("%s (alpha %.4g)", v.Policy, *v.Alpha)
		}
		if r.Options.Bound {
			bound, of := "-", "-"
			if v.Bound != nil {
				bound, of = percent(*v.Bound), percent(v.TokenHitRate / *v.Bound)
			}
			cells = append(cells, bound, of)
		}
		return cells
	}
}

func percent(v float64) string { return fmt.Sprintf("%.3f %%", 100*v) }

// gb formats decimal gigabytes, the unit of capacities.
func gb(n int64) string { return fmt.Sprintf("%.4g GB", float64(n)/1e9) }

// CapacityText formats a capacity; -1 and Unlimited have no number.
func CapacityText(n int64) string {
	if n < 0 || n == Unlimited {
		return "unlimited"
	}
	return gb(n)
}

// speed writes the speed of each policy, over all its runs.
func (r *Report) speed(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "\n%.1f s; edge_steps_per_second on one core (and symbols a second):", r.Seconds)
	for i := range r.Runs {
		name := r.Runs[i].Policy
		if slices.ContainsFunc(r.Runs[:i], func(v Result) bool { return v.Policy == name }) {
			continue
		}
		var steps, symbols, seconds float64
		for _, v := range r.Runs {
			if v.Policy == name {
				steps, symbols, seconds = steps+float64(v.EdgeSteps), symbols+v.SymbolsPerSecond*v.Seconds, seconds+v.Seconds
			}
		}
		if seconds > 0 {
			fmt.Fprintf(&b, "  %s %.3g (%.3g)", name, steps/seconds, symbols/seconds)
		}
	}
	b.WriteByte('\n')
	_, err := io.WriteString(w, b.String())
	return err
}
