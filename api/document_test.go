package api

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/api/internal/jsonschema"
	"github.com/spliced-kv/spliced/policy/goldentest"
)

// openapi.json follows from the routes and from the types of requests and answers.
func TestDocumentIsGenerated(t *testing.T) {
	made, err := generated(allRoutes())
	must(t, err)
	goldentest.File(t, "openapi.json", made, "the routes, the types or their comments differ; run make generate")
}

type object = jsonschema.Object

// documenter generates the OpenAPI document.
type documenter struct{ schemas *jsonschema.Schemas }

func generated(routes []route) ([]byte, error) {
	schemas, err := jsonschema.New(".", reflect.TypeFor[Problem]().PkgPath())
	if err != nil {
		return nil, err
	}
	d := documenter{schemas}
	var paths object
	at := map[string]int{} // of a path in paths
	for _, r := range routes {
		op, err := d.operation(r)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.id, err)
		}
		i, ok := at[r.path]
		if !ok {
			i, at[r.path] = len(paths), len(paths)
			paths = paths.With(r.path, object{})
		}
		paths[i].Value = paths[i].Value.(object).With(strings.ToLower(r.method), op)
	}
	return jsonschema.Format(object{}.With("openapi", "3.1.0").
		With("info", schema{
			"title": "spliced admin API", "version": "1", "summary": "State and contents of a spliced node", "description": about,
			"license": schema{"name": "Apache-2.0", "identifier": "Apache-2.0"},
		}).
		With("servers", []any{schema{"url": "/"}}).
		With("paths", paths).
		With("components", schema{
			"securitySchemes": schema{"bearer": schema{"type": "http", "scheme": "bearer"}},
			"schemas":         schemas.Components(),
		}))
}

// about describes the whole API.
const about = "For operators and scripts; engines use the socket protocol. The answer to an unknown path, method or parameter is a problem (RFC 9457). " +
	"Over TCP, a request whose Host or Origin belongs to another site is answered 403; probes and metrics are served for any Host. " +
	"Over TCP, probes and this document need no token, and metrics need one only if a token for reading is set. " +
	"All other requests need a bearer token: the token for reading permits reads, the token for changes permits everything. " +
	"Over loopback, reads need no token while none is set."

func (d documenter) operation(r route) (op object, err error) {
	add := func(key string, value any) { op = op.With(key, value) }
	add("operationId", r.id)
	add("summary", r.doc.summary)
	if text := strings.TrimSpace(r.doc.details + " " + rights[r.needs].details); text != "" {
		add("description", text)
	}
	add("security", rights[r.needs].security)
	var parameters []any
	for _, p := range r.doc.params {
		parameters = append(parameters, object{}.With("name", p.name).With("in", cmp.Or(p.in, "query")).With("required", p.required).With("schema", p.schema).With("description", p.about))
	}
	if parameters != nil {
		add("parameters", parameters)
	}
	if r.doc.body != nil {
		body, err := d.schemas.Of(reflect.TypeOf(r.doc.body))
		if err != nil {
			return nil, err
		}
		add("requestBody", schema{"required": true, "content": content(cmp.Or(r.doc.bodyMedia, "application/json"), body)})
	}
	responses, err := d.responses(r)
	add("responses", responses)
	return op, err
}

// rights is what each access means in the document.
var rights = [...]struct {
	details  string
	security []any
	fails    map[int]string
}{
	open:    {security: []any{}},
	scrapes: {security: optional, fails: map[int]string{401: badToken}},
	reads:   {security: optional, fails: map[int]string{401: badToken, 403: "this listener does not serve it without a token"}},
	asks: {
		details:  "Over TCP it needs the bearer token for routers or the one for changes; over the admin unix socket none.",
		security: optional, fails: map[int]string{401: badToken, 403: "this listener does not serve it"},
	},
	changes: {
		details:  "Over TCP it needs the bearer token for changes; over the admin unix socket none.",
		security: optional, fails: map[int]string{401: badToken, 403: "this listener is read-only"},
	},
}

const badToken = "the token is missing or wrong"

// optional: the unix socket never needs the token.
var optional = []any{schema{}, schema{"bearer": []any{}}}

func content(media string, of any) object { return object{}.With(media, schema{"schema": of}) }

func (d documenter) responses(r route) (all object, err error) {
	good, err := d.good(r.doc)
	if err != nil {
		return nil, err
	}
	all = object{}.With("200", good)
	fails := map[int]string{}
	if !r.doc.anyQuery {
		fails[400] = "bad parameters; the problem names all of them"
	}
	maps.Copy(fails, rights[r.needs].fails)
	maps.Copy(fails, r.doc.fails)
	for _, status := range slices.Sorted(maps.Keys(fails)) {
		var failure any = Problem{}
		media := "application/problem+json"
		if _, ok := r.doc.fails[status]; ok && r.doc.failure != nil {
			failure, media = r.doc.failure, "application/json"
		}
		s, err := d.schemas.Of(reflect.TypeOf(failure))
		if err != nil {
			return nil, err
		}
		all = all.With(strconv.Itoa(status), schema{"description": fails[status], "content": content(media, s)})
	}
	return all, nil
}

// good is the response 200.
func (d documenter) good(o operation) (object, error) {
	var media object
	switch {
	case o.items != nil:
		page, err := d.page(reflect.TypeOf(o.items), o.next)
		if err != nil {
			return nil, err
		}
		media = content("application/json", page)
	case o.answer != nil:
		s, err := d.schemas.Of(reflect.TypeOf(o.answer))
		if err != nil {
			return nil, err
		}
		media = content("application/json", s)
	}
	for _, name := range slices.Sorted(maps.Keys(o.media)) {
		media = append(media, content(name, o.media[name])...)
	}
	if media == nil {
		return nil, fmt.Errorf("it has no answer")
	}
	response := object{}.With("description", cmp.Or(o.result, "success"))
	if o.etag {
		tag := schema{"description": "the version of the configuration", "required": true, "schema": schema{"type": "string"}}
		response = response.With("headers", schema{"ETag": tag})
	}
	return response.With("content", media), nil
}

// page is the schema of Page[T], which has a name and a type of Next per listing.
func (d documenter) page(item reflect.Type, next schema) (object, error) {
	items, err := d.schemas.Of(item)
	if err != nil {
		return nil, err
	}
	properties := object{}.With("items", schema{"type": "array", "items": items})
	if next != nil {
		next = maps.Clone(next)
		next["description"] = "cursor of the next page; absent on the last one"
		properties = properties.With("next", next)
	}
	d.schemas.Add(item.Name()+"Page", jsonschema.Closed(properties, []any{"items"}))
	return jsonschema.Ref(item.Name() + "Page"), nil
}
