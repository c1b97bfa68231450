package wire

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"reflect"
	"testing"

	"github.com/spliced-kv/spliced/policy/goldentest"
)

const goldenFile = "testdata/golden/frames.json"

// goldenFrame is one frame as other languages read it: bytes in hex, and the
// fields under their Go names. Hashes and byte columns are hex too.
type goldenFrame struct {
	Name   string         `json:"name"`
	Frame  string         `json:"frame"`
	Header map[string]any `json:"header"`
	Fields map[string]any `json:"fields"`
}

func TestGoldenFrames(t *testing.T) {
	file := goldentest.File(t, goldenFile, goldenFrames(t), "the samples encode to something else; run with -update and review the diff")
	var frames []goldenFrame
	must(t, json.Unmarshal(file, &frames))
	for _, f := range frames {
		checkGolden(t, f)
	}
}

// checkGolden decodes the stored bytes and encodes them again.
func checkGolden(t *testing.T, f goldenFrame) {
	t.Helper()
	frame, err := hex.DecodeString(f.Frame)
	must(t, err)
	h, body, err := ParseHeader(frame)
	if err != nil {
		t.Fatalf("%s: %v", f.Name, err)
	}
	if h.Code != OK {
		if again := AppendError(nil, &h, ErrorText(body)); !bytes.Equal(again, frame) {
			t.Errorf("%s: encodes to %x, want %x", f.Name, again, frame)
		}
		return
	}
	m, ok := New(h.Op, h.Kind)
	if !ok {
		t.Fatalf("%s: no message for op %d kind %d", f.Name, h.Op, h.Kind)
	}
	if err := m.Decode(body); err != nil {
		t.Fatalf("%s: %v", f.Name, err)
	}
	if again, err := AppendFrame(nil, &h, m); err != nil || !bytes.Equal(again, frame) {
		t.Errorf("%s: encodes to %x, %v, want %x", f.Name, again, err, frame)
	}
}

func goldenFrames(t *testing.T) []byte {
	t.Helper()
	var out []goldenFrame
	add := func(name string, h Header, frame []byte, fields map[string]any) {
		h.Version, h.Length = Version, uint32(len(frame)-HeaderBytes)
		out = append(out, goldenFrame{name, hex.EncodeToString(frame), plain(reflect.ValueOf(h)).(map[string]any), fields})
	}
	for _, op := range everyOp() {
		for _, kind := range []Kind{Request, Reply} {
			h := sampleHeader(op, kind)
			m := sample(op, kind)
			frame, err := AppendFrame(nil, &h, m)
			must(t, err)
			name := op.String() + map[Kind]string{Request: " request", Reply: " reply"}[kind]
			add(name, h, frame, plain(reflect.ValueOf(m).Elem()).(map[string]any))
		}
	}
	for _, whole := range withSections() {
		h := sampleHeader(whole.op, whole.kind)
		frame, err := AppendFrame(nil, &h, whole.m)
		must(t, err)
		add(whole.name, h, frame, plain(reflect.ValueOf(whole.m).Elem()).(map[string]any))
	}
	h := sampleHeader(OpMatch, Reply)
	h.Code = Stale
	text := "match: epoch 7 – want 8"
	add("error reply", h, AppendError(nil, &h, text), map[string]any{"Text": text})
	b, err := json.MarshalIndent(out, "", " ")
	must(t, err)
	return append(b, '\n')
}

// plain turns a message into maps, lists, numbers and texts; bytes become hex, and
// a section that is absent is left out.
func plain(v reflect.Value) any {
	switch v.Kind() {
	case reflect.Struct:
		m := map[string]any{}
		for i := range v.NumField() {
			if present := sectionPresent(v.Field(i)); !present.IsValid() || present.Bool() {
				m[v.Type().Field(i).Name] = plain(v.Field(i))
			}
		}
		return m
	case reflect.Slice, reflect.Array:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			b := make([]byte, v.Len())
			reflect.Copy(reflect.ValueOf(b), v)
			return hex.EncodeToString(b)
		}
		list := []any{}
		for i := range v.Len() {
			list = append(list, plain(v.Index(i)))
		}
		return list
	default:
		return v.Interface()
	}
}

// sectionPresent is the field that says whether v, when it is a section, is there.
func sectionPresent(v reflect.Value) reflect.Value {
	if v.Kind() != reflect.Struct {
		return reflect.Value{}
	}
	return v.FieldByName("Present")
}

// must ends a test at what has to work for it to go on. It costs a benchmark nothing.
func must(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}
