package jsonschema

import (
	"math/big"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"
)

// Sizes of a Sample.
const (
	SizeSmall = "small" // at most MaxItems
	SizeLarge = "large"
	Sized     = "not a size"
)

const MaxItems = 1 << 4

//openapi:pattern ^[0-9a-f]{4}$
type ID [2]byte

func (ID) MarshalText() ([]byte, error) { return []byte("0000"), nil }

// Inner is part of others. It names Count.
type Inner struct {
	Count int `json:"count_of_items"` // at most MaxItems
}

// Sample has a field of each kind.
// Its Text may be empty.
//
// This is for readers of Go.
type Sample struct {
	Inner
	Text  string    `json:"text"`
	Flag  bool      `json:"flag"`
	Ratio float64   `json:"ratio"`
	Big   uint64    `json:"big,string"`
	At    time.Time `json:"at"`
	Size  string    `json:"size" enum:"Size*"`               // how large
	Words []string  `json:"words,omitempty" enum:",one,two"` // empty = none
	// Maybe is a number. Maybe the ID says more.
	Maybe  *int               `json:"maybe,omitempty"` // nil = unknown
	Until  *time.Time         `json:"until,omitempty"` // Until means the end
	ID     ID                 `json:"id"`
	Parent *Sample            `json:"parent,omitempty"` // see Text
	List   []Inner            `json:"list"`
	Matrix map[string][]int64 `json:"matrix"`
	Any    map[string]any     `json:"any"`
	Secret string             `json:"-"`
}

func schemasHere(t *testing.T) *Schemas {
	t.Helper()
	s, err := New(".", reflect.TypeFor[Sample]().PkgPath())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSchemasFollowFromTypesTagsAndComments(t *testing.T) {
	s := schemasHere(t)
	ref, err := s.Of(reflect.TypeFor[Sample]())
	if err != nil {
		t.Fatal(err)
	}
	got, err := Format(s.Components().With("asked", ref))
	if err != nil {
		t.Fatal(err)
	}
	const want = `{
 "ID": {"type": "string", "pattern": "^[0-9a-f]{4}$"},
 "Inner": {
  "type": "object",
  "properties": {"count_of_items": {"type": "integer", "description": "at most 16"}},
  "required": ["count_of_items"],
  "additionalProperties": false,
  "description": "Inner is part of others. It names count_of_items."
 },
 "Sample": {
  "type": "object",
  "properties": {
   "count_of_items": {"type": "integer", "description": "at most 16"},
   "text": {"type": "string"},
   "flag": {"type": "boolean"},
   "ratio": {"type": "number"},
   "big": {"type": "string"},
   "at": {"type": "string", "format": "date-time"},
   "size": {"type": "string", "enum": ["small", "large"], "description": "how large; small: at most 16"},
   "words": {"type": "array", "items": {"type": "string", "enum": ["", "one", "two"]}, "description": "empty = none"},
   "maybe": {"type": "integer", "description": "a number. Maybe the id says more. absent = unknown"},
   "until": {"type": "string", "format": "date-time", "description": "until means the end"},
   "id": {"$ref": "#/components/schemas/ID"},
   "parent": {"$ref": "#/components/schemas/Sample", "description": "see text"},
   "list": {"type": "array", "items": {"$ref": "#/components/schemas/Inner"}},
   "matrix": {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "integer"}}},
   "any": {"type": "object", "additionalProperties": true}
  },
  "required": ["count_of_items", "text", "flag", "ratio", "big", "at", "size", "id", "list", "matrix", "any"],
  "additionalProperties": false,
  "description": "Sample has a field of each kind. Its text may be empty."
 },
 "asked": {"$ref": "#/components/schemas/Sample"}
}
`
	if string(got) != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

type (
	Word           string
	SelfMade       struct{}
	Unpatterned    struct{}
	Generic[T any] struct {
		Of T `json:"of"`
	}
	NullPointer struct {
		P *int `json:"p"`
	}
	KeptStruct struct {
		S Inner `json:"s,omitempty"`
	}
	KeptArray struct {
		A ID `json:"a,omitempty"`
	}
	NullElement struct {
		L []*Inner `json:"l"`
	}
	Bytes struct {
		B []byte `json:"b"`
	}
	Interface struct {
		I any `json:"i"`
	}
	Nameless struct{ N int }
	IntKeys  struct {
		M map[int]string `json:"m"`
	}
	EnumOfInts struct {
		E int `json:"e" enum:"1,2"`
	}
	UnknownEnum struct {
		E string `json:"e" enum:"Colour*"`
	}
	ZeroOmitted struct {
		Z time.Time `json:"z,omitzero"`
	}
	EmbedPointer struct{ *Inner }
	EmbedForeign struct{ url.URL }
)

func (SelfMade) MarshalJSON() ([]byte, error)    { return []byte("1"), nil }
func (Unpatterned) MarshalText() ([]byte, error) { return nil, nil }

func TestTypesWithoutARuleAreRefused(t *testing.T) {
	for _, c := range []struct {
		of   reflect.Type
		want string
	}{
		{reflect.TypeFor[Word](), "no rule for type jsonschema.Word of kind string"},
		{reflect.TypeFor[SelfMade](), "encodes itself"},
		{reflect.TypeFor[Unpatterned](), "no //openapi:pattern"},
		{reflect.TypeFor[Generic[int]](), "not declared in package"},
		{reflect.TypeFor[big.Int](), "not declared in package"},
		{reflect.TypeFor[*Inner](), "no rule for type *jsonschema.Inner"},
		{reflect.TypeFor[chan int](), "no rule for type chan int"},
		{reflect.TypeFor[NullPointer](), "NullPointer: P: a pointer without omitempty could be null"},
		{reflect.TypeFor[KeptStruct](), "KeptStruct: S: encoding/json omits no struct"},
		{reflect.TypeFor[KeptArray](), "KeptArray: A: encoding/json omits no array"},
		{reflect.TypeFor[NullElement](), "NullElement: L: no rule for type *jsonschema.Inner"},
		{reflect.TypeFor[Bytes](), "Bytes: B: no rule for type []uint8"},
		{reflect.TypeFor[Interface](), "Interface: I: no rule for type interface {}"},
		{reflect.TypeFor[Nameless](), "Nameless: N: it has no JSON name"},
		{reflect.TypeFor[IntKeys](), "its keys are not strings"},
		{reflect.TypeFor[EnumOfInts](), "E: type int has a tag enum"},
		{reflect.TypeFor[UnknownEnum](), "E: no constants are named Colour*"},
		{reflect.TypeFor[ZeroOmitted](), "Z: no rule for the option omitzero"},
		{reflect.TypeFor[EmbedPointer](), "Inner: no rule for this embedded type"},
		{reflect.TypeFor[EmbedForeign](), "URL: no rule for this embedded type"},
	} {
		if _, err := schemasHere(t).Of(c.of); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", c.of, err, c.want)
		}
	}
}

func TestFormatKeepsOrderAndBreaksLongLines(t *testing.T) {
	long := strings.Repeat("x", width)
	got, err := Format(Object{}.With("b", map[string]any{"z": 1, "a": []any{}}).With("a", []string{"<&>"}).With("c", []any{long, true}))
	if err != nil {
		t.Fatal(err)
	}
	want := `{
 "b": {"a": [], "z": 1},
 "a": ["<&>"],
 "c": [
  "` + long + `",
  true
 ]
}
`
	if string(got) != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	if _, err := Format(Object{}.With("f", func() {})); err == nil {
		t.Error("a function was formatted")
	}
}
