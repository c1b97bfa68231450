package replay

import (
	"fmt"
	"path/filepath"

	"github.com/spliced-kv/spliced/scripts/lab/replay/plot"
	"github.com/spliced-kv/spliced/scripts/lab/replay/trace"
)

// Chart returns a chart of the token hit rate over capacity or, for overlap depths, of the saved
// tokens over states per prompt. It has a line for each policy, and a dashed line for the bound.
func (r *Report) Chart() *plot.Chart {
	first := &r.Runs[0]
	c := &plot.Chart{
		Title:    filepath.Base(r.Trace),
		Subtitle: fmt.Sprintf("%d requests, %.4g M tokens; %s", first.Requests, float64(first.InputTokens)/1e6, r.Model.Name),
		X:        plot.Axis{Name: "capacity, GB", Log: true},
		Y:        plot.Axis{Name: "token hit rate, %", Format: func(v float64) string { return fmt.Sprintf("%.3g %%", v) }},
	}
	if r.Options.Title != "" {
		c.Title = r.Options.Title
	}
	x := func(v *Result) float64 { return float64(v.CapacityBytes) / 1e9 }
	y := func(v *Result) float64 { return 100 * v.TokenHitRate }
	if r.Info.Kind == trace.Overlaps {
		c.X.Name, c.Y.Name = "states a prompt, most", "tokens saved, % of what an earlier prompt shares"
		x = func(v *Result) float64 { return float64(v.Checkpoints) }
		y = func(v *Result) float64 { return 100 * *v.SavedOfHits }
	}
	add := func(name string, dashed bool, x, y float64) {
		for i := range c.Series {
			if c.Series[i].Name == name {
				c.Series[i].X, c.Series[i].Y = append(c.Series[i].X, x), append(c.Series[i].Y, y)
				return
			}
		}
		c.Series = append(c.Series, plot.Series{Name: name, Dashed: dashed, X: []float64{x}, Y: []float64{y}})
	}
	bounded := map[int64]bool{}
	least, most := r.span()
	for i := range r.Runs {
		v := &r.Runs[i]
		if v.CapacityBytes < 0 { // an unlimited capacity has no position on the axis: draw a horizontal line
			if most > 0 {
				add(v.Policy+", unlimited", true, least, y(v))
				add(v.Policy+", unlimited", true, most, y(v))
			}
			continue
		}
		add(v.Policy, false, x(v), y(v))
		if v.Bound != nil && !bounded[v.CapacityBytes] {
			bounded[v.CapacityBytes] = true
			add("bound", true, x(v), 100**v.Bound)
		}
	}
	return c
}

// span returns the smallest and the largest limited capacity in GB; 0 if all are unlimited.
func (r *Report) span() (least, most float64) {
	for i := range r.Runs {
		if v := float64(r.Runs[i].CapacityBytes) / 1e9; v > 0 {
			if most == 0 || v < least {
				least = v
			}
			most = max(most, v)
		}
	}
	return least, most
}
