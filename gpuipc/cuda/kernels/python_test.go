package kernels

import (
	"testing"

	"github.com/spliced-kv/spliced/policy/goldentest"
	"github.com/spliced-kv/spliced/scripts/pygen"
)

//go:generate go test . -run PythonIsTranslated -update

func TestPythonIsTranslated(t *testing.T) {
	const path = "../../../connector/python/src/spliced_connector/gpu/launches.py"
	made, err := pygen.Translate(".")
	must(t, err)
	goldentest.File(t, path, made, "this package's launches translate to something else: run go generate ./gpuipc/cuda/kernels")
}
