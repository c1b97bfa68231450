// Package bench measures the kernels and a spliced daemon that it starts. Each figure is
// shown next to its limit (a copy, a bare socket echo, the multiply-add peak), measured in
// the same run in alternating rounds.
//
// Row names and units are fixed, because users compare versions by them. The package starts
// daemons and clients as processes, and ends them.
package bench

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"text/tabwriter"
	"time"
)

// Report is the result of one run.
type Report struct {
	Machine string    `json:"machine"`
	Commit  string    `json:"commit"`
	Date    time.Time `json:"date"`
	Suite   string    `json:"suite"`
	Rows    []Row     `json:"rows"`
	Skipped []Skip    `json:"skipped"`
	Notes   []string  `json:"notes,omitempty"` // figures that were not measured here
}

// Row is one figure.
type Row struct {
	Name  string   `json:"name"`
	Value float64  `json:"value"`
	Unit  string   `json:"unit"`
	Limit *float64 `json:"limit"` // in the row's unit, measured in this run; null = none
	Ratio *float64 `json:"ratio"` // value / limit
	Bar   string   `json:"bar"`   // required value; empty = no requirement
	OK    bool     `json:"ok"`    // the bar is met
}

// Skip is a row that this machine cannot measure.
type Skip struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

// bar is the requirement of a row. A row meets the bar if it meets at least one of the fields
// that are set. If all is set, the row must meet every field that is set.
type bar struct {
	atMost       float64 // of the value; 0 = no requirement
	atLeast      float64
	ratioAtMost  float64 // of value / limit
	ratioAtLeast float64
	all          bool // every part must be met
}

func (b bar) String() string {
	joint := " or "
	if b.all {
		joint = " and "
	}
	text := ""
	add := func(v float64, format string) {
		if v == 0 {
			return
		}
		if text != "" {
			text += joint
		}
		text += fmt.Sprintf(format, strconv.FormatFloat(v, 'g', -1, 64))
	}
	add(b.atMost, "≤%s")
	add(b.atLeast, "≥%s")
	add(b.ratioAtMost, "≤%s×limit")
	add(b.ratioAtLeast, "≥%s×limit")
	return text
}

func (b bar) met(value, ratio float64) bool {
	asked, met := 0, 0
	part := func(wanted bool, ok bool) {
		if wanted {
			asked++
			if ok {
				met++
			}
		}
	}
	part(b.atMost > 0, value <= b.atMost)
	part(b.atLeast > 0, value >= b.atLeast)
	part(b.ratioAtMost > 0, ratio <= b.ratioAtMost)
	part(b.ratioAtLeast > 0, ratio >= b.ratioAtLeast)
	return met == asked || met > 0 && !b.all
}

// row rounds to four digits: more would exceed the precision of runs.
func row(name, unit string, value float64, limit float64, b bar) Row {
	r := Row{Name: name, Unit: unit, Value: round4(value), Bar: b.String()}
	ratio := math.NaN()
	if limit > 0 {
		ratio = value / limit
		l, q := round4(limit), round4(ratio)
		r.Limit, r.Ratio = &l, &q
	}
	r.OK = b.met(value, ratio)
	return r
}

func round4(v float64) float64 {
	if v == 0 || math.IsNaN(v) || math.IsInf(v, 0) {
		return 0
	}
	scale := math.Pow(10, 3-math.Floor(math.Log10(math.Abs(v))))
	return math.Round(v*scale) / scale
}

// Print writes the report as a table.
func (r *Report) Print(w io.Writer) error {
	fmt.Fprintf(w, "%s\ncommit %s, %s, suite %s\n\n", r.Machine, r.Commit, r.Date.Format(time.RFC3339), r.Suite)
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "ROW\tVALUE\tUNIT\tLIMIT\tRATIO\tBAR\t")
	for _, row := range r.Rows {
		mark := "ok"
		switch {
		case row.Bar == "":
			mark = ""
		case !row.OK:
			mark = "MISSED"
		}
		fmt.Fprintf(t, "%s\t%g\t%s\t%s\t%s\t%s\t%s\n", row.Name, row.Value, row.Unit, orDash(row.Limit), orDash(row.Ratio), row.Bar, mark)
	}
	for _, s := range r.Skipped {
		fmt.Fprintf(t, "%s\tskipped: %s\n", s.Name, s.Reason)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, note := range r.Notes {
		fmt.Fprintln(w, note)
	}
	return nil
}

func orDash(v *float64) string {
	if v == nil {
		return "-"
	}
	return strconv.FormatFloat(*v, 'g', -1, 64)
}
