package show

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// View defines how items of one kind are shown: a cell for each column. A column whose name
// begins with "+" is only shown in the wide form.
type View[T any] struct {
	Columns []string
	Row     func(*T) []any
}

// Page is a listing. Rows and Items are the same objects in the same order.
type Page struct {
	Columns []string
	Rows    [][]any
	Items   []any
	More    bool // there are more items than were requested
}

// Of returns a page of items.
func Of[T any](items []T, more bool, v View[T]) *Page {
	p := &Page{Columns: v.Columns, Items: []any{}, More: more}
	for i := range items {
		p.Rows = append(p.Rows, v.Row(&items[i]))
		p.Items = append(p.Items, items[i])
	}
	return p
}

// Listing is the document of a page.
type Listing struct {
	Items []any `json:"items"`
	More  bool  `json:"more"` // --limit has omitted items
}

// Document returns the form for programs.
func (p *Page) Document() Listing { return Listing{p.Items, p.More} }

// Names returns the columns' names for --sort.
func (p *Page) Names() []string { return Names(p.Columns) }

// Names converts columns to names for --sort.
func Names(columns []string) []string {
	var names []string
	for _, c := range columns {
		names = append(names, strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(c, "+")), " ", "-"))
	}
	return names
}

// Sort sorts by a column, in descending order if its name begins with a minus. The sort is
// stable.
func (p *Page) Sort(by string) error {
	name, down := strings.CutPrefix(strings.ToLower(by), "-")
	at := slices.Index(p.Names(), strings.ReplaceAll(name, " ", "-"))
	if at < 0 {
		return fmt.Errorf("no column %q to sort by, want one of %s", name, strings.Join(p.Names(), ", "))
	}
	order := make([]int, len(p.Rows))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		c := compare(p.Rows[a][at], p.Rows[b][at])
		if down {
			return -c
		}
		return c
	})
	rows, items := make([][]any, len(order)), make([]any, len(order))
	for i, from := range order {
		rows[i], items[i] = p.Rows[from], p.Items[from]
	}
	p.Rows, p.Items = rows, items
	return nil
}

// Cut keeps at most n items; 0 = all.
func (p *Page) Cut(n int) {
	if n > 0 && len(p.Rows) > n {
		p.Rows, p.Items, p.More = p.Rows[:n], p.Items[:n], true
	}
}

// Named inserts a first column with the same value in all rows.
func (p *Page) Named(column, value string) {
	p.Columns = append([]string{column}, p.Columns...)
	for i, row := range p.Rows {
		p.Rows[i] = append([]any{value}, row...)
	}
}

// Write writes the page as a table.
func (p *Page) Write(w io.Writer, wide bool) error {
	shown := func(column string) bool { return wide || !strings.HasPrefix(column, "+") }
	t := NewTable(w)
	var head []string
	for _, c := range p.Columns {
		if shown(c) {
			head = append(head, strings.TrimPrefix(c, "+"))
		}
	}
	t.Head(head...)
	for _, row := range p.Rows {
		var cells []any
		for i, cell := range row {
			if shown(p.Columns[i]) {
				cells = append(cells, cell)
			}
		}
		t.Row(cells...)
	}
	if p.More {
		t.Row("… and more: raise --limit")
	}
	return t.Flush()
}
