package gpuipc_test

import (
	"fmt"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/gpuipctest"
)

func TestHostConforms(t *testing.T) {
	for _, workers := range []int{1, 4} {
		t.Run(fmt.Sprintf("workers=%d", workers), func(t *testing.T) {
			if testing.Short() && workers == 1 {
				t.Skip("short: several workers are enough")
			}
			gpuipctest.Conformance(t, func(t testing.TB) gpuipc.Device {
				return gpuipctest.HostDevice(t, gpuipc.HostOptions{Workers: workers})
			})
		})
	}
}
