package cuda

import (
	"testing"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda/fakecuda"
	"github.com/spliced-kv/spliced/gpuipc/gpuipctest"
)

// variants are devices that must all behave alike.
var variants = []struct {
	name    string
	options Options
	prepare func(t testing.TB, lib *fakecuda.Library)
}{
	{name: "defaults"},
	{name: "one stream, small chunks", options: Options{Streams: 1, ChunkBytes: 1}},
	{name: "without VMM", prepare: func(t testing.TB, lib *fakecuda.Library) { lib.Set(t, "NOVMM", "1") }},
	{name: "nothing pinned", prepare: func(t testing.TB, lib *fakecuda.Library) {
		lib.Inject(t, fakecuda.Fault{Kind: fakecuda.Fail, Call: "cuMemHostRegister_v2", Value: 304})
	}},
}

func TestConformance(t *testing.T) {
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			gpuipctest.Conformance(t, func(t testing.TB) gpuipc.Device {
				if v.prepare != nil {
					v.prepare(t, fakecuda.Open(t))
				}
				d, _ := openFake(t, v.options)
				return d
			})
		})
	}
}

func TestAcceleratorConformance(t *testing.T) {
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			gpuipctest.AcceleratorConformance(t, func(t testing.TB) (gpuipc.Accelerator, gpuipc.Device) {
				if v.prepare != nil {
					v.prepare(t, fakecuda.Open(t))
				}
				host := gpuipctest.HostDevice(t, gpuipc.HostOptions{})
				d, _ := openFake(t, v.options)
				return d, host
			})
		})
	}
}
