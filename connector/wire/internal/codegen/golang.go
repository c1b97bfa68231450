package codegen

import (
	"bytes"
	"fmt"
	"go/format"
	"strings"

	"github.com/spliced-kv/spliced/connector/wire/schema"
)

// source collects Go source.
type source struct{ bytes.Buffer }

func newSource(imports ...string) *source {
	s := &source{}
	s.line("// %s", notice)
	s.line("")
	s.line("package wire")
	s.line("")
	for _, path := range imports {
		s.line("import %q", path)
	}
	s.line("")
	return s
}

func (s *source) line(text string, args ...any) {
	if len(args) > 0 {
		text = fmt.Sprintf(text, args...)
	}
	s.WriteString(text)
	s.WriteByte('\n')
}

func (s *source) comment(text string) {
	for _, l := range wrap(text, 77) {
		s.line("// %s", l)
	}
}

func (s *source) format() ([]byte, error) { return format.Source(s.Bytes()) }

// goNumbers generates constants, enums and their names.
func goNumbers(p *schema.Protocol) ([]byte, error) {
	s := newSource("strconv")
	s.comment("Bounds and sizes of the protocol. A count beyond its bound is ErrMalformed; most are guesses with room to spare, chosen so that one full column still fits a frame.")
	s.line("const (")
	for _, c := range p.Constants {
		s.entry(fmt.Sprintf("%s = %d", c.Name, c.Value), c.Doc)
	}
	s.line(")")
	for i := range p.Enums {
		s.enum(&p.Enums[i])
	}
	return s.format()
}

// entry writes a constant or field with its comment, on the same line if it is short.
func (s *source) entry(text, doc string) {
	switch {
	case doc == "":
		s.line("%s", text)
	case len(doc) <= 90:
		s.line("%s // %s", text, doc)
	default:
		s.comment(sentence(doc))
		s.line("%s", text)
	}
}

func (s *source) enum(e *schema.Enum) {
	s.line("")
	if e.Own {
		s.comment(e.Name + " " + e.Doc + ".")
		s.line("type %s %s", e.Name, e.Type)
		s.line("")
		s.comment("The numbers of " + e.Name + ".")
	} else {
		s.comment(e.Name + " " + e.Doc + ".")
	}
	typ := e.Type
	if e.Own {
		typ = e.Name
	}
	s.line("const (")
	for _, v := range e.Values {
		number := fmt.Sprint(v.Number)
		if e.Bits && e.Type == "uint64" {
			number = fmt.Sprintf("%#x", v.Number)
		}
		s.entry(fmt.Sprintf("%s%s %s = %s", e.Prefix, v.Name, typ, number), v.Doc)
	}
	s.line(")")
	if e.Named {
		s.names(e)
	}
}

// names writes the texts of an enum that has its own type.
func (s *source) names(e *schema.Enum) {
	table := strings.ToLower(e.Name[:1]) + e.Name[1:] + "Names"
	last := uint64(0)
	for _, v := range e.Values {
		last = max(last, v.Number)
	}
	s.line("")
	s.comment(fmt.Sprintf("%sCount is one more than the highest %s: the length of an array that all of them index.", e.Name, e.Name))
	s.line("const %sCount = %d", e.Name, last+1)
	s.line("")
	s.line("var %s = [%sCount]string{", table, e.Name)
	for _, v := range e.Values {
		s.line("%s%s: %q,", e.Prefix, v.Name, dashed(v.Name))
	}
	s.line("}")
	s.line("")
	s.line("// Known reports whether x is a number of this version.")
	s.line("func (x %s) Known() bool { return int(x) < %sCount && %s[x] != \"\" }", e.Name, e.Name, table)
	s.line("")
	s.line("// String returns the name of x, or its number when it has none.")
	s.line("func (x %s) String() string {", e.Name)
	s.line("if x.Known() { return %s[x] }", table)
	s.line("return %q + strconv.Itoa(int(x))", strings.ToLower(e.Name)+" ")
	s.line("}")
}

// goOperations generates the ops and the table by which the daemon dispatches requests.
func goOperations(p *schema.Protocol) ([]byte, error) {
	s := newSource()
	s.line("// Op is an operation code.")
	s.line("type Op uint16")
	s.line("")
	s.line("// The operations. Numbers are never reused.")
	s.line("const (")
	last := 0
	for _, o := range p.Operations {
		s.line("%s Op = %d", opName(o.Name), o.Number)
		last = max(last, o.Number)
	}
	s.line(")")
	s.line("")
	s.comment("OpCount is one more than the highest op: an array of that length, indexed by ops that are Known, cannot be indexed out of range.")
	s.line("const OpCount = %d", last+1)
	s.line("")
	s.line("// operations is indexed by Op; an op without a name does not exist.")
	s.line("var operations = [OpCount]operation{")
	for _, o := range p.Operations {
		var rules []string
		for _, r := range []struct {
			name string
			set  bool
		}{{"Tenant", o.Tenant}, {"Descriptors", o.RequestDescriptors != ""}, {"WhileStopping", o.Stopping}} {
			if r.set {
				rules = append(rules, r.name+": true")
			}
		}
		s.line("%s: {%q, Rules{%s}, [2]func() Message{message[%s], message[%s]}},",
			opName(o.Name), o.Name, strings.Join(rules, ", "), o.Request, o.Reply)
	}
	s.line("}")
	return s.format()
}

var goTypes = map[schema.Kind]string{
	schema.U8: "uint8", schema.U16: "uint16", schema.U32: "uint32", schema.I32: "int32", schema.U64: "uint64", schema.F64: "float64", schema.Hash: "[32]byte",
	schema.U8s: "[]uint8", schema.U16s: "[]uint16", schema.U32s: "[]uint32", schema.U64s: "[]uint64", schema.F64s: "[]float64", schema.Hashes: "[][32]byte",
	schema.Text: "string", schema.Texts: "[]string", schema.Blobs: "[][]byte",
}

// goParts are the types of a Texts or Blobs column in an element of a table.
var goParts = map[schema.Kind]string{schema.Texts: "string", schema.Blobs: "[]byte"}

// goMessages generates the message types.
func goMessages(p *schema.Protocol) ([]byte, error) {
	s := newSource()
	for _, t := range p.Structs {
		s.line("")
		s.comment(t.Name + " " + t.Doc + ".")
		s.line("type %s struct {", t.Name)
		for _, f := range t.Fields {
			typ := goTypes[f.Kind]
			if part, ok := goParts[f.Kind]; ok {
				typ = part
			}
			s.entry(f.Name+" "+typ, f.Doc)
		}
		s.line("}")
	}
	for i := range p.Messages {
		s.message(&p.Messages[i])
	}
	return s.format()
}

func (s *source) message(m *schema.Message) {
	s.line("")
	s.comment(m.Name + " " + m.Doc + ".")
	s.line("type %s struct {", m.Name)
	if m.Like != "" {
		s.line("%s", m.Like)
	}
	s.fields(m.Body)
	for _, sec := range m.Sections {
		s.entry(sec.Name+" "+sec.Struct, "with Feature"+sec.Feature)
	}
	s.line("}")
	for _, sec := range m.Sections {
		s.line("")
		s.comment(sec.Struct + " " + sec.Doc + ".")
		s.line("type %s struct {", sec.Struct)
		s.line("Present bool // false = the section is absent, and the other fields are zero")
		s.fields(sec.Body)
		s.line("}")
	}
}

// fields writes the fields of a body. Those of one struct or table become one field.
func (s *source) fields(items []schema.Item) {
	written := map[string]bool{}
	for _, f := range fieldsOf(items) {
		name, typ, doc := f.Name, goTypes[f.Kind], f.Doc
		if outer, _, ok := table(f.Name); ok {
			name, typ, doc = outer, "[]"+f.Type, ""
		} else if outer, _, ok := strings.Cut(f.Name, "."); ok {
			name, typ, doc = outer, f.Type, ""
		}
		if !written[name] {
			s.entry(name+" "+typ, doc)
		}
		written[name] = true
	}
}
