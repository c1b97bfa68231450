// Package show formats the output of splicectl: tables with aligned columns that can be
// sorted and omitted, and documents for programs. It escapes all text from other sources.
package show

import (
	"fmt"
	"io"
	"strings"

	"github.com/charmbracelet/x/ansi"

	"github.com/spliced-kv/spliced/api/cmd/cli/terminal"
)

// Table aligns columns. The last cell of a row may have any length.
type Table struct {
	w    io.Writer
	head bool
	rows [][]any
}

// NewTable creates a table that Flush writes to w, in colours if w is a *terminal.Writer
// that has them.
func NewTable(w io.Writer, head ...string) *Table {
	t := &Table{w: w}
	if len(head) > 0 {
		t.Head(head...)
	}
	return t
}

// Head sets the column names; before the first row.
func (t *Table) Head(names ...string) {
	cells := make([]any, len(names))
	for i := range names {
		cells[i] = names[i]
	}
	t.head, t.rows = true, append(t.rows, cells)
}

// Row adds a row.
func (t *Table) Row(cells ...any) { t.rows = append(t.rows, cells) }

const between = "  "

// Flush writes the table.
func (t *Table) Flush() error {
	out, paint := t.w, func(_, text string) string { return text }
	if plain, colour := terminal.Plain(t.w); colour {
		out, paint = plain, Paint
	}
	texts, widths := t.measure()
	var b strings.Builder
	for i, row := range texts {
		for len(row) > 0 && row[len(row)-1] == "" { // no blanks at the end of a line
			row = row[:len(row)-1]
		}
		for j, text := range row {
			style := ""
			if i == 0 && t.head {
				style = bold
			} else if state, ok := t.rows[i][j].(State); ok {
				style = state.colour()
			}
			b.WriteString(paint(style, text))
			if j < len(row)-1 {
				b.WriteString(strings.Repeat(" ", widths[j]-ansi.StringWidth(text)) + between)
			}
		}
		b.WriteByte('\n')
	}
	t.rows = nil
	_, err := io.WriteString(out, b.String())
	return err
}

// measure formats the cells and returns the width of each column.
func (t *Table) measure() (texts [][]string, widths []int) {
	for _, row := range t.rows {
		cells := make([]string, len(row))
		for j, cell := range row {
			cells[j] = terminal.Line(fmt.Sprint(cell))
			if j == len(widths) {
				widths = append(widths, 0)
			}
			if j < len(row)-1 {
				widths[j] = max(widths[j], ansi.StringWidth(cells[j]))
			}
		}
		texts = append(texts, cells)
	}
	return texts, widths
}

// Styles, as parameters of SGR.
const (
	bold   = "1"
	red    = "31"
	green  = "32"
	yellow = "33"
)

// Paint formats text in a style; "" is none.
func Paint(style, text string) string {
	if style == "" || text == "" {
		return text
	}
	return "\x1b[" + style + "m" + text + "\x1b[0m"
}

func (s State) colour() string {
	word, _, _ := strings.Cut(string(s), " ")
	switch word {
	case "ok", "serving", "alive", "published", "on", "yes":
		return green
	case "degraded", "warn", "pending", "opening", "leaving", "busy":
		return yellow
	case "fail", "failed", "unavailable", "missing", "lost", "unreachable", "unusable", "off":
		return red
	}
	return ""
}
