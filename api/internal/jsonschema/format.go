package jsonschema

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Object is a JSON object whose members keep their order.
type Object []Member

// Member is a member of an Object. Its value is an Object, a map[string]any, a []any, a
// []string, or plain data.
type Member struct {
	Key   string
	Value any
}

// With appends a member.
func (o Object) With(key string, value any) Object { return append(o, Member{key, value}) }

// width is the length of the longest line that Format joins: most properties take one line.
const width = 200

// Format returns JSON text in which each object and array that fits takes one line.
func Format(o Object) ([]byte, error) {
	var b bytes.Buffer
	err := write(&b, 0, 0, o)
	b.WriteByte('\n')
	return b.Bytes(), err
}

// write appends a value. The parameter used is the number of characters before it in its line.
func write(b *bytes.Buffer, depth, used int, v any) error {
	var flat bytes.Buffer
	if err := compact(&flat, v); err != nil {
		return err
	}
	members, opening, closing := parts(v)
	if used+flat.Len() <= width || len(members) == 0 {
		b.Write(flat.Bytes())
		return nil
	}
	indent := "\n" + strings.Repeat(" ", depth+1)
	b.WriteString(opening)
	for i, m := range members {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(indent)
		before := b.Len()
		if opening == "{" {
			if err := scalar(b, m.Key); err != nil {
				return err
			}
			b.WriteString(": ")
		}
		if err := write(b, depth+1, depth+1+b.Len()-before, m.Value); err != nil {
			return err
		}
	}
	b.WriteString(indent[:len(indent)-1] + closing)
	return nil
}

func compact(b *bytes.Buffer, v any) error {
	members, opening, closing := parts(v)
	if opening == "" {
		return scalar(b, v)
	}
	b.WriteString(opening)
	for i, m := range members {
		if i > 0 {
			b.WriteString(", ")
		}
		if opening == "{" {
			if err := scalar(b, m.Key); err != nil {
				return err
			}
			b.WriteString(": ")
		}
		if err := compact(b, m.Value); err != nil {
			return err
		}
	}
	b.WriteString(closing)
	return nil
}

// parts returns the members of an object or array, and its brackets.
func parts(v any) (members []Member, opening, closing string) {
	switch v := v.(type) {
	case Object:
		return v, "{", "}"
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			members = append(members, Member{key, v[key]})
		}
		return members, "{", "}"
	case []any:
		for _, item := range v {
			members = append(members, Member{"", item})
		}
		return members, "[", "]"
	case []string:
		for _, item := range v {
			members = append(members, Member{"", item})
		}
		return members, "[", "]"
	}
	return nil, "", ""
}

func scalar(b *bytes.Buffer, v any) error {
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("encode %T: %w", v, err)
	}
	b.Truncate(b.Len() - 1) // the encoder's newline
	return nil
}
