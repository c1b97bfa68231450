package manifesttest

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// glibc are the libraries that an image with CUDA has to bring.
var glibc = []string{"libc.so.6", "libdl.so.2", "libpthread.so.0", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}

// compiled builds a command of the module in a folder of this tree as the Makefile does.
func compiled(t *testing.T, module, command string, flags ...string) *elf.File {
	t.Helper()
	out := filepath.Join(t.TempDir(), filepath.Base(command))
	cmd := exec.CommandContext(t.Context(), "go", append(append([]string{"build", "-o", out}, flags...), command)...)
	cmd.Dir = filepath.Join("../..", module)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	f, err := elf.Open(out)
	must(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

func interpreted(f *elf.File) bool {
	return slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
}

// The scratch image has no loader: a binary that wants one does not start there.
func TestStaticBinariesNeedNothing(t *testing.T) {
	for command, module := range map[string]string{"./daemon/cmd/spliced": "", "./api/cmd/splicectl": "", "./cmd/splicelab": "scripts/lab"} {
		f := compiled(t, module, command, "-tags", "nocuda")
		libraries, err := f.ImportedLibraries()
		must(t, err)
		if interpreted(f) || len(libraries) > 0 {
			t.Errorf("%s: loader %v, libraries %v", command, interpreted(f), libraries)
		}
	}
}

func TestBinaryWithCUDANeedsOnlyGlibc(t *testing.T) {
	f := compiled(t, "", "./daemon/cmd/spliced")
	libraries, err := f.ImportedLibraries()
	must(t, err)
	for _, name := range libraries {
		if !slices.Contains(glibc, name) {
			t.Errorf("needs %s: the driver is to be loaded at run time and all else built in", name)
		}
	}
}

// Each stage takes the binaries that its base can run.
func TestImagesTakeTheirBinaries(t *testing.T) {
	text, err := os.ReadFile("../Dockerfile")
	must(t, err)
	copied := map[string][]string{}
	base := map[string]string{}
	var stage string
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		switch {
		case len(words) == 4 && words[0] == "FROM":
			stage = words[3]
			base[stage] = words[1]
		case len(words) > 2 && words[0] == "COPY" && words[len(words)-1] == "/bin/":
			copied[stage] = words[1 : len(words)-1]
		}
	}
	want := map[string][]string{
		"prebuilt":      {"bin/static/spliced", "bin/static/splicectl", "bin/static/splicelab"},
		"image":         {"--from=build", "/src/bin/static/spliced", "/src/bin/static/splicectl", "/src/bin/static/splicelab"},
		"prebuilt-cuda": {"bin/spliced", "bin/splicectl", "bin/splicelab"},
		"image-cuda":    {"--from=build-cuda", "/src/bin/spliced", "/src/bin/splicectl", "/src/bin/splicelab"},
	}
	for name, files := range want {
		if !slices.Equal(copied[name], files) {
			t.Errorf("stage %s copies %q, want %q", name, copied[name], files)
		}
	}
	if base["base"] != "scratch" || base["image"] != "base" || base["image-cuda"] != "base-cuda" || stage != "image" {
		t.Errorf("stages %v, the last is %s", base, stage)
	}
}
