package driver

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/policy/goldentest"
)

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
	_, tail, ends := strings.Cut(rest, to)
	if !ok || !ends {
		t.Fatalf("%s: no %q and %q", page, from, to)
	}
	goldentest.File(t, page, []byte(head+from+remedies()+to+tail),
		"this is not the table of this package; go test ./gpuipc/cuda/driver -update")
}
