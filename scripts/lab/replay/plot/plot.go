// Package plot draws small charts as SVG: lines over a few values of x, or bars for a single
// value of x. Axes have units, and every series is named next to its line or bar. A reader can
// get all figures from the text.
package plot

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// Chart is one picture.
type Chart struct {
	Title    string
	Subtitle string
	X, Y     Axis
	Series   []Series
}

// Axis is one direction of a chart.
type Axis struct {
	Name   string // with its unit
	Log    bool   // x only: decades, for values above zero
	Format func(v float64) string
}

// Series is one line. Y may hold NaN where there is no value.
type Series struct {
	Name   string
	X, Y   []float64
	Dashed bool // a reference, not a measurement
}

// Sizes in pixels.
const (
	width, height = 820, 470
	left, right   = 74, 190 // right holds the names of lines
	top, bottom   = 74, 62
	barHeight     = 26
)

// Colours that people with any kind of colour vision can distinguish (Okabe and Ito). Dashes and
// markers keep a grey print readable.
var colours = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#7f7f7f"}

// Write draws the chart.
func (c *Chart) Write(w io.Writer) error {
	if len(c.Series) == 0 {
		return errors.New("plot: nothing to draw")
	}
	xs := map[float64]bool{}
	for _, s := range c.Series {
		if len(s.X) != len(s.Y) {
			return fmt.Errorf("plot: %q has %d values of x and %d of y", s.Name, len(s.X), len(s.Y))
		}
		for i := range s.X {
			if math.IsNaN(s.X[i]) || math.IsInf(s.X[i], 0) || math.IsInf(s.Y[i], 0) || c.X.Log && s.X[i] <= 0 {
				return fmt.Errorf("plot: %q at %g, %g", s.Name, s.X[i], s.Y[i])
			}
			xs[s.X[i]] = true
		}
	}
	d := &drawing{}
	if len(xs) > 1 {
		c.lines(d, xs)
	} else {
		c.bars(d)
	}
	_, err := io.WriteString(w, d.text())
	return err
}

// drawing collects elements.
type drawing struct {
	strings.Builder
	w, h int
}

func (d *drawing) add(format string, a ...any) { fmt.Fprintf(&d.Builder, format+"\n", a...) }

func (d *drawing) label(x, y float64, anchor, style, text string) {
	d.add(`<text x="%.1f" y="%.1f" text-anchor="%s"%s>%s</text>`, x, y, anchor, style, escape(text))
}

func (d *drawing) text() string {
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" `+
		`font-family="system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif" font-size="13" fill="#222">
<rect width="%d" height="%d" fill="#fff"/>
%s</svg>
`, d.w, d.h, d.w, d.h, d.w, d.h, d.Builder.String())
}

func escape(s string) string {
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;").Replace(s)
}

func (c *Chart) head(d *drawing) {
	d.add(`<title>%s</title>`, escape(c.Title))
	d.label(left-50, 28, "start", ` font-size="17" font-weight="600"`, c.Title)
	d.label(left-50, 48, "start", ` fill="#555"`, c.Subtitle)
}

func (a *Axis) text(v float64) string {
	if a.Format != nil {
		return a.Format(v)
	}
	return trim(v)
}

func trim(v float64) string { return fmt.Sprintf("%.4g", v) }

// ticks returns round steps from zero to at least most.
func ticks(most float64) []float64 {
	if !(most > 0) {
		most = 1
	}
	step := math.Pow(10, math.Floor(math.Log10(most/4)))
	for _, m := range []float64{1, 2, 5, 10} {
		if most/(step*m) <= 6 {
			step *= m
			break
		}
	}
	var out []float64
	for i := 0; ; i++ {
		v := float64(i) * step
		out = append(out, v)
		if v >= most*0.999 {
			return out
		}
	}
}

func (c *Chart) highest() float64 {
	most := 0.0
	for _, s := range c.Series {
		for _, y := range s.Y {
			if y > most {
				most = y
			}
		}
	}
	return most
}

// spread moves positions apart until they are at least gap apart. It keeps their order and, if
// possible, keeps them between lo and hi.
func spread(at []float64, gap, lo, hi float64) []float64 {
	order := make([]int, len(at))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case at[a] < at[b]:
			return -1
		case at[a] > at[b]:
			return 1
		}
		return 0
	})
	out := slices.Clone(at)
	last := lo - gap
	for _, i := range order {
		out[i] = max(out[i], last+gap)
		last = out[i]
	}
	next := hi + gap
	for _, i := range slices.Backward(order) {
		out[i] = min(out[i], next-gap)
		next = out[i]
	}
	return out
}
