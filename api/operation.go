package api

import (
	"maps"
	"strings"
)

// operation describes a route for openapi.json, apart from its path and rights. Only the
// test that writes openapi.json reads it.
type operation struct {
	summary string
	details string // further sentences
	params  []parameter
	// anyQuery means that the handler ignores query parameters. A handler without anyQuery refuses
	// unknown query parameters with status 400.
	anyQuery bool

	body      any    // a value of the body's type; nil = no body
	bodyMedia string // "" = application/json

	result string            // description of a 200
	answer any               // a value of the type of a 200 in JSON; nil = see items and media
	items  any               // a value of the type of the items, if a 200 is a Page
	next   schema            // schema of Page.Next; nil = the listing always has a single page
	media  map[string]schema // further content types of a 200
	etag   bool              // a 200 has the header ETag

	// fails describes the statuses other than 200, except those that follow from the route's
	// rights. The body of such an answer is a value of failure's type, or a Problem if failure is
	// nil.
	fails   map[int]string
	failure any
}

// schema is a JSON Schema.
type schema = map[string]any

// parameter is a parameter of an operation: by default an optional one of the query.
type parameter struct {
	name   string
	schema schema
	about  string

	in       string // "" = query
	required bool
}

func oneOf(values []string) schema { return schema{"type": "string", "enum": values} }

// listOf is the schema of someOf: words separated by commas.
func listOf(values []string) schema {
	word := "(" + strings.Join(values, "|") + ")"
	return schema{"type": "string", "pattern": "^" + word + "(," + word + ")*$"}
}

func withDefault(s schema, value any) schema {
	s = maps.Clone(s)
	s["default"] = value
	return s
}
