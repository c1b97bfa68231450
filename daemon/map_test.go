package daemon

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// docs/changing.md names files, folders and rows that exist.
func TestMapNamesWhatExists(t *testing.T) {
	text, err := os.ReadFile("../docs/changing.md")
	must(t, err)
	page := string(text)
	quoted, italic := regexp.MustCompile("`([^`]+)`"), regexp.MustCompile(`[^*]\*([^*]+)\*[^*]`)
	rows, names := 0, 0
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "| ") {
			rows++
		}
		folder := ""
		for _, m := range quoted.FindAllStringSubmatch(line, -1) {
			if strings.HasPrefix(m[1], "make ") || strings.HasPrefix(m[1], "go ") {
				continue
			}
			names++
			var found bool
			if folder, found = placeOnMap(folder, m[1]); !found {
				t.Errorf("the map names %s, which is not there:\n%.120s", m[1], line)
			}
		}
		for _, m := range italic.FindAllStringSubmatch(line, -1) {
			if !strings.Contains(page, "\n| "+m[1]+" |") && !strings.Contains(page, "\n| "+m[1]+",") {
				t.Errorf("the map has no row %q", m[1])
			}
		}
	}
	if rows < 12 || names < 3*rows {
		t.Fatalf("%d rows name %d places", rows, names)
	}
}

// placeOnMap finds what a name stands for after a name in the given folder, and returns its
// folder. A name is below the folder, the root of the repository, or the Python package.
func placeOnMap(folder, name string) (string, bool) {
	const python = "connector/python/"
	switch {
	case strings.HasPrefix(name, "spliced_connector"):
		name = python + "src/" + name
	case name == "tests", strings.HasPrefix(name, "tests/"):
		name = python + name
	}
	for _, place := range []string{path.Join(folder, name), name, python + "src/spliced_connector/" + name} {
		info, err := os.Stat(filepath.Join("..", place))
		switch {
		case err != nil:
		case info.IsDir():
			return place, true
		default:
			return path.Dir(place), true
		}
	}
	return folder, false
}
