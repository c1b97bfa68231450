// Package jsonschema derives the JSON Schemas of an OpenAPI document from Go types and their
// comments. Only a test of package api imports it, so no program contains it.
//
// The schemas describe what encoding/json writes:
//   - A struct is a closed object in components/schemas under its Go name.
//   - A property is required unless its tag has omitempty. Nothing may be null, so a pointer
//     needs omitempty, and owners of slices and maps write empty ones.
//   - Embedded structs add their properties to those of the outer struct.
//   - The first paragraph of a type's or field's comment is its description. Three kinds of words
//     in it are replaced: the name of another field by its JSON name, the name of an exported
//     constant by its value, and nil by the word absent. Leading words such as "Count is" are
//     cut from comments of fields.
//
// A type says next to its declaration what its Go type cannot express:
//   - The tag `enum:"a,b"` lists the values of a string or of a list's strings. `enum:"Level*"`
//     stands for the string constants whose names begin with Level, and adds their comments to
//     the description.
//   - The directive //openapi:pattern REGEXP is the pattern of a type that encodes as text.
//
// A type without a rule is an error.
package jsonschema

import (
	"encoding"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"
)

// Schemas collects the schemas of named types. It is used by one goroutine.
type Schemas struct {
	source *source
	pkg    string
	named  map[string]Object
}

// New reads the Go files of a folder, which declare the named types of package pkg.
func New(dir, pkg string) (*Schemas, error) {
	src, err := readSource(dir)
	if err != nil {
		return nil, err
	}
	return &Schemas{source: src, pkg: pkg, named: map[string]Object{}}, nil
}

// Components returns the schemas of all named types that were reached, by name.
func (s *Schemas) Components() Object {
	var all Object
	for _, name := range slices.Sorted(maps.Keys(s.named)) {
		all = all.With(name, s.named[name])
	}
	return all
}

// Add adds a component that no Go type describes.
func (s *Schemas) Add(name string, schema Object) { s.named[name] = schema }

// Ref returns a reference to a component.
func Ref(name string) Object { return Object{{"$ref", "#/components/schemas/" + name}} }

// Closed returns the schema of an object that has no other properties.
func Closed(properties Object, required []any) Object {
	return Object{{"type", "object"}, {"properties", properties}, {"required", required}, {"additionalProperties", false}}
}

// Of returns the schema of a type: a reference if the type has a name.
func (s *Schemas) Of(t reflect.Type) (Object, error) {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return Object{{"type", "string"}, {"format", "date-time"}}, nil
	case t.PkgPath() != "":
		return s.component(t)
	}
	switch kind := t.Kind(); kind {
	case reflect.Bool:
		return Object{{"type", "boolean"}}, nil
	case reflect.String:
		return Object{{"type", "string"}}, nil
	case reflect.Float32, reflect.Float64:
		return Object{{"type", "number"}}, nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return Object{{"type", "integer"}}, nil
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 { // encoding/json writes base64
			break
		}
		items, err := s.Of(t.Elem())
		return Object{{"type", "array"}, {"items", items}}, err
	case reflect.Map:
		return s.mapping(t)
	}
	return nil, fmt.Errorf("no rule for type %v", t)
}

func (s *Schemas) mapping(t reflect.Type) (Object, error) {
	if t.Key().Kind() != reflect.String {
		return nil, fmt.Errorf("no rule for type %v: its keys are not strings", t)
	}
	var values any = true // any JSON
	if t.Elem() != reflect.TypeFor[any]() {
		of, err := s.Of(t.Elem())
		if err != nil {
			return nil, err
		}
		values = of
	}
	return Object{{"type", "object"}, {"additionalProperties", values}}, nil
}

// component returns a reference to the schema of a named type, which it derives once.
func (s *Schemas) component(t reflect.Type) (Object, error) {
	name := t.Name()
	d := s.source.types[name] // nil for an instance of a generic type, too
	if d == nil || t.PkgPath() != s.pkg {
		return nil, fmt.Errorf("no rule for type %v: it is not declared in package %s", t, s.pkg)
	}
	if _, ok := s.named[name]; ok {
		return Ref(name), nil
	}
	s.named[name] = nil // a type may contain itself
	body, err := s.declared(t, d)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	s.named[name] = described(body, d.text)
	return Ref(name), nil
}

func (s *Schemas) declared(t reflect.Type, d *declaration) (Object, error) {
	switch {
	case t.Implements(reflect.TypeFor[json.Marshaler]()):
		return nil, fmt.Errorf("no rule for type %v, which encodes itself", t)
	case t.Implements(reflect.TypeFor[encoding.TextMarshaler]()):
		if d.pattern == "" {
			return nil, fmt.Errorf("type %v encodes as text and has no //openapi:pattern", t)
		}
		return Object{{"type", "string"}, {"pattern", d.pattern}}, nil
	case t.Kind() == reflect.Map:
		return s.mapping(t)
	case t.Kind() != reflect.Struct:
		return nil, fmt.Errorf("no rule for type %v of kind %v", t, t.Kind())
	}
	properties, required, err := s.fields(t, d)
	if err != nil {
		return nil, err
	}
	return Closed(properties, required), nil
}

// fields returns a struct's properties in the order of its fields, and the required ones.
func (s *Schemas) fields(t reflect.Type, d *declaration) (properties Object, required []any, err error) {
	required = []any{}
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Anonymous && f.Tag.Get("json") == "" {
			inner := s.source.types[f.Name]
			if inner == nil || f.Type.Kind() != reflect.Struct {
				return nil, nil, fmt.Errorf("%s: no rule for this embedded type", f.Name)
			}
			more, needed, err := s.fields(f.Type, inner)
			if err != nil {
				return nil, nil, fmt.Errorf("%s: %w", f.Name, err)
			}
			properties, required = append(properties, more...), append(required, needed...)
			continue
		}
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" && options == "" {
			continue
		}
		if name == "" || !f.IsExported() {
			return nil, nil, fmt.Errorf("%s: it has no JSON name", f.Name)
		}
		property, err := s.property(f, strings.Split(options, ","), d)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", f.Name, err)
		}
		properties = properties.With(name, property)
		if !slices.Contains(strings.Split(options, ","), "omitempty") {
			required = append(required, name)
		}
	}
	return properties, required, nil
}

func (s *Schemas) property(f reflect.StructField, options []string, d *declaration) (Object, error) {
	t, optional := f.Type, slices.Contains(options, "omitempty")
	for _, o := range options {
		if !slices.Contains([]string{"", "omitempty", "string"}, o) {
			return nil, fmt.Errorf("no rule for the option %s", o)
		}
	}
	switch {
	case t.Kind() == reflect.Pointer && !optional:
		return nil, fmt.Errorf("a pointer without omitempty could be null")
	case t.Kind() == reflect.Pointer:
		t = t.Elem()
	case optional && (t.Kind() == reflect.Struct || t.Kind() == reflect.Array):
		return nil, fmt.Errorf("encoding/json omits no %v; a pointer is needed", t.Kind())
	}
	schema, err := s.Of(t)
	if err != nil {
		return nil, err
	}
	if slices.Contains(options, "string") {
		schema = Object{{"type", "string"}}
	}
	text := d.fields[f.Name]
	if tag, ok := f.Tag.Lookup("enum"); ok {
		values, meanings, err := s.source.enum(tag)
		if err != nil {
			return nil, err
		}
		switch {
		case t.Kind() == reflect.String:
			schema = schema.With("enum", values)
		case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.String:
			schema = Object{{"type", "array"}, {"items", Object{{"type", "string"}, {"enum", values}}}}
		default:
			return nil, fmt.Errorf("type %v has a tag enum, which is for strings", t)
		}
		text = strings.Trim(text+"; "+meanings, "; ")
	}
	return described(schema, text), nil
}

func described(schema Object, text string) Object {
	if text == "" {
		return schema
	}
	return schema.With("description", text)
}
