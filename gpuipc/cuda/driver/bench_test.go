package driver_test

import (
	"testing"

	"github.com/spliced-kv/spliced/gpuipc/cuda/driver"
	"github.com/spliced-kv/spliced/gpuipc/cuda/fakecuda"
)

// What a call costs with the fake driver, whose own bookkeeping is most of it:
// purego's part is a fifth of a microsecond. To compare with itself only.
func BenchmarkCall(b *testing.B) {
	if !driver.Built {
		b.Skip("built without CUDA")
	}
	path := fakecuda.Build(b)
	for _, name := range []string{"count", "query", "launch"} {
		b.Run(name, func(b *testing.B) {
			// In here: a benchmark runs in a goroutine of its own.
			g, leave, err := enter(path)
			check(b, err)
			s := must(g.StreamCreate())(b)
			p := must(g.MemAlloc(64))(b)
			m := must(g.ModuleLoad(fakecuda.ProbePTX))(b)
			f := must(g.ModuleFunction(m, "probe_fill"))(b)
			args, one := fill(p, 1, 1), [3]uint32{1, 1, 1}
			call := map[string]func() error{
				"count":  func() error { _, err := g.DeviceCount(); return err },
				"query":  func() error { _, err := g.StreamQuery(s); return err },
				"launch": func() error { return g.Launch(f, one, one, 0, s, args) },
			}[name]
			b.ReportAllocs()
			for b.Loop() {
				check(b, call())
			}
			check(b, g.StreamSynchronize(s), g.ModuleUnload(m), g.MemFree(p), g.StreamDestroy(s), leave())
		})
	}
}
