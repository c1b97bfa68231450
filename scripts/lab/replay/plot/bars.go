package plot

import (
	"fmt"
	"math"
)

// bars draws one bar per series, with its name before it and its value after it.
func (c *Chart) bars(d *drawing) {
	const name, value = 190, 90
	bottomAt := top + len(c.Series)*(barHeight+8)
	d.w, d.h = width, bottomAt+bottom
	c.head(d)
	marks := ticks(c.highest())
	most := marks[len(marks)-1]
	px := func(v float64) float64 { return name + v/most*(width-name-value) }
	for _, v := range marks {
		d.add(`<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="#ddd"/>`, px(v), px(v), top-4, bottomAt)
		d.label(px(v), float64(bottomAt+18), "middle", ` fill="#444"`, c.Y.text(v))
	}
	at := c.Y.Name
	if len(c.Series[0].X) > 0 && c.X.Name != "" {
		at = fmt.Sprintf("%s, at %s = %s", c.Y.Name, c.X.Name, c.X.text(c.Series[0].X[0]))
	}
	d.label((name+width-value)/2, float64(bottomAt+42), "middle", "", at)
	for i, s := range c.Series {
		y, v := top+i*(barHeight+8), last(s)
		style := ""
		if s.Dashed {
			style = fmt.Sprintf(` fill-opacity=".15" stroke="%s" stroke-dasharray="6 4"`, colours[i%len(colours)])
		}
		if !math.IsNaN(v) {
			d.add(`<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"%s/>`, name, y, px(v)-name, barHeight, colours[i%len(colours)], style)
			d.label(px(v)+6, float64(y+18), "start", "", c.Y.text(v))
		}
		d.label(name-8, float64(y+18), "end", "", s.Name)
	}
}
