package schema

import (
	"errors"
	"fmt"
	"regexp"
)

// Validate reports all errors that would produce a codec that does not compile, or Go and Python
// codecs that differ.
func (p *Protocol) Validate() error {
	v := validation{names: map[string]bool{}, features: map[string]bool{}, messages: map[string]*Message{}}
	for _, c := range p.Constants {
		v.name(c.Name)
	}
	for _, e := range p.Enums {
		numbers := map[uint64]string{}
		for _, x := range e.Values {
			v.name(e.Prefix + x.Name)
			if other, ok := numbers[x.Number]; ok {
				v.report("%s: %s and %s are both %d", e.Name, other, x.Name, x.Number)
			}
			numbers[x.Number] = x.Name
			if e.Name == "Feature" {
				v.features[x.Name] = true
			}
		}
	}
	for _, s := range p.Structs {
		v.name(s.Name)
	}
	for i := range p.Messages {
		m := &p.Messages[i]
		v.name(m.Name)
		v.messages[m.Name] = m
	}
	for i := range p.Messages {
		v.message(&p.Messages[i])
	}
	v.operations(p.Operations)
	return errors.Join(v.errs...)
}

type validation struct {
	names    map[string]bool
	features map[string]bool
	messages map[string]*Message
	errs     []error
}

func (v *validation) report(format string, args ...any) {
	v.errs = append(v.errs, fmt.Errorf(format, args...))
}

func (v *validation) name(name string) {
	if v.names[name] {
		v.report("%s is declared twice", name)
	}
	v.names[name] = true
}

func (v *validation) operations(operations []Operation) {
	names, numbers, used := map[string]bool{}, map[int]bool{}, map[string]bool{}
	for _, o := range operations {
		if o.Number <= 0 || o.Number > 1<<16-1 || numbers[o.Number] || names[o.Name] || o.Name == "" {
			v.report("operation %d %q: a number or name that is none, or is taken", o.Number, o.Name)
		}
		numbers[o.Number], names[o.Name] = true, true
		for _, m := range []string{o.Request, o.Reply} {
			used[m] = true
			if v.messages[m] == nil {
				v.report("operation %s: no message %s", o.Name, m)
			}
		}
	}
	for name := range v.messages {
		if !used[name] {
			v.report("message %s belongs to no operation", name)
		}
	}
}

func (v *validation) message(m *Message) {
	if m.Like != "" {
		like := v.messages[m.Like]
		if like == nil || len(m.Body) > 0 || len(m.Sections) > 0 || like.Like != "" || len(like.Sections) > 0 {
			v.report("%s: like %s, which is not possible", m.Name, m.Like)
		}
		return
	}
	columns := v.body(m.Name, m.Body, nil)
	taken := map[string]bool{}
	for _, s := range m.Sections {
		v.name(s.Struct)
		if !v.features[s.Feature] || taken[s.Feature] {
			v.report("%s: section %s: feature %q is none, or is taken", m.Name, s.Name, s.Feature)
		}
		taken[s.Feature] = true
		v.body(m.Name+" "+s.Name, s.Body, columns)
	}
}

var identifier = regexp.MustCompile(`[A-Za-z]\w*`)

// body checks the items of a body and returns its columns. In a section, Rows may name columns
// of outer, the section's message.
func (v *validation) body(in string, items []Item, outer map[string]Kind) map[string]Kind {
	fields := map[string]Kind{}
	columns := map[string]Kind{}
	for _, it := range items {
		f, ok := it.(Field)
		if !ok {
			continue
		}
		if _, ok := fields[f.Name]; ok {
			v.report("%s: %s twice", in, f.Name)
		}
		fields[f.Name] = f.Kind
		if f.Kind.Column() {
			columns[f.Name] = f.Kind
		} else if len(columns) > 0 {
			v.report("%s: %s is a scalar after a column", in, f.Name)
		}
		for _, name := range append(identifier.FindAllString(f.Most, -1), identifier.FindAllString(f.Each, -1)...) {
			if !v.names[name] {
				v.report("%s: %s: no constant %s", in, f.Name, name)
			}
		}
		if f.Kind.Column() && f.Most == "" || (f.Kind == Texts || f.Kind == Blobs) && f.Each == "" {
			v.report("%s: %s has no bound", in, f.Name)
		}
		if f.OrNone && f.Divides == "" {
			v.report("%s: %s: or none of what nothing counts", in, f.Name)
		}
	}
	known := func(name string) bool {
		_, own := columns[name]
		_, outside := outer[name]
		return own || outside
	}
	for _, it := range items {
		switch it := it.(type) {
		case Field:
			if it.Rows != "" && !known(it.Rows) || it.Divides != "" && !known(it.Divides) {
				v.report("%s: %s: rows of %q, divides %q: no such column", in, it.Name, it.Rows, it.Divides)
			}
		case Check:
			if _, ok := fields[it.Field]; !ok {
				v.report("%s: a check of %s, which is not there", in, it.Field)
			}
			v.check(in, &it, known, fields)
		}
	}
	return columns
}

func (v *validation) check(in string, c *Check, known func(string) bool, fields map[string]Kind) {
	names := append([]string{}, c.OneOf...)
	names = append(names, identifier.FindAllString(c.Exactly, -1)...)
	if c.Only != nil {
		names = append(names, c.Only.Is)
		if c.Only.Times != "" {
			names = append(names, c.Only.Times)
		}
		if _, ok := fields[c.Only.Scalar]; !ok || !known(c.Only.Rows) {
			v.report("%s: %s: only with %s, rows of %s: no such field", in, c.Field, c.Only.Scalar, c.Only.Rows)
		}
	}
	for _, name := range names {
		if !v.names[name] {
			v.report("%s: %s: no constant %s", in, c.Field, name)
		}
	}
	if c.Within != "" && !known(c.Within) {
		v.report("%s: %s: within %s, which is no column", in, c.Field, c.Within)
	}
}
