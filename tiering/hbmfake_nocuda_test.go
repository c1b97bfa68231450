//go:build nocuda

package tiering

import (
	"testing"

	"github.com/spliced-kv/spliced/gpuipc"
)

func ofFakeDriver(t testing.TB, _ gpuipc.Device) gpuipc.Accelerator {
	t.Skip("built without CUDA")
	return nil
}
