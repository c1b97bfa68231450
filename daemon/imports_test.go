package daemon

import (
	"encoding/json"
	"go/build"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/spliced-kv/spliced/"

// mayImport is the import table: which of our folders a folder's packages may
// import. A folder is named by its longest prefix here; it may import itself and
// what lies below it. Tests may import more: they are not listed.
var mayImport = map[string][]string{
	"policy":            {"policy/profile"},
	"policy/profile":    {},
	"gpuipc":            {},
	"tiering":           {"policy", "policy/profile", "gpuipc"},
	"connector":         {"gpuipc", "policy/profile"},
	"api":               {"policy/profile"},
	"api/cmd/splicectl": {"api", "connector", "policy", "policy/profile", "gpuipc", "tiering"},
	"daemon/settings":   {"policy", "gpuipc", "tiering", "connector"},
	"daemon/socket":     {"connector", "daemon/settings"},
	"daemon/codes":      {"policy/profile", "gpuipc", "tiering", "connector"},
	"daemon/slots":      {"gpuipc", "connector", "daemon/codes"},
	"daemon/gpu":        {"gpuipc", "connector", "daemon/settings", "daemon/codes"},
	"daemon/canary":     {"policy/profile", "tiering", "connector", "api", "daemon/codes"},
	"daemon/server": {"policy", "policy/profile", "gpuipc", "tiering", "connector", "api",
		"daemon/settings", "daemon/socket", "daemon/codes", "daemon/slots", "daemon/gpu", "daemon/canary"},
	"daemon/view": {"policy", "policy/profile", "gpuipc", "tiering", "connector", "api",
		"daemon/settings", "daemon/codes", "daemon/gpu", "daemon/canary", "daemon/server"},
	"daemon": {"policy", "policy/profile", "gpuipc", "tiering", "connector", "api",
		"daemon/settings", "daemon/socket", "daemon/gpu", "daemon/canary", "daemon/server", "daemon/view"},
	"daemon/cmd/spliced": {"daemon", "daemon/settings"},
	"scripts":            {},
	"docker":             {},
}

// pureBans is what would make policy depend on more than its arguments.
var pureBans = []string{"sync", "sync/atomic", "os", "net", "context", "log", "log/slog", "syscall", "runtime", "os/exec", "io/fs",
	"math/rand", "math/rand/v2", "crypto/rand"}

type listed struct {
	ImportPath string
	Dir        string
	GoFiles    []string
	Imports    []string
}

// listPackages asks the go command, so that build constraints count as they do
// in a build.
func listPackages(t *testing.T) []listed {
	t.Helper()
	command := exec.Command("go", "list", "-e", "-json=ImportPath,Dir,GoFiles,Imports", module+"...")
	command.Stderr = os.Stderr
	out, err := command.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var packages []listed
	for d := json.NewDecoder(strings.NewReader(string(out))); d.More(); {
		var p listed
		if err := d.Decode(&p); err != nil {
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
	if len(packages) < 5 {
		t.Fatalf("go list found %d packages", len(packages))
	}
	return packages
}

// folderOf is the row of the table for a package.
func folderOf(pkg string) (string, bool) {
	rel := strings.TrimPrefix(pkg, module)
	for dir := rel; dir != "."; dir = path.Dir(dir) {
		if _, ok := mayImport[dir]; ok {
			return dir, true
		}
	}
	return "", false
}

func TestImportsFollowTheTable(t *testing.T) {
	for _, p := range listPackages(t) {
		from, ok := folderOf(p.ImportPath)
		if !ok {
			t.Errorf("%s is in no folder of the table", p.ImportPath)
			continue
		}
		for _, imported := range p.Imports {
			if !strings.HasPrefix(imported, module) {
				continue
			}
			to, ok := folderOf(imported)
			if !ok || to != from && !slices.Contains(mayImport[from], to) {
				t.Errorf("%s imports %s: %s may import %v", p.ImportPath, imported, from, mayImport[from])
			}
		}
	}
}

func TestNothingImportsDaemon(t *testing.T) {
	for _, p := range listPackages(t) {
		for _, imported := range p.Imports {
			switch inside := strings.HasPrefix(p.ImportPath, module+"daemon"); {
			case imported == module+"daemon" && p.ImportPath != module+"daemon/cmd/spliced",
				strings.HasPrefix(imported, module+"daemon/") && !inside:
				t.Errorf("%s imports %s", p.ImportPath, imported)
			}
		}
	}
}

func TestPolicyIsPure(t *testing.T) {
	for _, p := range listPackages(t) {
		if from, _ := folderOf(p.ImportPath); !strings.HasPrefix(from, "policy") || harness(p.ImportPath) {
			continue
		}
		for _, imported := range p.Imports {
			first, _, _ := strings.Cut(imported, "/")
			if slices.Contains(pureBans, imported) || strings.Contains(first, ".") && !strings.HasPrefix(imported, module) {
				t.Errorf("%s imports %s: policy has no locks, clock, I/O, chance or logger", p.ImportPath, imported)
			}
		}
		for _, name := range p.GoFiles {
			source, err := os.ReadFile(path.Join(p.Dir, name))
			if err != nil {
				t.Fatal(err)
			}
			for _, banned := range []string{"time.Now(", "time.Since(", "time.After", "time.Sleep(", "time.NewT", "\tgo func", "make(chan "} {
				if strings.Contains(string(source), banned) {
					t.Errorf("%s/%s has %q: policy is given the time and starts nothing", p.ImportPath, name, banned)
				}
			}
		}
	}
}

// harness reports packages that hold tests for several implementations.
func harness(pkg string) bool { return strings.HasSuffix(pkg, "test") }

func TestHarnessesAreForTestsOnly(t *testing.T) {
	for _, p := range listPackages(t) {
		for _, imported := range p.Imports {
			if strings.HasPrefix(imported, module) && harness(imported) && !harness(p.ImportPath) {
				t.Errorf("%s imports %s outside of its tests", p.ImportPath, imported)
			}
		}
	}
}

// A cgo import would end the static binary.
func TestNothingUsesCgo(t *testing.T) {
	if !build.Default.CgoEnabled {
		t.Log("cgo is off here: files that need it are not listed")
	}
	for _, p := range listPackages(t) {
		if slices.Contains(p.Imports, "C") {
			t.Errorf("%s uses cgo", p.ImportPath)
		}
	}
}
