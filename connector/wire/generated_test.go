package wire_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/connector/wire/internal/codegen"
	"github.com/spliced-kv/spliced/connector/wire/schema"
)

const root = "../.."

// TestGeneratedFilesAreThoseOfTheSchema generates everything in memory, both
// codecs and the tables of docs/protocol.md, and compares.
func TestGeneratedFilesAreThoseOfTheSchema(t *testing.T) {
	files, err := codegen.Files(&schema.Wire, root)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		have, err := os.ReadFile(filepath.Join(root, f.Path))
		if err != nil {
			t.Error(err)
			continue
		}
		if !bytes.Equal(have, f.Data) {
			t.Errorf("%s is not what the schema says, from %s on: run go generate ./connector/wire", f.Path, firstDifference(have, f.Data))
		}
	}
}

// firstDifference is the first line of want that differs.
func firstDifference(have, want []byte) string {
	lines := strings.Split(string(have), "\n")
	for i, line := range strings.Split(string(want), "\n") {
		if i >= len(lines) || lines[i] != line {
			return line
		}
	}
	return "its end"
}
