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

// mayImport is the import table: which of our packages each package may import, by
// name, or name/... for one and what lies below it. Tests may import more: they are
// not listed. A package that is not in the table fails, as does a row without one.
var mayImport = map[string]string{
	"policy":                     "",
	"policy/coding":              "",
	"policy/errkind":             "",
	"policy/profile":             "policy/coding",
	"policy/profile/profiletest": "policy/profile",
	"policy/checkpoint":          "",
	"policy/cost":                "policy/profile",
	"policy/radix":               "",
	"policy/schedule":            "policy/cost",
	"policy/policytest":          "policy",
	"policy/goldentest":          "",
	"policy/scripttest":          "policy/goldentest",
	"policy/tracetest":           "",

	"gpuipc/kernel":                "",
	"gpuipc":                       "gpuipc/kernel policy/errkind",
	"gpuipc/gpuipctest":            "gpuipc gpuipc/kernel",
	"gpuipc/cuda/driver":           "gpuipc policy/errkind",
	"gpuipc/cuda/order":            "gpuipc gpuipc/cuda/driver",
	"gpuipc/cuda/kernels":          "gpuipc gpuipc/kernel",
	"gpuipc/cuda/internal/bounded": "gpuipc",
	"gpuipc/cuda":                  "gpuipc gpuipc/cuda/driver gpuipc/cuda/kernels gpuipc/cuda/order gpuipc/cuda/internal/...",
	"gpuipc/cuda/fakecuda":         "",
	"gpuipc/cuda/fakecuda/build":   "gpuipc/cuda/fakecuda",

	"tiering/metric":            "",
	"tiering/tier":              "gpuipc policy/errkind policy/profile",
	"tiering/internal/deadline": "",
	"tiering/internal/index":    "",
	"tiering/internal/lockhold": "",
	"tiering/internal/ghost":    "tiering/tier tiering/internal/index",
	"tiering/find":              "policy/profile tiering/tier",
	"tiering/held":              "policy/profile tiering/tier",
	"tiering/transfer":          "tiering/tier",
	"tiering/peer":              "gpuipc policy/coding policy/profile tiering tiering/tier tiering/metric tiering/peer/index",
	"tiering/peer/index":        "",
	"tiering/plan":              "gpuipc policy/profile tiering/tier",
	"tiering/costs":             "policy/cost policy/profile tiering/tier",
	"tiering/decision":          "policy/cost tiering/tier",
	"tiering/advise":            "policy/... tiering/tier tiering/costs tiering/decision tiering/metric",
	"tiering/disk/codec":        "gpuipc/kernel",
	"tiering/disk/slab":         "tiering/tier",
	"tiering/disk/extent":       "policy/coding policy/profile tiering/tier tiering/disk/slab",
	"tiering/disk/catalog":      "policy/profile tiering/tier tiering/disk/slab tiering/disk/extent",
	"tiering/disk/payload":      "gpuipc/... policy/profile tiering/tier tiering/disk/slab tiering/disk/extent tiering/disk/catalog tiering/disk/codec",
	"tiering/disk/volume":       "policy/errkind policy/profile tiering/tier tiering/disk/slab tiering/disk/catalog tiering/disk/extent",
	"tiering/disk/offline":      "policy/profile tiering/tier tiering/disk/...",
	"tiering/disk":              "gpuipc policy policy/profile tiering/tier tiering/metric tiering/find tiering/held tiering/internal/lockhold tiering/disk/...",
	"tiering/object":            "gpuipc policy/profile tiering/tier tiering/metric tiering/disk/catalog tiering/disk/extent tiering/disk/payload tiering/disk/slab",
	"tiering/object/objecttest": "tiering/tiertest",
	"tiering/stats":             "tiering/tier tiering/metric tiering/plan tiering/transfer",
	"tiering/internal/objects": "gpuipc policy policy/cost policy/profile tiering/tier tiering/plan tiering/costs tiering/decision tiering/stats tiering/find tiering/held " +
		"tiering/internal/deadline tiering/internal/ghost tiering/internal/index",
	"tiering/hbm": "gpuipc policy/errkind policy/profile tiering/tier tiering/decision tiering/plan tiering/stats tiering/transfer tiering/internal/objects tiering/internal/lockhold",
	"tiering/internal/catalog": "gpuipc policy policy/cost policy/profile tiering/tier tiering/metric tiering/plan tiering/decision tiering/advise tiering/costs tiering/stats tiering/find tiering/held " +
		"tiering/hbm tiering/internal/lockhold tiering/internal/objects",
	"tiering/internal/move": "gpuipc policy policy/cost policy/profile tiering/tier tiering/transfer tiering/plan tiering/decision tiering/stats tiering/hbm " +
		"tiering/internal/deadline tiering/internal/ghost tiering/internal/objects tiering/internal/catalog",
	"tiering/internal/fill": "gpuipc policy/cost policy/errkind policy/profile tiering/tier tiering/plan tiering/decision tiering/stats " +
		"tiering/internal/deadline tiering/internal/objects tiering/internal/catalog tiering/internal/move",
	"tiering/internal/serve": "gpuipc policy/profile tiering/tier tiering/transfer tiering/plan tiering/decision tiering/stats tiering/find tiering/hbm " +
		"tiering/internal/deadline tiering/internal/objects tiering/internal/catalog tiering/internal/move tiering/internal/fill",
	"tiering":                    "gpuipc policy policy/cost policy/profile tiering/tier tiering/transfer tiering/plan tiering/costs tiering/decision tiering/advise tiering/stats tiering/hbm tiering/internal/...",
	"tiering/tiertest":           "gpuipc policy/profile policy/profile/profiletest tiering/tier",
	"tiering/tiertest/storetest": "gpuipc policy/profile tiering tiering/tier tiering/tiertest",
	"tiering/disk/slab/slabtest": "tiering/disk/slab",

	"connector/wire/schema":           "",
	"connector/wire":                  "",
	"connector/wire/seqpacket":        "",
	"connector/wire/internal/codegen": "connector/wire/schema",
	"connector/wire/internal/wiregen": "connector/wire/schema connector/wire/internal/codegen",
	"connector/trust":                 "",
	"connector/internal/link":         "connector/trust connector/wire connector/wire/seqpacket gpuipc gpuipc/cuda/order policy/profile",
	"connector":                       "connector/wire connector/internal/link gpuipc gpuipc/cuda/order policy/profile",

	"api":                                 "policy/errkind connector/trust api/ui api/framing api/places",
	"api/places":                          "",
	"api/framing":                         "",
	"api/loopback":                        "",
	"api/internal/jsonschema":             "",
	"api/ui":                              "",
	"api/child":                           "api",
	"api/cmd/cli":                         "api/cmd/cli/show api/cmd/cli/terminal",
	"api/cmd/cli/show":                    "api/cmd/cli/terminal",
	"api/cmd/cli/terminal":                "",
	"api/cmd/cli/clitest":                 "api/cmd/cli",
	"api/cmd/splicectl":                   "policy/errkind api api/child api/cmd/cli/... api/cmd/splicectl/internal/... connector connector/trust policy/profile tiering/disk/...",
	"api/cmd/splicectl/internal/doctor":   "api connector/... policy/profile gpuipc/...",
	"api/cmd/splicectl/internal/contexts": "",
	"api/cmd/splicectl/internal/story":    "api api/cmd/cli/show",
	"api/cmd/splicectl/internal/top":      "api api/cmd/cli/show api/cmd/cli/terminal",

	"daemon/settings": "policy policy/profile gpuipc tiering tiering/advise tiering/disk tiering/object connector/wire",
	"daemon/socket":   "connector/wire/seqpacket daemon/settings",
	"daemon/codes":    "policy/profile gpuipc tiering/tier connector/wire",
	"daemon/budget":   "connector/wire daemon/codes daemon/settings policy/profile",
	"daemon/queue":    "",
	"daemon/slots":    "gpuipc connector/wire daemon/codes",
	"daemon/gpu":      "gpuipc gpuipc/cuda gpuipc/cuda/kernels connector/wire daemon/settings daemon/codes tiering/tier",
	"daemon/cluster":  "daemon/settings api/framing",
	"daemon/parallel": "policy/cost policy/coding policy/profile policy/schedule tiering tiering/tier tiering/peer",
	"daemon/events":   "policy/profile tiering/tier tiering/held api/places",
	"daemon/journal":  "tiering/decision tiering/tier api daemon/share",
	"daemon/note":     "tiering/tier",
	"daemon/share":    "",
	"daemon/decided":  "policy/profile tiering tiering/decision tiering/tier api daemon/note",
	"daemon/canary":   "policy/profile tiering tiering/tier connector/wire api daemon/codes daemon/note",
	"daemon/spans":    "daemon/usage",
	"daemon/usage":    "policy/cost policy/profile tiering tiering/tier connector/wire api daemon/codes daemon/note daemon/share",
	"daemon/server": "policy/... gpuipc gpuipc/cuda/order tiering tiering/tier tiering/advise tiering/metric tiering/plan connector/wire connector/wire/seqpacket api " +
		"daemon/settings daemon/socket daemon/codes daemon/budget daemon/queue daemon/slots daemon/gpu daemon/canary daemon/usage daemon/journal daemon/parallel",
	"daemon/view":        "policy/... gpuipc tiering/... connector/wire api daemon/settings daemon/gpu daemon/canary daemon/decided daemon/usage daemon/journal daemon/server daemon/cluster daemon/events",
	"daemon":             "policy/... gpuipc tiering/... api daemon/settings daemon/socket daemon/gpu daemon/canary daemon/decided daemon/note daemon/usage daemon/spans daemon/journal daemon/cluster daemon/events daemon/parallel daemon/server daemon/view",
	"daemon/cmd/spliced": "daemon daemon/settings",

	"scripts/ptx":   "",
	"scripts/pygen": "",
}

// allows reports whether a row of the table covers a package.
func allows(row, pkg string) bool {
	for pattern := range strings.FieldsSeq(row) {
		if below, tree := strings.CutSuffix(pattern, "/..."); pkg == pattern || tree && (pkg == below || strings.HasPrefix(pkg, below+"/")) {
			return true
		}
	}
	return false
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

// listPackages returns the packages of the main module. It asks the go command, so that
// build constraints count as they do in a build.
func listPackages(t *testing.T) []listed {
	t.Helper()
	return listIn(t, ".", module+"...")
}

// listIn returns the packages that a pattern names in a folder.
func listIn(t *testing.T, dir, pattern string) []listed {
	t.Helper()
	command := exec.Command("go", "list", "-e", "-json=ImportPath,Dir,GoFiles,Imports", pattern)
	command.Dir, command.Stderr = dir, os.Stderr
	out, err := command.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var packages []listed
	for d := json.NewDecoder(strings.NewReader(string(out))); d.More(); {
		var p listed
		must(t, d.Decode(&p))
		packages = append(packages, p)
	}
	if len(packages) < 5 {
		t.Fatalf("go list found %d packages", len(packages))
	}
	return packages
}

func TestImportsFollowTheTable(t *testing.T) {
	known := map[string]bool{}
	for _, p := range listPackages(t) {
		name := strings.TrimPrefix(p.ImportPath, module)
		known[name] = true
		row, ok := mayImport[name]
		if !ok {
			t.Errorf("%s is not in the table", name)
		}
		for _, imported := range p.Imports {
			if to, ours := strings.CutPrefix(imported, module); ours && !allows(row, to) {
				t.Errorf("%s imports %s; it may import %q", name, to, row)
			}
		}
	}
	for name := range mayImport {
		if !known[name] {
			t.Errorf("the table has %s, which is not there", name)
		}
	}
}

func TestNothingImportsDaemon(t *testing.T) {
	for _, p := range append(listPackages(t), listIn(t, "../scripts/lab", "./...")...) {
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
		if !strings.HasPrefix(p.ImportPath, module+"policy") || harness(p.ImportPath) {
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
			must(t, err)
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
	for _, p := range append(listPackages(t), listIn(t, "../scripts/lab", "./...")...) {
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
	for _, p := range append(listPackages(t), listIn(t, "../scripts/lab", "./...")...) {
		if slices.Contains(p.Imports, "C") {
			t.Errorf("%s uses cgo", p.ImportPath)
		}
	}
}

// Templates call methods by name, so that the linker drops no exported method of any type: the
// daemon would be a third larger. Those of x/net/trace and gRPC are reached by being imported.
func TestTheDaemonLinksNoTemplates(t *testing.T) {
	command := exec.Command("go", "list", "-deps", "./cmd/spliced")
	command.Stderr = os.Stderr
	out, err := command.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	packages := strings.Fields(string(out))
	if !slices.Contains(packages, module+"daemon") {
		t.Fatalf("go list found %d packages, none of them ours", len(packages))
	}
	for _, banned := range []string{"golang.org/x/net/trace", "google.golang.org/grpc"} {
		if slices.Contains(packages, banned) {
			t.Errorf("spliced imports %s; go list -deps -f '{{.ImportPath}} {{.Imports}}' ./daemon/cmd/spliced shows from where", banned)
		}
	}
}
