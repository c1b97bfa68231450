package driver

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the table of docs/gpu.md")

// remedies is the table as the page has it.
func remedies() string {
	var b strings.Builder
	b.WriteString("| code | name | what to do |\n|---|---|---|\n")
	for _, r := range slices.Sorted(maps.Keys(results)) {
		if text := r.Remedy(); text != "" {
			fmt.Fprintf(&b, "| %d | `%s` | %s |\n", int32(r), r.Name(), text)
		}
	}
	return b.String()
}

func TestThePageHasTheRemedies(t *testing.T) {
	const page, from, to = "../../../docs/gpu.md", "<!-- results -->\n", "<!-- /results -->"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(text), from)
	table, tail, ends := strings.Cut(rest, to)
	if !ok || !ends {
		t.Fatalf("%s: no %q and %q", page, from, to)
	}
	if *update {
		if err := os.WriteFile(page, []byte(head+from+remedies()+to+tail), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if table != remedies() {
		t.Errorf("%s is not the table of this package; go test ./gpuipc/cuda/driver -update", page)
	}
}
