package gpucheck

import (
	"fmt"
	"io"
	"math"
	"text/tabwriter"
)

// Row is one figure. Ratio is Value divided by Limit. Limit and Ratio are nil if there is no
// limit; Bar is empty if nothing is required.
type Row struct {
	Name  string   `json:"name"`
	Value float64  `json:"value"`
	Unit  string   `json:"unit"`
	Limit *float64 `json:"limit,omitempty"`
	Ratio *float64 `json:"ratio,omitempty"`
	Bar   string   `json:"bar,omitempty"`
	OK    bool     `json:"ok"`
	// Note is the reason why a check failed or did not run; Skipped means that it did not
	// run.
	Note    string `json:"note,omitempty"`
	Skipped bool   `json:"skipped,omitempty"`
}

// Report is the result of one run.
type Report struct {
	Device string `json:"device"`
	UUID   string `json:"uuid"`
	Driver string `json:"driver"`
	Date   string `json:"date"`
	Commit string `json:"commit"`
	Seed   uint64 `json:"seed"`
	Sizes  string `json:"sizes"`
	Rows   []Row  `json:"rows"`
	// Parts has the time that each part took, and its limit.
	Parts []PartTime `json:"parts"`
	// Pending are the parts that had not ended when the report was saved.
	Pending []string `json:"pending,omitempty"`

	each func(*Row) // called with every row; may be nil
}

// PartTime is the time that a part took, and its limit.
type PartTime struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
	Limit   float64 `json:"limit"`
}

// OK reports whether every check that ran has passed, and at least one ran.
func (r *Report) OK() bool {
	ran := false
	for i := range r.Rows {
		ran = ran || !r.Rows[i].Skipped
		if !r.Rows[i].OK && !r.Rows[i].Skipped {
			return false
		}
	}
	return ran
}

// Add appends a row. A row with a NaN or infinite number is changed to a failed row.
func (r *Report) Add(row Row) {
	for _, v := range []*float64{&row.Value, row.Limit, row.Ratio} {
		if v != nil && (math.IsNaN(*v) || math.IsInf(*v, 0)) { // JSON has no such numbers
			*v, row.OK = -1, false
			row.Note += " (not a number)"
		}
	}
	r.Rows = append(r.Rows, row)
	if r.each != nil {
		r.each(&row)
	}
}

// AtMost adds a figure that has to stay within a bound.
func (r *Report) AtMost(name string, value float64, unit string, bound float64) {
	r.Add(Row{Name: name, Value: value, Unit: unit, Bar: fmt.Sprintf("<= %g %s", bound, unit), OK: value <= bound})
}

// Holds adds a result of success or failure.
func (r *Report) Holds(name string, err error) {
	row := Row{Name: name, Unit: "yes", OK: err == nil}
	if err == nil {
		row.Value = 1
	} else {
		row.Note = err.Error()
	}
	r.Add(row)
}

// Share adds a row with a rate, value, and its limit. The ratio value/limit must be at least the
// parameter least; 0 = nothing is required.
func (r *Report) Share(name string, value, limit float64, unit string, least float64) {
	ratio := value / limit
	row := Row{Name: name, Value: value, Unit: unit, Limit: &limit, Ratio: &ratio, OK: true}
	if least > 0 {
		row.Bar, row.OK = fmt.Sprintf(">= %g of limit", least), ratio >= least
	}
	r.Add(row)
}

// Within adds a row with a time, value, and a reference time, limit. The ratio value/limit must
// be at most the parameter most; 0 = nothing is required.
func (r *Report) Within(name string, value, limit float64, unit string, most float64) {
	ratio := value / limit
	row := Row{Name: name, Value: value, Unit: unit, Limit: &limit, Ratio: &ratio, OK: true}
	if most > 0 {
		row.Bar, row.OK = fmt.Sprintf("<= %g of limit", most), ratio <= most
	}
	r.Add(row)
}

// Skip appends a row that was not measured, and why.
func (r *Report) Skip(name, why string) {
	r.Add(Row{Name: name, Skipped: true, Note: why})
}

// Table writes the report as text.
func (r *Report) Table(w io.Writer) error {
	fmt.Fprintf(w, "%s (%s), driver %s, %s, commit %s, seed %d, sizes %s\n", r.Device, r.UUID, r.Driver, r.Date, r.Commit, r.Seed, r.Sizes)
	t := tabwriter.NewWriter(w, 2, 8, 2, ' ', 0)
	fmt.Fprintln(t, "check\tvalue\tunit\tlimit\tratio\tbar\t")
	failed := 0
	for i := range r.Rows {
		r.Rows[i].print(t)
		if !r.Rows[i].OK && !r.Rows[i].Skipped {
			failed++
		}
	}
	if err := t.Flush(); err != nil || failed == 0 {
		return err
	}
	// Failed rows are repeated at the end, because terminals and logs may cut off the beginning
	// of a long table.
	fmt.Fprintf(w, "\n%d of %d rows failed:\n", failed, len(r.Rows))
	for i := range r.Rows {
		if !r.Rows[i].OK && !r.Rows[i].Skipped {
			r.Rows[i].print(t)
		}
	}
	return t.Flush()
}

func (row *Row) print(w io.Writer) {
	state := "ok"
	switch {
	case row.Skipped:
		state = "skipped: " + row.Note
	case !row.OK:
		state = "FAILED " + row.Note
	}
	fmt.Fprintf(w, "%s\t%.4g\t%s\t%s\t%s\t%s\t%s\n", row.Name, row.Value, row.Unit, number(row.Limit), number(row.Ratio), row.Bar, state)
}

func number(v *float64) string {
	if v == nil {
		return ""
	}
	return fmt.Sprintf("%.4g", *v)
}
