package kernels

import (
	"bytes"
	"os"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc/cuda/kernels/internal/pygen"
)

//go:generate go test . -run PythonIsTranslated -update

func TestPythonIsTranslated(t *testing.T) {
	const path = "../../../connector/python/src/spliced_connector/gpu/launches.py"
	want, err := pygen.Translate(".")
	must(t, err)
	if *update {
		must(t, os.WriteFile(path, want, 0o644))
	}
	have, err := os.ReadFile(path)
	must(t, err)
	if !bytes.Equal(have, want) {
		t.Errorf("%s is not what this package's launches translate to: run go generate ./gpuipc/cuda/kernels", path)
	}
}
