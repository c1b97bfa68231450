package api

import (
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"
)

// checker validates JSON against the part of JSON Schema that openapi.json uses.
// It refuses keywords it does not know, so that the document cannot promise
// something that is not checked. seen gathers the properties that occurred.
type checker struct {
	schemas map[string]any
	seen    map[string]bool // "Schema.property"
}

func (c *checker) check(at string, schema map[string]any, v any) error {
	if ref, ok := schema["$ref"].(string); ok {
		name := strings.TrimPrefix(ref, "#/components/schemas/")
		target, ok := c.schemas[name].(map[string]any)
		if !ok {
			return fmt.Errorf("%s: %s leads nowhere", at, ref)
		}
		return c.check(name, target, v)
	}
	for keyword := range schema {
		known := []string{"type", "description", "properties", "required", "additionalProperties", "items", "enum", "pattern", "format"}
		if !slices.Contains(known, keyword) {
			return fmt.Errorf("%s: keyword %q is not checked by this test", at, keyword)
		}
	}
	switch schema["type"] {
	case "object":
		return c.object(at, schema, v)
	case "array":
		list, ok := v.([]any)
		if !ok {
			return fmt.Errorf("%s: %T is not an array", at, v)
		}
		for i, item := range list {
			if err := c.check(fmt.Sprintf("%s[%d]", at, i), schema["items"].(map[string]any), item); err != nil {
				return err
			}
		}
		return nil
	case "string":
		return checkString(at, schema, v)
	case "integer", "number":
		n, ok := v.(float64)
		if !ok || schema["type"] == "integer" && n != math.Trunc(n) {
			return fmt.Errorf("%s: %v is not of type %v", at, v, schema["type"])
		}
		return nil
	case "boolean":
		if _, ok := v.(bool); !ok {
			return fmt.Errorf("%s: %T is not a boolean", at, v)
		}
		return nil
	}
	return fmt.Errorf("%s: type %v is not checked by this test", at, schema["type"])
}

func (c *checker) object(at string, schema map[string]any, v any) error {
	m, ok := v.(map[string]any)
	if !ok {
		return fmt.Errorf("%s: %T is not an object", at, v)
	}
	properties, closed := schema["properties"].(map[string]any)
	if each, ok := schema["additionalProperties"].(map[string]any); ok {
		for _, name := range slices.Sorted(maps.Keys(m)) {
			if err := c.check(at+"."+name, each, m[name]); err != nil {
				return err
			}
		}
		return nil
	}
	if !closed {
		return nil // a free object, such as the document itself
	}
	for _, name := range schema["required"].([]any) {
		if _, ok := m[name.(string)]; !ok {
			return fmt.Errorf("%s: %v is missing", at, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m)) {
		property, ok := properties[name].(map[string]any)
		if !ok {
			return fmt.Errorf("%s: %s is not in the document", at, name)
		}
		c.seen[at+"."+name] = true
		if err := c.check(at+"."+name, property, m[name]); err != nil {
			return err
		}
	}
	return nil
}

func checkString(at string, schema map[string]any, v any) error {
	s, ok := v.(string)
	if !ok {
		return fmt.Errorf("%s: %T is not a string", at, v)
	}
	if pattern, ok := schema["pattern"].(string); ok && !regexp.MustCompile(pattern).MatchString(s) {
		return fmt.Errorf("%s: %q does not match %s", at, s, pattern)
	}
	if enum, ok := schema["enum"].([]any); ok && !slices.Contains(enum, any(s)) {
		return fmt.Errorf("%s: %q is none of %v", at, s, enum)
	}
	if schema["format"] == "date-time" {
		if _, err := time.Parse(time.RFC3339, s); err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
	}
	return nil
}
