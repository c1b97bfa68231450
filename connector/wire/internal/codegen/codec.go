package codegen

import (
	"fmt"
	"strings"

	"github.com/spliced-kv/spliced/connector/wire/schema"
)

// goCodec generates Append and Decode of every message. They call functions of cursor.go of
// package wire.
func goCodec(p *schema.Protocol) ([]byte, error) {
	s := newSource("math")
	for i := range p.Messages {
		m := &p.Messages[i]
		if m.Like != "" {
			s.embedded(m)
			continue
		}
		if err := s.appendMethod(p, m); err != nil {
			return nil, fmt.Errorf("%s: %w", m.Name, err)
		}
		if err := s.decodeMethod(p, m, embeddedBy(p, m.Name)); err != nil {
			return nil, fmt.Errorf("%s: %w", m.Name, err)
		}
	}
	return s.format()
}

func embeddedBy(p *schema.Protocol, name string) bool {
	for _, m := range p.Messages {
		if m.Like == name {
			return true
		}
	}
	return false
}

func (s *source) embedded(m *schema.Message) {
	s.line("")
	s.line("// Decode implements Message.")
	s.line("func (m *%s) Decode(body []byte) error { return m.%s.decode(%q, body) }", m.Name, m.Like, messageName(m.Name))
}

func (s *source) appendMethod(p *schema.Protocol, m *schema.Message) error {
	s.line("")
	s.line("// Append implements Message.")
	s.line("func (m *%s) Append(b []byte) []byte {", m.Name)
	s.line("w := begin(b)")
	if err := s.appendBody(m.Body, "m."); err != nil {
		return err
	}
	for _, sec := range m.Sections {
		s.line("if m.%s.Present {", sec.Name)
		s.line("w.section(%d)", featureBit(p, sec.Feature))
		if err := s.appendBody(sec.Body, "m."+sec.Name+"."); err != nil {
			return err
		}
		s.line("}")
	}
	s.line("return w.b")
	s.line("}")
	return nil
}

var goScalars = map[schema.Kind]string{
	schema.U8: "u8", schema.U16: "u16", schema.U32: "u32", schema.I32: "u32", schema.U64: "u64", schema.F64: "u64", schema.Hash: "hash",
}

func (s *source) appendBody(items []schema.Item, in string) error {
	size := 0
	for _, f := range fieldsOf(items) {
		v := in + f.Name
		if outer, part, ok := table(f.Name); ok {
			if err := s.appendPart(&f, in+outer, part); err != nil {
				return err
			}
			continue
		}
		switch f.Kind {
		case schema.Text:
			s.line("w.text(%s)", v)
		case schema.Texts:
			s.line("w.texts(len(%s), func(i int) string { return %s[i] })", v, v)
		case schema.U8, schema.U16, schema.U32, schema.U64:
			s.line("w.%s(%s)", goScalars[f.Kind], v)
		case schema.I32:
			s.line("w.u32(uint32(%s))", v)
		case schema.F64:
			s.line("w.u64(math.Float64bits(%s))", v)
		case schema.Hash:
			if size%8 != 0 {
				s.line("w.align(8)")
			}
			s.line("w.hash(&%s)", v)
		case schema.Blobs:
			return fmt.Errorf("%s: blobs belong to a table", f.Name)
		default:
			s.line("put(&w, %s)", v)
		}
		if !f.Kind.Column() {
			n, align := sizeOf(f.Kind)
			size += -size&(align-1) + n
		}
	}
	if _, columns := scalars(items); !columns && size%8 != 0 {
		s.line("w.align(8)")
	}
	return nil
}

// appendPart generates the encoding of one column of a table.
func (s *source) appendPart(f *schema.Field, rows, part string) error {
	switch f.Kind {
	case schema.U32s, schema.U64s:
		s.line("w.count(len(%s))", rows)
		s.line("for i := range %s { w.u%s(%s[i].%s) }", rows, strings.TrimPrefix(goTypes[f.Kind], "[]uint"), rows, part)
		s.line("w.align(8)")
	case schema.Texts:
		s.line("w.texts(len(%s), func(i int) string { return %s[i].%s })", rows, rows, part)
	case schema.Blobs:
		s.line("w.texts(len(%s), func(i int) string { return string(%s[i].%s) })", rows, rows, part)
	default:
		return fmt.Errorf("%s: no table has such a column", f.Name)
	}
	return nil
}

func (s *source) decodeMethod(p *schema.Protocol, m *schema.Message, shared bool) error {
	s.line("")
	s.line("// Decode implements Message.")
	if shared {
		s.line("func (m *%s) Decode(body []byte) error { return m.decode(%q, body) }", m.Name, messageName(m.Name))
		s.line("")
		s.line("func (m *%s) decode(message string, body []byte) error {", m.Name)
		s.line("r := reader{message: message, body: body}")
	} else {
		s.line("func (m *%s) Decode(body []byte) error {", m.Name)
		s.line("r := reader{message: %q, body: body}", messageName(m.Name))
	}
	d := decoding{s, m.Body, "m.", ""}
	if err := d.items(m.Body); err != nil {
		return err
	}
	if err := d.counts(m.Body); err != nil {
		return err
	}
	for _, sec := range m.Sections {
		// The section of an earlier frame is cleared only if there was one: most frames have no
		// section, and decoding them must be fast.
		s.line("if m.%s.Present { m.%s = %s{} }", sec.Name, sec.Name, sec.Struct)
		s.line("if r.more() && r.section(%d) {", featureBit(p, sec.Feature))
		s.line("m.%s.Present = true", sec.Name)
		inner := decoding{s, m.Body, "m." + sec.Name + ".", strings.Join(wordsOf(sec.Name), " ") + " "}
		if err := inner.items(sec.Body); err != nil {
			return err
		}
		if err := inner.counts(sec.Body); err != nil {
			return err
		}
		s.line("}")
	}
	return d.end()
}

// decoding generates the code that reads one body. The field in is the text before each field
// name in that code, such as "m.". The columns of a section may have as many rows as a column of
// outer, the body of the message that the section belongs to.
type decoding struct {
	*source
	outer  []schema.Item
	in     string
	prefix string // for the words of a section's fields
}

func (d *decoding) items(items []schema.Item) error {
	size := 0
	var group []schema.Field // columns of one struct; their rows are checked after the struct's last column
	for _, it := range items {
		if f, ok := it.(schema.Field); len(group) > 0 && (!ok || structOf(&f) != structOf(&group[0])) {
			d.rows(group)
			group = nil
		}
		if c, ok := it.(schema.Check); ok {
			if err := d.check(items, &c); err != nil {
				return err
			}
			continue
		}
		f := it.(schema.Field)
		if structOf(&f) != "" && f.Kind.Column() {
			group = append(group, f)
		}
		name := d.prefix + words(&f)
		if _, _, ok := table(f.Name); ok {
			d.line("%s := %s", local(f.Name), column(&f, name))
			if f.Rows != "" {
				d.line("r.same(%q, len(%s), len(%s))", name, local(f.Name), local(f.Rows))
			}
			continue
		}
		v := d.in + f.Name
		switch f.Kind {
		case schema.U8, schema.U16, schema.U32, schema.U64:
			d.line("%s = r.%s(%q)", v, goScalars[f.Kind], name)
		case schema.I32:
			d.line("%s = int32(r.u32(%q))", v, name)
		case schema.F64:
			d.line("%s = math.Float64frombits(r.u64(%q))", v, name)
		case schema.Hash:
			if size%8 != 0 {
				d.line("r.align(%q, 8)", name)
			}
			d.line("%s = r.hash(%q)", v, name)
		default:
			d.line("%s = %s", v, column(&f, name))
		}
		if !f.Kind.Column() {
			n, align := sizeOf(f.Kind)
			size += -size&(align-1) + n
		}
	}
	d.rows(group)
	if _, columns := scalars(items); !columns && size%8 != 0 && d.prefix != "" {
		d.line("r.align(\"section\", 8)")
	}
	return nil
}

// structOf returns the name of the Go struct that a field belongs to. It returns "" for fields
// that belong to the message itself, and for columns of a table, such as "Memory[].Layer".
func structOf(f *schema.Field) string {
	if _, _, ok := table(f.Name); ok {
		return ""
	}
	outer, _, ok := strings.Cut(f.Name, ".")
	if !ok {
		return ""
	}
	return outer
}

// rows generates the checks of the rows of a struct's columns.
func (d *decoding) rows(group []schema.Field) {
	for _, f := range group {
		if f.Rows != "" {
			d.line("r.same(%q, len(%s%s), len(%s%s))", d.prefix+words(&f), d.in, f.Name, d.in, f.Rows)
		}
	}
}

// column returns the Go call that reads a column.
func column(f *schema.Field, name string) string {
	switch f.Kind {
	case schema.Text:
		return fmt.Sprintf("r.text(%q, %s)", name, f.Most)
	case schema.Texts, schema.Blobs:
		return fmt.Sprintf("r.texts(%q, %s, %s)", name, f.Most, f.Each)
	default:
		return fmt.Sprintf("get[%s](&r, %q, %s)", strings.TrimPrefix(goTypes[f.Kind], "[]"), name, f.Most)
	}
}

// local returns the variable that holds a column of a table until all are read.
func local(name string) string {
	name = strings.ReplaceAll(name, "[].", "")
	return strings.ToLower(name[:1]) + name[1:]
}

// length returns the expression for the number of elements of a column.
func (d *decoding) length(items []schema.Item, name string) (string, error) {
	if _, err := fieldOf(items, name); err == nil {
		return fmt.Sprintf("len(%s%s)", d.in, name), nil
	}
	if _, err := fieldOf(d.outer, name); err != nil {
		return "", err
	}
	return fmt.Sprintf("len(m.%s)", name), nil
}

// counts generates the checks of Rows and Divides that the generated code makes at the end of a
// body. It first checks the columns that must be present. For each field in order, it then
// checks the number of rows of an optional column, and the counts that divide another column.
func (d *decoding) counts(items []schema.Item) error {
	fields := fieldsOf(items)
	for _, f := range fields {
		if strings.Contains(f.Name, ".") || f.Rows == "" || f.OrNone {
			continue
		}
		want, err := d.length(items, f.Rows)
		if err != nil {
			return err
		}
		d.line("r.same(%q, len(%s%s), %s)", d.prefix+words(&f), d.in, f.Name, want)
	}
	for _, f := range fields {
		v, name := d.in+f.Name, d.prefix+words(&f)
		if f.OrNone {
			want, err := d.length(items, f.Rows)
			if err != nil {
				return err
			}
			d.line("if len(%s) > 0 { r.same(%q, len(%s), %s) }", v, name, v, want)
		}
		if f.Divides != "" {
			want, err := d.length(items, f.Divides)
			if err != nil {
				return err
			}
			d.line("r.sum(%q, %s, %s)", name, v, want)
		}
	}
	return nil
}

func (d *decoding) check(items []schema.Item, c *schema.Check) error {
	f, err := fieldOf(items, c.Field)
	if err != nil {
		return err
	}
	v, name := d.in+f.Name, d.prefix+words(f)
	switch {
	case c.Exactly != "" && c.OrNone:
		d.line("if len(%s) > 0 { r.same(%q, len(%s), %s) }", v, name, v, c.Exactly)
	case c.Exactly != "":
		d.line("r.same(%q, len(%s), %s)", name, v, c.Exactly)
	case c.OneOf != nil:
		d.line("switch %s {", v)
		d.line("case %s:", strings.Join(c.OneOf, ", "))
		d.line("default: r.fail(%q, \"%%d\", %s)", name, v)
		d.line("}")
	case c.Within != "":
		most, err := d.length(items, c.Within)
		if err != nil {
			return err
		}
		d.line("if int64(%s) > int64(%s) { r.fail(%q, \"%%d of %%d\", %s, %s) }", v, most, name, v, most)
	case c.Only != nil:
		want, err := d.length(items, c.Only.Rows)
		if err != nil {
			return err
		}
		if c.Only.Times != "" {
			want += "*" + c.Only.Times
		}
		d.line("r.same(%q, len(%s), only(%s%s == %s, %s))", name, v, d.in, c.Only.Scalar, c.Only.Is, want)
	}
	return nil
}

// end generates the return, after the rows of tables are built.
func (d *decoding) end() error {
	tables := map[string][]schema.Field{}
	var order []string
	for _, f := range fieldsOf(d.outer) {
		if outer, _, ok := table(f.Name); ok {
			if tables[outer] == nil {
				order = append(order, outer)
			}
			tables[outer] = append(tables[outer], f)
		}
	}
	if order == nil {
		d.line("return r.end()")
		d.line("}")
		return nil
	}
	d.line("if err := r.end(); err != nil { return err }")
	for _, outer := range order {
		columns := tables[outer]
		d.line("m.%s = nil", outer)
		d.line("if n := len(%s); n > 0 { m.%s = make([]%s, n) }", local(columns[0].Name), outer, columns[0].Type)
		d.line("for i := range m.%s {", outer)
		d.line("m.%s[i] = %s{", outer, columns[0].Type)
		for _, f := range columns {
			_, part, _ := table(f.Name)
			v := local(f.Name) + "[i]"
			if f.Kind == schema.Blobs {
				v = "[]byte(" + v + ")"
			}
			d.line("%s: %s,", part, v)
		}
		d.line("}")
		d.line("}")
	}
	d.line("return nil")
	d.line("}")
	return nil
}
