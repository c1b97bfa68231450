package driver_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"runtime"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc/cuda/driver"
	"github.com/spliced-kv/spliced/gpuipc/cuda/fakecuda"
)

// fill is the arguments of probe_fill(u64 dst, u32 n, u32 value).
func fill(dst driver.DevicePtr, n, value uint32) []byte {
	b := binary.NativeEndian.AppendUint64(nil, uint64(dst))
	b = binary.NativeEndian.AppendUint32(b, n)
	return binary.NativeEndian.AppendUint32(b, value)
}

func (g *gpu) probe(t *testing.T, name string) (driver.Module, driver.Function) {
	t.Helper()
	m := must(g.ModuleLoad(fakecuda.ProbePTX))(t)
	return m, must(g.ModuleFunction(m, name))(t)
}

func words(value uint32, n int) []byte {
	return bytes.Repeat(binary.NativeEndian.AppendUint32(nil, value), n)
}

// The arguments are the driver's when Launch returns: the buffer that they came
// in, and the one that they were copied to, are used again while kernels wait.
func TestLaunchedArgumentsAreTakenOver(t *testing.T) {
	const kernels, n = 100, 300
	g, _ := newGPU(t)
	m, f := g.probe(t, "probe_fill")
	s := must(g.StreamCreate())(t)
	p := must(g.MemAlloc(kernels * n * 4))(t)
	gate := must(g.MemAlloc(8))(t)
	opener := must(g.StreamCreate())(t)
	check(t, g.MemsetD8Async(gate, 0, 8, opener), g.StreamSynchronize(opener), g.StreamWaitValue64GEQ(s, gate, 1))
	args := make([]byte, 0, 16)
	for i := range kernels {
		args = append(args[:0], fill(p+driver.DevicePtr(4*n*i), n, uint32(i))...)
		check(t, g.Launch(f, [3]uint32{(n + 63) / 64, 1, 1}, [3]uint32{64, 1, 1}, 0, s, args))
		clear(args)
		if i%10 == 0 {
			runtime.GC()
		}
	}
	check(t, g.StreamWriteValue64(opener, gate, 1))
	out := host(t, kernels*n*4)
	check(t, g.MemcpyDtoHAsync(pointer(out), p, int64(len(out)), s), g.StreamSynchronize(s))
	for i := range kernels {
		if !bytes.Equal(out[4*n*i:4*n*(i+1)], words(uint32(i), n)) {
			t.Fatalf("kernel %d wrote % x...", i, out[4*n*i:4*n*i+8])
		}
	}
	check(t, g.ModuleUnload(m), g.MemFree(p), g.MemFree(gate), g.StreamDestroy(s), g.StreamDestroy(opener))
}

// Calls on the way of a request cost no more than what purego itself allocates.
func TestHotCallsAllocateLittle(t *testing.T) {
	g, _ := newGPU(t)
	m, f := g.probe(t, "probe_fill")
	s := must(g.StreamCreate())(t)
	p := must(g.MemAlloc(64))(t)
	args := fill(p, 1, 1)
	one := [3]uint32{1, 1, 1}
	for name, c := range map[string]struct {
		most float64
		call func() error
	}{
		"launch": {2, func() error { return g.Launch(f, one, one, 0, s, args) }},
		"copy":   {2, func() error { return g.MemcpyDtoDAsync(p+32, p, 32, s) }},
		"signal": {2, func() error { return g.StreamWriteValue64(s, p+8, 1) }},
		"query":  {2, func() error { _, err := g.StreamQuery(s); return err }},
	} {
		var failed error
		n := testing.AllocsPerRun(100, func() { failed = errors.Join(failed, c.call()) })
		if failed != nil || n > c.most {
			t.Errorf("%s: %.0f allocations, at most %.0f; %v", name, n, c.most, failed)
		}
	}
	check(t, g.StreamSynchronize(s), g.ModuleUnload(m), g.MemFree(p), g.StreamDestroy(s))
}
