package daemon

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	fenced  = regexp.MustCompile("(?s)```.*?```")
	heading = regexp.MustCompile(`(?m)^#+ +(.*)$`)
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	linked  = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	anchor  = regexp.MustCompile(`<a (?:id|name)="([^"]+)"`)
	dropped = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// page is a Markdown file without its code blocks, and the anchors that links may name.
type page struct {
	text    string
	anchors map[string]bool
}

func readPage(t *testing.T, path string) page {
	t.Helper()
	raw, err := os.ReadFile(path)
	must(t, err)
	p := page{fenced.ReplaceAllString(string(raw), ""), map[string]bool{}}
	for _, h := range heading.FindAllStringSubmatch(p.text, -1) {
		title := strings.ToLower(linked.ReplaceAllString(h[1], "$1"))
		p.anchors[strings.ReplaceAll(dropped.ReplaceAllString(title, ""), " ", "-")] = true
	}
	for _, a := range anchor.FindAllStringSubmatch(p.text, -1) {
		p.anchors[a[1]] = true
	}
	return p
}

// Links of all pages name files and headings that exist.
func TestLinksOfPagesLeadSomewhere(t *testing.T) {
	pages := map[string]page{}
	for _, root := range []string{"../README.md", "../CONTRIBUTING.md", "../SECURITY.md", "../docs", "../connector", "../docker", "../scripts"} {
		err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
			if err == nil && strings.HasSuffix(path, ".md") {
				pages[path] = readPage(t, path)
			}
			return err
		})
		must(t, err)
	}
	links := 0
	for path, p := range pages {
		for _, l := range link.FindAllStringSubmatch(p.text, -1) {
			if strings.Contains(l[1], "://") || strings.HasPrefix(l[1], "mailto:") {
				continue
			}
			links++
			file, name, _ := strings.Cut(l[1], "#")
			target := path
			if file != "" {
				target = filepath.Join(filepath.Dir(path), file)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s, which does not exist", path, l[1])
			} else if of, is := pages[target]; name != "" && is && !of.anchors[name] {
				t.Errorf("%s links to %s, and %s has no such heading", path, l[1], target)
			}
		}
	}
	if links < 100 {
		t.Errorf("only %d links were found in %d pages", links, len(pages))
	}
}
