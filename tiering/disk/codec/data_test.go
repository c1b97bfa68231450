package codec

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

var dtypes = []kernel.DType{kernel.F32, kernel.F16, kernel.BF16}

func dtypeName(dt kernel.DType) string {
	return map[kernel.DType]string{kernel.F32: "f32", kernel.F16: "f16", kernel.BF16: "bf16"}[dt]
}

// rng is seeded by the name of the test, so that a failure replays.
func rng(t testing.TB) *rand.Rand {
	h := uint64(14695981039346656037)
	for _, c := range []byte(t.Name()) {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return rand.New(rand.NewPCG(h, 1))
}

// keys is n bytes like cached keys: channels of normal numbers, their sizes
// log-normal, one row of channels after another.
func keys(r *rand.Rand, n int, dt kernel.DType) []byte {
	const channels = 1024
	scale := make([]float64, channels)
	for i := range scale {
		scale[i] = math.Exp(r.NormFloat64())
	}
	v := make([]float32, n/dt.Size())
	for i := range v {
		v[i] = float32(r.NormFloat64() * scale[i%channels])
	}
	b := make([]byte, n)
	kernel.FromF32(b[:len(v)*dt.Size()], v, dt)
	noise(r, b[len(v)*dt.Size():])
	return b
}

func noise(r *rand.Rand, b []byte) {
	for len(b) >= 8 {
		binary.LittleEndian.PutUint64(b, r.Uint64())
		b = b[8:]
	}
	for i := range b {
		b[i] = byte(r.Uint32())
	}
}

const guard = 64

// guarded is n bytes at an odd address between guard bytes, and a check that
// fails the test when a guard byte has changed.
func guarded(t testing.TB, n int) ([]byte, func()) {
	all := make([]byte, n+2*guard+1)
	lo := guard
	if uintptr(unsafe.Pointer(&all[lo]))%2 == 0 {
		lo++
	}
	before, after := all[:lo], all[lo+n:]
	want := bytes.Repeat([]byte{0xa5}, guard+1)
	copy(before, want)
	copy(after, want)
	return all[lo:][:n:n], func() {
		t.Helper()
		if !bytes.HasPrefix(want, before) || !bytes.HasPrefix(want, after) {
			t.Fatalf("beside %d bytes was written: %x before, %x after", n, before, after)
		}
	}
}
