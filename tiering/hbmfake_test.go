//go:build !nocuda

package tiering

import (
	"testing"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda"
	"github.com/spliced-kv/spliced/gpuipc/cuda/fakecuda"
)

// ofFakeDriver is the CUDA device on a driver that needs no GPU, with the kernels
// that a GPU would run. Nothing of it may be left at the test's end.
func ofFakeDriver(t testing.TB, _ gpuipc.Device) gpuipc.Accelerator {
	t.Helper()
	lib := fakecuda.Open(t)
	lib.LeakCheck(t)
	acc, err := cuda.Open(cuda.Options{Library: lib.Path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := acc.Close(); err != nil {
			t.Error(err)
		}
	})
	return acc
}
