package codegen

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"

	"github.com/spliced-kv/spliced/connector/wire/schema"
)

const notice = "Code generated from connector/wire/schema by wiregen; DO NOT EDIT."

var (
	wordEnd    = regexp.MustCompile(`([a-z0-9])([A-Z])`)
	acronymEnd = regexp.MustCompile(`([A-Z])([A-Z][a-z])`)
	identifier = regexp.MustCompile(`[A-Za-z]\w*`)
)

// wordsOf splits a Go name: AttachDeviceReply is attach, device, reply.
func wordsOf(name string) []string {
	name = strings.ReplaceAll(name, "IDs", "Ids")
	name = acronymEnd.ReplaceAllString(name, "$1 $2")
	name = wordEnd.ReplaceAllString(name, "$1 $2")
	return strings.Fields(strings.ToLower(name))
}

func snake(name string) string { return strings.Join(wordsOf(name), "_") }

func upper(name string) string { return strings.ToUpper(snake(name)) }

// dashed returns the form in which ops, codes and features are written: crc32-digests.
func dashed(name string) string { return strings.Join(wordsOf(name), "-") }

// messageName returns the name of a message in errors: attach-device request.
func messageName(name string) string {
	w := wordsOf(name)
	last := len(w) - 1
	return strings.Join(w[:last], "-") + " " + w[last]
}

// words returns the name of a field in errors and docs.
func words(f *schema.Field) string {
	if f.Words != "" {
		return f.Words
	}
	return strings.Join(wordsOf(strings.NewReplacer(".", " ", "[]", "").Replace(f.Name)), " ")
}

// pythonName returns the name of the field in the Python message.
func pythonName(f *schema.Field) string {
	name := cmp.Or(f.Python, strings.ReplaceAll(words(f), " ", "_"))
	if name == "from" {
		name += "_" // a keyword
	}
	return name
}

func opName(name string) string {
	var b strings.Builder
	for _, w := range strings.Split(name, "-") {
		b.WriteString(strings.ToUpper(w[:1]) + w[1:])
	}
	return "Op" + b.String()
}

// fieldOf returns the field with a Go name.
func fieldOf(items []schema.Item, name string) (*schema.Field, error) {
	for _, it := range items {
		if f, ok := it.(schema.Field); ok && f.Name == name {
			return &f, nil
		}
	}
	return nil, fmt.Errorf("no field %s", name)
}

// fieldsOf returns the fields among items, in order.
func fieldsOf(items []schema.Item) []schema.Field {
	var fields []schema.Field
	for _, it := range items {
		if f, ok := it.(schema.Field); ok {
			fields = append(fields, f)
		}
	}
	return fields
}

// table splits a name like Memory[].Layer into Memory and Layer; ok is false for other names.
func table(name string) (field, part string, ok bool) { return strings.Cut(name, "[].") }

// enum returns an enum of the description, which must exist.
func enum(p *schema.Protocol, name string) *schema.Enum {
	for i := range p.Enums {
		if p.Enums[i].Name == name {
			return &p.Enums[i]
		}
	}
	panic("codegen: no enum " + name)
}

func message(p *schema.Protocol, name string) *schema.Message {
	for i := range p.Messages {
		if p.Messages[i].Name == name {
			return &p.Messages[i]
		}
	}
	panic("codegen: no message " + name)
}

// body returns the items of a message: its own items, or those of the message named by Like.
func body(p *schema.Protocol, m *schema.Message) []schema.Item {
	if m.Like != "" {
		return message(p, m.Like).Body
	}
	return m.Body
}

// featureBit returns the number of a feature's bit.
func featureBit(p *schema.Protocol, name string) int {
	for _, v := range enum(p, "Feature").Values {
		if v.Name == name {
			for bit := range 64 {
				if v.Number == 1<<bit {
					return bit
				}
			}
		}
	}
	panic("codegen: no feature " + name)
}

// sizeOf returns the size and alignment of a scalar.
func sizeOf(k schema.Kind) (size, align int) {
	switch k {
	case schema.U8:
		return 1, 1
	case schema.U16:
		return 2, 2
	case schema.U32, schema.I32:
		return 4, 4
	case schema.Hash:
		return 32, 8
	default:
		return 8, 8
	}
}

// scalars returns the size of a body's scalars, and whether columns follow.
func scalars(items []schema.Item) (size int, columns bool) {
	for _, f := range fieldsOf(items) {
		if f.Kind.Column() {
			return size, true
		}
		n, align := sizeOf(f.Kind)
		size += -size&(align-1) + n
	}
	return size, false
}

// sentence returns text with an initial capital and a final full stop.
func sentence(text string) string {
	if text == "" {
		return ""
	}
	text = strings.ToUpper(text[:1]) + text[1:]
	if !strings.HasSuffix(text, ".") {
		text += "."
	}
	return text
}

// wrap breaks text into lines of at most width bytes.
func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for _, w := range strings.Fields(text) {
		switch {
		case line == "":
			line = w
		case len(line)+1+len(w) > width:
			lines = append(lines, line)
			line = w
		default:
			line += " " + w
		}
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}
