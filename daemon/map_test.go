package daemon

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The table "to change something, begin here" of docs/architecture.md names places
// that exist.
func TestMapNamesWhatExists(t *testing.T) {
	page, err := os.ReadFile("../docs/architecture.md")
	must(t, err)
	_, after, found := strings.Cut(string(page), "<!-- begin-at -->")
	table, _, closed := strings.Cut(after, "<!-- end -->")
	if !found || !closed {
		t.Fatal("the table is not between its marks")
	}
	rows := strings.Count(table, "\n| ") - 1 // without the heading
	names := regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(table, -1)
	if rows < 12 || len(names) < 3*rows {
		t.Fatalf("%d rows name %d places", rows, len(names))
	}
	for _, name := range names {
		if strings.HasPrefix(name[1], "make ") || strings.HasPrefix(name[1], "go ") {
			continue
		}
		if _, err := os.Stat(filepath.Join("..", name[1])); err != nil {
			t.Errorf("the map names %s: %v", name[1], err)
		}
	}
}
