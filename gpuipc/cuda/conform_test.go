package cuda

import (
	"testing"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda/fakecuda"
	"github.com/spliced-kv/spliced/gpuipc/gpuipctest"
)

// variant is a device that must behave like all others.
type variant struct {
	name    string
	options Options
	limits  limits
	prepare func(t testing.TB, lib *fakecuda.Library)
}

var variants = []variant{
	{name: "defaults"},
	{name: "one stream, small chunks and batches", options: Options{Streams: 1, ChunkBytes: 1}, limits: limits{bytes: 1, angles: 1}},
	{name: "without VMM", prepare: func(t testing.TB, lib *fakecuda.Library) { lib.Set(t, "NOVMM", "1") }},
	{name: "nothing pinned", prepare: func(t testing.TB, lib *fakecuda.Library) {
		lib.Inject(t, fakecuda.Fault{Kind: fakecuda.Fail, Call: "cuMemHostRegister_v2", Value: 304})
	}},
}

// skipIfShort leaves one variant, which is another one for each suite.
func (v *variant) skipIfShort(t *testing.T, only *variant) {
	if testing.Short() && v.name != only.name {
		t.Skip("short: one variant is enough")
	}
}

// open opens the device.
func (v *variant) open(t testing.TB) *device {
	if v.prepare != nil {
		v.prepare(t, fakecuda.Open(t))
	}
	d, _ := openFake(t, v.options)
	if v.limits != (limits{}) {
		d.limits = v.limits
	}
	return d
}

func TestConformance(t *testing.T) {
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			v.skipIfShort(t, &variants[1])
			gpuipctest.Conformance(t, func(t testing.TB) gpuipc.Device { return v.open(t) })
		})
	}
}

func TestAcceleratorConformance(t *testing.T) {
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			v.skipIfShort(t, &variants[0])
			gpuipctest.AcceleratorConformance(t, func(t testing.TB) (gpuipc.Accelerator, gpuipc.Device) {
				host := gpuipctest.HostDevice(t, gpuipc.HostOptions{})
				return v.open(t), host
			})
		})
	}
}
