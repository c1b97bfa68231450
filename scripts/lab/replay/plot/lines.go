package plot

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// lines draws series over x, each named at its right end.
func (c *Chart) lines(d *drawing, xs map[float64]bool) {
	d.w, d.h = width+c.beyond(), height
	c.head(d)
	values := slices.Sorted(maps.Keys(xs))
	px := c.scaleX(values[0], values[len(values)-1])
	marks := ticks(c.highest())
	most := marks[len(marks)-1]
	py := func(v float64) float64 { return height - bottom - v/most*(height-top-bottom) }

	for _, v := range marks {
		d.add(`<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="#ddd"/>`, left, width-right, py(v), py(v))
		d.label(left-8, py(v)+4.5, "end", ` fill="#444"`, c.Y.text(v))
	}
	lastLabel := math.Inf(-1)
	for _, v := range values {
		d.add(`<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="#888"/>`, px(v), px(v), height-bottom, height-bottom+5)
		if text := c.X.text(v); px(v)-lastLabel > 8*float64(len(text)) {
			d.label(px(v), height-bottom+20, "middle", ` fill="#444"`, text)
			lastLabel = px(v)
		}
	}
	d.add(`<line x1="%d" x2="%d" y1="%d" y2="%d" stroke="#444"/>`, left, width-right, height-bottom, height-bottom)
	d.label(left+float64(width-left-right)/2, height-bottom+44, "middle", "", c.X.Name)
	d.add(`<text x="20" y="%d" text-anchor="middle" transform="rotate(-90 20 %d)">%s</text>`,
		top+(height-top-bottom)/2, top+(height-top-bottom)/2, escape(c.Y.Name))

	ends := make([]float64, len(c.Series))
	for i, s := range c.Series {
		ends[i] = c.line(d, i, s, px, py)
	}
	for i, at := range spread(ends, 17, top, height-bottom) {
		s := c.Series[i]
		colour := colours[i%len(colours)]
		if math.Abs(at-ends[i]) > 1 { // connect the line to its name, which was moved
			d.add(`<path d="M%d %.1f L%d %.1f" stroke="%s" stroke-opacity=".5" fill="none"/>`, width-right+5, ends[i], width-right+17, at, colour)
		}
		d.label(width-right+21, at+4.5, "start", fmt.Sprintf(` fill="%s" font-weight="600"`, colour), s.Name+" "+c.Y.text(last(s)))
	}
}

// line draws one series and returns where it ends.
func (c *Chart) line(d *drawing, i int, s Series, px, py func(float64) float64) (end float64) {
	colour, dash := colours[i%len(colours)], ""
	if s.Dashed {
		dash = ` stroke-dasharray="6 4"`
	}
	var points []string
	end = py(0)
	for j := range s.X {
		if math.IsNaN(s.Y[j]) {
			continue
		}
		points = append(points, fmt.Sprintf("%.1f,%.1f", px(s.X[j]), py(s.Y[j])))
		end = py(s.Y[j])
	}
	d.add(`<polyline points="%s" fill="none" stroke="%s" stroke-width="2"%s/>`, strings.Join(points, " "), colour, dash)
	if s.Dashed {
		return end
	}
	for j := range s.X {
		if !math.IsNaN(s.Y[j]) {
			d.add(`<circle cx="%.1f" cy="%.1f" r="3.5" fill="%s"><title>%s: %s at %s</title></circle>`,
				px(s.X[j]), py(s.Y[j]), colour, escape(s.Name), escape(c.Y.text(s.Y[j])), escape(c.X.text(s.X[j])))
		}
	}
	return end
}

func last(s Series) float64 {
	for _, y := range slices.Backward(s.Y) {
		if !math.IsNaN(y) {
			return y
		}
	}
	return math.NaN()
}

func (c *Chart) scaleX(least, most float64) func(float64) float64 {
	of := func(v float64) float64 { return v }
	if c.X.Log {
		of = math.Log
	}
	const inset = 14 // markers stay away from the axis
	span := of(most) - of(least)
	return func(v float64) float64 {
		return left + inset + (of(v)-of(least))/span*(width-left-right-2*inset)
	}
}

// beyond returns the pixels that the longest name needs besides the margin.
func (c *Chart) beyond() int {
	const letter, lead = 9, 25
	longest := 0
	for _, s := range c.Series {
		longest = max(longest, len([]rune(s.Name+" "+c.Y.text(last(s)))))
	}
	return max(0, longest*letter+lead-right)
}
