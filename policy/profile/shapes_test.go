package profile

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Shapes that configs have been published in, and what is read of each: the
// fingerprint, or the fields that are refused. The Python readers take the same
// two files (connector/python/tests/test_profile_golden.py).
const (
	shapesFile       = "testdata/shapes.txt" // lines of a name and a config.json
	goldenShapesFile = "testdata/shapes.json"
)

func TestShapesOfConfigsAreReadAsRecorded(t *testing.T) {
	text, err := os.ReadFile(shapesFile)
	must(t, err)
	read := map[string]string{}
	for line := range strings.Lines(string(text)) {
		name, config, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		read[name] = readShape([]byte(config))
	}
	golden(t, goldenShapesFile, read)
}

func readShape(config []byte) string {
	id, err := FromConfig(config, ConfigOptions{Weights: [32]byte{1}})
	if err == nil {
		var p *Profile
		if p, err = New(id); err == nil {
			fp := p.Fingerprint()
			return hex.EncodeToString(fp[:])
		}
	}
	if DecodeConfig(config, &map[string]json.RawMessage{}) != nil {
		return "refused: not an object of JSON"
	}
	return "refused: " + strings.Join(refusedFields(err), ", ")
}

var firstWord = regexp.MustCompile(`^\w+`)

// refusedFields returns the fields that an error names, each once.
func refusedFields(err error) []string {
	_, text, _ := strings.Cut(err.Error(), ErrInvalid.Error()+": ")
	var fields []string
	for line := range strings.Lines(text) {
		fields = append(fields, firstWord.FindString(line))
	}
	slices.Sort(fields)
	return slices.Compact(fields)
}

func TestWordsOfPythonAreReadOutsideOfStringsOnly(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{`{"a":[0.0, Infinity]}`, `{"a":[0.0, {"__float__":"Infinity"}]}`},
		{`[-Infinity,NaN]`, `[{"__float__":"-Infinity"},{"__float__":"NaN"}]`},
		{`NaN`, `{"__float__":"NaN"}`},
		{`{"NaN":"Infinity","b":"\"-Infinity"}`, `{"NaN":"Infinity","b":"\"-Infinity"}`},
		{`{"a":"\\","b":NaN}`, `{"a":"\\","b":{"__float__":"NaN"}}`},
		{`{"a":-1e5,"b":null}`, `{"a":-1e5,"b":null}`},
		{`"`, `"`},
		{`"\`, `"\`},
		{``, ``},
	} {
		if got := string(quoteFloats([]byte(c.text))); got != c.want {
			t.Errorf("%s is read as %s, want %s", c.text, got, c.want)
		}
	}
}
