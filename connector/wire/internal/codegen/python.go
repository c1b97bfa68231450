package codegen

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spliced-kv/spliced/connector/wire/schema"
)

// pythonColumns is the line length of generated Python, which is formatted as `ruff format`
// does.
const pythonColumns = 100

func newPython(doc string) *source {
	s := &source{}
	s.line("# %s", notice)
	s.docstring("", doc)
	s.line("")
	s.line("from __future__ import annotations")
	return s
}

// docstring writes text as a Python docstring, on one line if it fits.
func (s *source) docstring(indent, text string) {
	if line := indent + `"""` + text + `"""`; len([]rune(line)) <= pythonColumns {
		s.line("%s", line)
		return
	}
	width := pythonColumns - len(indent) - 3
	lines := wrap(text, width)
	if len(lines) == 1 {
		lines = wrap(text, width-10) // ruff joins one line with its closing quotes
	}
	s.line(`%s"""%s`, indent, lines[0])
	for _, l := range lines[1:] {
		s.line("%s%s", indent, l)
	}
	s.line(`%s"""`, indent)
}

// pythonDoc returns a text of the schema without Go package names.
func pythonDoc(text string) string {
	return strings.NewReplacer("profile.", "", "gpuipc.", "").Replace(text)
}

// enums writes classes of numbers.
func (s *source) enums(enums []schema.Enum) {
	base := func(e *schema.Enum) string {
		if e.Bits {
			return "IntFlag"
		}
		return "IntEnum"
	}
	imports := map[string]bool{}
	for i := range enums {
		imports[base(&enums[i])] = true
	}
	s.line("")
	s.line("from enum import %s", strings.Join(slices.Sorted(maps.Keys(imports)), ", "))
	for i := range enums {
		e := &enums[i]
		s.line("")
		s.line("")
		s.line("class %s(%s):", e.Python, base(e))
		doc := strings.TrimPrefix(pythonDoc(e.Doc), "is ")
		if e.Prefix != "" {
			doc = e.Name + " " + e.Doc
		}
		s.docstring("    ", sentence(doc))
		s.line("")
		for _, v := range e.Values {
			name := cmp.Or(v.Python, upper(v.Name))
			s.line("    %s = %d", name, v.Number)
			if v.Doc != "" {
				s.docstring("    ", sentence(pythonDoc(v.Doc)))
			}
		}
	}
}

func pythonEnums(p *schema.Protocol, wanted func(*schema.Enum) bool) []schema.Enum {
	var found []schema.Enum
	for _, e := range p.Enums {
		if e.Python != "" && wanted(&e) {
			found = append(found, e)
		}
	}
	return found
}

// pythonCodes generates a separate module: errors need it, and the codec needs errors.
func pythonCodes(p *schema.Protocol) ([]byte, error) {
	s := newPython("Outcomes of the protocol.")
	s.enums(pythonEnums(p, func(e *schema.Enum) bool { return e.Name == "Code" }))
	return s.Bytes(), nil
}

func pythonTerms(p *schema.Protocol) ([]byte, error) {
	s := newPython("Numbers of the protocol that callers of the client see.")
	s.enums(pythonEnums(p, func(e *schema.Enum) bool { return e.Client && e.Name != "Code" }))
	s.line("")
	s.line("")
	s.line("NONE64 = 2**64 - 1")
	s.docstring("", "An offset that stands for no offset.")
	return s.Bytes(), nil
}

func pythonNumbers(p *schema.Protocol) ([]byte, error) {
	s := newPython("Numbers of the protocol: operations, features and bounds (docs/protocol.md).")
	enums := pythonEnums(p, func(e *schema.Enum) bool { return !e.Client })
	ops := schema.Enum{Name: "Op", Python: "Op", Doc: "is an operation. Numbers are never used again"}
	for _, o := range p.Operations {
		ops.Values = append(ops.Values, schema.Value{Name: strings.TrimPrefix(opName(o.Name), "Op"), Number: uint64(o.Number)})
	}
	s.enums(append(enums, ops))
	s.line("")
	s.line("")
	for _, c := range p.Constants {
		s.line("%s = %d", upper(c.Name), c.Value)
		s.docstring("", sentence(c.Doc))
	}
	return s.Bytes(), nil
}

// pythonTypes maps kinds to declarations: the type of a field, and the function of schema.py.
var pythonTypes = map[schema.Kind][2]string{
	schema.U8: {"int", "u8"}, schema.U16: {"int", "u16"}, schema.U32: {"int", "u32"}, schema.I32: {"int", "i32"},
	schema.U64: {"int", "u64"}, schema.F64: {"float", "f64"}, schema.Hash: {"bytes", "hash32"},
	schema.U8s: {"bytes", "u8s"}, schema.U16s: {"Sequence[int]", "u16s"}, schema.U32s: {"Sequence[int]", "u32s"},
	schema.U64s: {"Sequence[int]", "u64s"}, schema.F64s: {"Sequence[float]", "f64s"}, schema.Hashes: {"Sequence[bytes]", "hashes"},
	schema.Text: {"str", "text"}, schema.Texts: {"Sequence[str]", "texts"}, schema.Blobs: {"Sequence[bytes]", "blobs"},
}

func pythonMessages(p *schema.Protocol) ([]byte, error) {
	s := newPython("The messages, in the order of their fields on the wire (docs/protocol.md).")
	s.line("")
	s.line("from collections.abc import Sequence")
	s.line("from dataclasses import dataclass")
	s.line("")
	s.line("from spliced_connector.wire import schema as w")
	s.line("from spliced_connector.wire.numbers import (")
	for _, name := range numbersUsed(p) {
		s.line("    %s,", name)
	}
	s.line(")")
	s.line("from spliced_connector.wire.schema import Message, message")
	for i := range p.Messages {
		m := &p.Messages[i]
		for _, sec := range m.Sections {
			if err := s.class(p, messageName(m.Name)+": "+strings.Join(wordsOf(sec.Name), " "), sec.Struct, "Message", sec.Doc, sec.Body, m.Body, nil); err != nil {
				return nil, err
			}
		}
		base := "Message"
		if m.Like != "" {
			base = m.Like
		}
		if err := s.class(p, messageName(m.Name), m.Name, base, m.Doc, m.Body, nil, m.Sections); err != nil {
			return nil, err
		}
	}
	s.line("")
	s.line("")
	s.line("MESSAGES: dict[int, tuple[type[Message], type[Message]]] = {")
	for _, o := range p.Operations {
		s.line("    Op.%s: (%s, %s),", upper(strings.TrimPrefix(opName(o.Name), "Op")), o.Request, o.Reply)
	}
	s.line("}")
	s.docstring("", "Request and reply of each operation.")
	return s.Bytes(), nil
}

// numbersUsed returns the names of numbers.py that bounds and checks need.
func numbersUsed(p *schema.Protocol) []string {
	used := map[string]bool{"Op": true}
	add := func(expression string) {
		for _, name := range identifier.FindAllString(expression, -1) {
			first, _, _ := strings.Cut(pythonNumber(p, name), ".")
			used[first] = true
		}
	}
	each := func(items []schema.Item) {
		for _, it := range items {
			switch it := it.(type) {
			case schema.Field:
				add(it.Most)
				add(it.Each)
			case schema.Check:
				add(it.Exactly)
				for _, v := range it.OneOf {
					add(v)
				}
				if it.Only != nil {
					add(it.Only.Is)
					add(it.Only.Times)
				}
			}
		}
	}
	for _, m := range p.Messages {
		each(m.Body)
		for _, sec := range m.Sections {
			used["Feature"] = true
			each(sec.Body)
		}
	}
	return isort(slices.Collect(maps.Keys(used)))
}

// isort orders names as ruff orders imports and __all__: constants, classes, others.
func isort(names []string) []string {
	rank := func(name string) int {
		switch {
		case name == strings.ToUpper(name):
			return 0
		case name[0] >= 'A' && name[0] <= 'Z':
			return 1
		default:
			return 2
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		if d := rank(a) - rank(b); d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	return names
}

// pythonNumber returns the Python name of a Go constant.
func pythonNumber(p *schema.Protocol, name string) string {
	for _, e := range p.Enums {
		for _, v := range e.Values {
			if e.Prefix+v.Name == name && e.Python != "" {
				return e.Python + "." + upper(v.Name)
			}
		}
	}
	return upper(name)
}

// expression turns 2*HandleBytes into 2 * HANDLE_BYTES.
func expression(p *schema.Protocol, text string) string {
	text = identifier.ReplaceAllStringFunc(text, func(name string) string { return pythonNumber(p, name) })
	return strings.ReplaceAll(text, "*", " * ")
}

func (s *source) class(p *schema.Protocol, title, name, base, doc string, items, outer []schema.Item, sections []schema.Section) error {
	s.line("")
	s.line("")
	s.line("@message(%q)", title)
	s.line("@dataclass(frozen=True, slots=True)")
	s.line("class %s(%s):", name, base)
	s.docstring("    ", sentence(strings.TrimPrefix(pythonDoc(doc), "is ")))
	if len(items)+len(sections) > 0 {
		s.line("")
	}
	for _, f := range fieldsOf(items) {
		line, err := s.declaration(p, &f, items, outer)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		s.line("%s", line)
	}
	for _, sec := range sections {
		s.line("    %s: %s | None = w.section(%s, Feature.%s)  # noqa: RUF009", snake(sec.Name), sec.Struct, sec.Struct, upper(sec.Feature))
	}
	return s.checks(p, items)
}

// declaration returns the declaration of one field of a class.
func (s *source) declaration(p *schema.Protocol, f *schema.Field, items, outer []schema.Item) (string, error) {
	typ := pythonTypes[f.Kind]
	var args []string
	if f.Kind.Column() {
		args = append(args, expression(p, f.Most))
	}
	if f.Each != "" {
		args = append(args, expression(p, f.Each))
	}
	for _, o := range []struct{ key, column string }{{"rows", f.Rows}, {"divides", f.Divides}} {
		if o.column == "" {
			continue
		}
		c, err := fieldOf(items, o.column)
		if err != nil {
			if c, err = fieldOf(outer, o.column); err != nil {
				return "", err
			}
		}
		args = append(args, fmt.Sprintf("%s=%q", o.key, pythonName(c)))
	}
	if f.OrNone {
		args = append(args, "optional=True")
	}
	head := fmt.Sprintf("    %s: %s = w.%s(", pythonName(f), typ[0], typ[1])
	line := head + strings.Join(args, ", ") + ")"
	if len(line) > pythonColumns {
		line = head + "\n        " + strings.Join(args, ", ") + "\n    )"
	}
	return line, nil
}

// checks writes the method that contains a message's Checks.
func (s *source) checks(p *schema.Protocol, items []schema.Item) error {
	begun := false
	for _, it := range items {
		c, ok := it.(schema.Check)
		if !ok {
			continue
		}
		if !begun {
			s.line("")
			s.line("    def check(self) -> None:")
		}
		begun = true
		f, err := fieldOf(items, c.Field)
		if err != nil {
			return err
		}
		name := pythonName(f)
		switch {
		case c.Exactly != "" && c.OrNone:
			s.line("        if self.%s:", name)
			s.line("            self.same(%q, len(self.%s), %s)", words(f), name, expression(p, c.Exactly))
		case c.Exactly != "":
			s.line("        self.same(%q, len(self.%s), %s)", words(f), name, expression(p, c.Exactly))
		case c.OneOf != nil:
			s.line("        if self.%s not in (%s):", name, expression(p, strings.Join(c.OneOf, ", ")))
			s.line("            self.fail(%q, f\"{self.%s}\")", words(f), name)
		case c.Within != "":
			of, err := fieldOf(items, c.Within)
			if err != nil {
				return err
			}
			s.line("        if self.%s > len(self.%s):", name, pythonName(of))
			s.line("            self.fail(%q, f\"{self.%s} of {len(self.%s)}\")", words(f), name, pythonName(of))
		case c.Only != nil:
			rows, err := fieldOf(items, c.Only.Rows)
			if err != nil {
				return err
			}
			want := "len(self." + pythonName(rows) + ")"
			if c.Only.Times != "" {
				want += " * " + expression(p, c.Only.Times)
			}
			s.line("        want = %s if self.%s == %s else 0", want, snake(c.Only.Scalar), expression(p, c.Only.Is))
			s.line("        self.same(%q, len(self.%s), want)", words(f), name)
		}
	}
	return nil
}

// pythonPackage generates wire/__init__.py, which exports the names of the package.
func pythonPackage(p *schema.Protocol) ([]byte, error) {
	s := &source{}
	s.line("# %s", notice)
	s.docstring("", "The local protocol: frames and messages (docs/protocol.md), with the standard library only.")
	modules := []struct {
		name  string
		names []string
	}{
		{"frame", []string{"Header", "Refusal", "decode", "encode", "op_name", "parse_header"}},
		{"messages", []string{"MESSAGES"}},
		{"numbers", []string{"HEADER_BYTES", "HELLO_DESCRIPTORS", "MAX_BODY", "MAX_FRAME", "VERSION", "Feature", "FrameKind", "Op", "ShareWay"}},
		{"schema", []string{"Message"}},
	}
	for _, m := range p.Messages {
		modules[1].names = append(modules[1].names, m.Name)
		for _, sec := range m.Sections {
			modules[1].names = append(modules[1].names, sec.Struct)
		}
	}
	var all []string
	s.line("")
	for _, m := range modules {
		all = append(all, m.names...)
		one := fmt.Sprintf("from spliced_connector.wire.%s import %s", m.name, strings.Join(isort(m.names), ", "))
		if len(one) <= pythonColumns {
			s.line("%s", one)
			continue
		}
		s.line("from spliced_connector.wire.%s import (", m.name)
		for _, name := range m.names {
			s.line("    %s,", name)
		}
		s.line(")")
	}
	s.line("")
	s.line("__all__ = [")
	for _, name := range isort(all) {
		s.line("    %q,", name)
	}
	s.line("]")
	return s.Bytes(), nil
}
