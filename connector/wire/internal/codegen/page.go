package codegen

import (
	"fmt"
	"strings"

	"github.com/spliced-kv/spliced/connector/wire/schema"
)

// Lines between "<!-- wire: TOPIC -->" and the next "<!-- end -->" are generated. Topics:
// operations, codes, features, bounds, enum NAME, and messages OP... for the layout of the
// messages of these operations.
const (
	topicBegin = "<!-- wire: "
	topicEnd   = "<!-- end -->"
)

func protocolPage(p *schema.Protocol, text string) (string, error) {
	var out []string
	shown := map[string]bool{}
	inside := ""
	for _, line := range strings.Split(text, "\n") {
		switch {
		case inside != "" && line == topicEnd:
			inside = ""
			out = append(out, line)
		case inside != "":
		case strings.HasPrefix(line, topicBegin):
			inside = strings.TrimSuffix(strings.TrimPrefix(line, topicBegin), " -->")
			lines, err := topic(p, inside)
			if err != nil {
				return "", err
			}
			shown[inside] = true
			out = append(out, line, "")
			out = append(out, lines...)
			out = append(out, "")
		default:
			out = append(out, line)
		}
	}
	if inside != "" {
		return "", fmt.Errorf("%q has no end", inside)
	}
	return strings.Join(out, "\n"), complete(p, shown)
}

// complete returns an error for anything that the page does not show.
func complete(p *schema.Protocol, shown map[string]bool) error {
	for _, name := range []string{"operations", "codes", "features", "bounds", "enum Level"} {
		if !shown[name] {
			return fmt.Errorf("no marker for %s", name)
		}
	}
	ops := map[string]bool{}
	for name := range shown {
		if list, ok := strings.CutPrefix(name, "messages "); ok {
			for _, op := range strings.Fields(list) {
				ops[op] = true
			}
		}
	}
	for _, o := range p.Operations {
		if !ops[o.Name] {
			return fmt.Errorf("no marker for the messages of %s", o.Name)
		}
	}
	return nil
}

func topic(p *schema.Protocol, name string) ([]string, error) {
	if e, ok := strings.CutPrefix(name, "enum "); ok {
		return enumTable(p, e)
	}
	if ops, ok := strings.CutPrefix(name, "messages "); ok {
		return layouts(p, strings.Fields(ops))
	}
	switch name {
	case "operations":
		return operationTable(p), nil
	case "codes":
		return codeTable(p), nil
	case "features":
		return featureTable(p), nil
	case "bounds":
		return boundTable(p), nil
	}
	return nil, fmt.Errorf("nothing is known of %q", name)
}

func operationTable(p *schema.Protocol) []string {
	lines := []string{"| number | op | tenant | while stopping | request | reply |", "|---|---|---|---|---|---|"}
	with := func(message, descriptors string) string {
		if len(message) == 0 || descriptors == "" {
			return message
		}
		return message + " and " + descriptors
	}
	mark := func(b bool) string {
		if b {
			return "yes"
		}
		return ""
	}
	for _, o := range p.Operations {
		lines = append(lines, fmt.Sprintf("| %d | %s | %s | %s | %s | %s |", o.Number, o.Name, mark(o.Tenant), mark(o.Stopping),
			with(o.Request, o.RequestDescriptors), with(o.Reply, o.ReplyDescriptors)))
	}
	return lines
}

func codeTable(p *schema.Protocol) []string {
	lines := []string{"| number | code | meaning | what a client does |", "|---|---|---|---|"}
	for _, v := range enum(p, "Code").Values {
		lines = append(lines, fmt.Sprintf("| %d | %s | %s | %s |", v.Number, dashed(v.Name), v.Doc, v.Then))
	}
	return lines
}

func featureTable(p *schema.Protocol) []string {
	lines := []string{"| feature bit | name | a connection that has it |", "|---|---|---|"}
	for _, v := range enum(p, "Feature").Values {
		lines = append(lines, fmt.Sprintf("| %d | %s | %s |", featureBit(p, v.Name), dashed(v.Name), v.Doc))
	}
	return lines
}

func boundTable(p *schema.Protocol) []string {
	lines := []string{"| bound | value | of |", "|---|---|---|"}
	for _, c := range p.Constants {
		if c.Bound {
			lines = append(lines, fmt.Sprintf("| %s | %d | %s |", c.Name, c.Value, c.Doc))
		}
	}
	return lines
}

func enumTable(p *schema.Protocol, name string) ([]string, error) {
	for _, e := range p.Enums {
		if e.Name != name {
			continue
		}
		lines := []string{fmt.Sprintf("| number | %s | meaning |", strings.ToLower(name)), "|---|---|---|"}
		for _, v := range e.Values {
			lines = append(lines, fmt.Sprintf("| %d | %s | %s |", v.Number, dashed(v.Name), v.Doc))
		}
		return lines, nil
	}
	return nil, fmt.Errorf("no enum %s", name)
}

// row is one labelled part of a layout.
type row struct {
	label string
	lines [][]string // scalars, then columns
}

// layouts draws the messages of some operations. If the page has drawn the same reply elsewhere,
// for another operation, layouts draws it again.
func layouts(p *schema.Protocol, ops []string) ([]string, error) {
	var rows []row
	drawn := map[string]int{} // replies: index in rows
	for _, name := range ops {
		o, err := operation(p, name)
		if err != nil {
			return nil, err
		}
		before := ""
		if len(ops) > 1 {
			before = name + " "
		}
		rows = append(rows, draw(p, before+"request", o.Request)...)
		if i, ok := drawn[o.Reply]; ok {
			rows[i].label = strings.TrimSuffix(rows[i].label, " reply") + ", " + name + " reply"
			continue
		}
		drawn[o.Reply] = len(rows)
		rows = append(rows, draw(p, before+"reply", o.Reply)...)
	}
	width := 0
	for _, r := range rows {
		width = max(width, len(r.label))
	}
	var lines []string
	for _, r := range rows {
		label := r.label
		for _, fields := range r.lines {
			for _, l := range wrapFields(fields, 118-width-6) {
				lines = append(lines, strings.TrimRight(fmt.Sprintf("    %-*s  %s", width, label, l), " "))
				label = ""
			}
		}
	}
	return lines, nil
}

func operation(p *schema.Protocol, name string) (*schema.Operation, error) {
	for i := range p.Operations {
		if p.Operations[i].Name == name {
			return &p.Operations[i], nil
		}
	}
	return nil, fmt.Errorf("no operation %s", name)
}

func draw(p *schema.Protocol, label, name string) []row {
	m := message(p, name)
	rows := []row{drawBody(label, body(p, m))}
	for _, sec := range m.Sections {
		rows = append(rows, drawBody("+ "+strings.Join(wordsOf(sec.Name), " "), sec.Body))
	}
	return rows
}

func drawBody(label string, items []schema.Item) row {
	var scalars, columns []string
	for _, f := range fieldsOf(items) {
		name := words(&f)
		switch f.Kind {
		case schema.Text:
			columns = append(columns, name+" text")
		case schema.Texts:
			columns = append(columns, name+" texts")
		case schema.Blobs:
			columns = append(columns, name+" texts (bytes)")
		default:
			typ := docTypes[f.Kind]
			if f.Kind.Column() {
				columns = append(columns, name+"[] "+typ)
			} else {
				scalars = append(scalars, typ+" "+name)
			}
		}
	}
	r := row{label: label}
	for _, part := range [][]string{scalars, columns} {
		if len(part) > 0 {
			r.lines = append(r.lines, part)
		}
	}
	if r.lines == nil {
		r.lines = [][]string{{"empty"}}
	}
	return r
}

var docTypes = map[schema.Kind]string{
	schema.U8: "u8", schema.U16: "u16", schema.U32: "u32", schema.I32: "i32", schema.U64: "u64", schema.F64: "f64", schema.Hash: "hash",
	schema.U8s: "u8", schema.U16s: "u16", schema.U32s: "u32", schema.U64s: "u64", schema.F64s: "f64", schema.Hashes: "hash",
}

// wrapFields joins fields by dots into lines of at most width bytes.
func wrapFields(fields []string, width int) []string {
	var lines []string
	line := ""
	for i, f := range fields {
		switch {
		case i == 0:
			line = f
		case len([]rune(line))+3+len(f)+2 > width:
			lines = append(lines, line+" ·")
			line = f
		default:
			line += " · " + f
		}
	}
	return append(lines, line)
}
