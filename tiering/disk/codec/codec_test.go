package codec

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// inputs are kinds of bytes: n of them for a type.
var inputs = []struct {
	name string
	make func(r *rand.Rand, n int, dt kernel.DType) []byte
}{
	{"keys", keys},
	{"noise", func(r *rand.Rand, n int, _ kernel.DType) []byte {
		b := make([]byte, n)
		noise(r, b)
		return b
	}},
	{"zeros", func(_ *rand.Rand, n int, _ kernel.DType) []byte { return make([]byte, n) }},
	{"one exponent", func(r *rand.Rand, n int, dt kernel.DType) []byte {
		b := make([]byte, n)
		noise(r, b)
		for i := dt.Size() - 1; i < n; i += dt.Size() {
			b[i] = 0x3f
			b[i-1] |= 0x80
		}
		return b
	}},
	{"widened", func(r *rand.Rand, n int, dt kernel.DType) []byte {
		b := keys(r, n, dt)
		for i := 0; i+4 <= n; i += 4 {
			b[i], b[i+1] = 0, 0
		}
		return b
	}},
	{"half noise", func(r *rand.Rand, n int, dt kernel.DType) []byte {
		b := keys(r, n, dt)
		noise(r, b[n/2:])
		return b
	}},
}

// lengths are those where something changes: an element, huff0's smallest block, a
// vector, a chunk.
func lengths(chunk int) []int {
	n := []int{0, 1, 2, 3, 4, 5, 7, 8, 23, 24, 25, 26, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1000}
	return append(n, chunk-1, chunk, chunk+1, 2*chunk, 2*chunk+1, 2*chunk+40, 3*chunk-40)
}

func TestDecodingGivesTheBytesBack(t *testing.T) {
	for _, dt := range dtypes {
		for _, in := range inputs {
			for _, o := range []Options{{}, {Chunk: 4096}, {Chunk: 4096, Workers: 3}, {Chunk: 256 << 10, Workers: 2}} {
				t.Run(fmt.Sprintf("%s/%s/chunk=%d/workers=%d", dtypeName(dt), in.name, o.Chunk, o.Workers), func(t *testing.T) {
					r := rng(t)
					for _, n := range lengths(o.chunk()) {
						roundTrip(t, in.make(r, n, dt), dt, o)
					}
				})
			}
		}
	}
}

// roundTrip encodes and decodes at odd addresses, and returns the stream.
func roundTrip(t testing.TB, raw []byte, dt kernel.DType, o Options) []byte {
	t.Helper()
	src, unchanged := guarded(t, len(raw))
	copy(src, raw)
	bound := MaxEncodedBytes(len(raw), o)
	dst, inside := guarded(t, 3+bound)
	stream, err := Encode(append(dst[:0], "pre"...), src, dt, o)
	if err != nil {
		t.Fatalf("encode %d bytes: %v", len(raw), err)
	}
	inside()
	unchanged()
	if len(stream) > 3+bound || &stream[0] != &dst[0] || string(stream[:3]) != "pre" {
		t.Fatalf("%d bytes gave %d, bound %d, begin %q", len(raw), len(stream)-3, bound, stream[:3])
	}
	back, inside := guarded(t, len(raw))
	if err := Decode(back, stream[3:], dt, o); err != nil {
		t.Fatalf("decode %d bytes: %v", len(raw), err)
	}
	inside()
	if !bytes.Equal(back, raw) || !bytes.Equal(src, raw) {
		t.Fatalf("%d bytes came back changed", len(raw))
	}
	return stream[3:]
}

func TestStreamsOfOneInputAreEqualForAnyWidth(t *testing.T) {
	raw := keys(rng(t), 1<<20, kernel.BF16)
	want, err := Encode(nil, raw, kernel.BF16, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, width := range []int{1, 2, 3, 8, 100} {
		got, err := Encode(nil, raw, kernel.BF16, Options{Workers: width})
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d workers: another stream (%v)", width, err)
		}
		if err := Decode(make([]byte, len(raw)), want, kernel.BF16, Options{Workers: width}); err != nil {
			t.Errorf("%d workers: %v", width, err)
		}
	}
}

func TestBytesShrinkAsTheirKindAllows(t *testing.T) {
	const n = 1 << 20
	for _, c := range []struct {
		input     string
		dt        kernel.DType
		min       float64
		unsplit   int
		constants int
	}{
		{"keys", kernel.BF16, 1.42, 0, 0},
		{"keys", kernel.F16, 1.13, 0, 0},
		{"keys", kernel.F32, 1.17, 0, 0},
		{"widened", kernel.F32, 2.8, 0, 0},
		{"noise", kernel.BF16, 0.9999, 8, 0},
		{"one exponent", kernel.BF16, 1.99, 0, 8},
		{"zeros", kernel.F16, 16000, 0, 8},
		{"half noise", kernel.BF16, 1.15, 4, 0},
	} {
		t.Run(c.input+"/"+dtypeName(c.dt), func(t *testing.T) {
			i := slices.IndexFunc(inputs, func(in struct {
				name string
				make func(r *rand.Rand, n int, dt kernel.DType) []byte
			}) bool {
				return in.name == c.input
			})
			stream, err := Encode(nil, inputs[i].make(rng(t), n, c.dt), c.dt, Options{})
			if err != nil {
				t.Fatal(err)
			}
			s, err := Inspect(stream)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%+v ratio %.4f", s, s.Ratio())
			want := Stats{DType: c.dt, Chunk: DefaultChunk, Raw: n, Stored: int64(len(stream)), Chunks: 8, Unsplit: c.unsplit, Constants: c.constants}
			if s != want || s.Ratio() < c.min {
				t.Errorf("%+v of ratio %.3f, want %+v of %.3f", s, s.Ratio(), want, c.min)
			}
		})
	}
}

func TestCallsThatCanNeverBeRightAreRefused(t *testing.T) {
	for name, o := range map[string]Options{
		"chunk below the unit":   {Chunk: 4095},
		"chunk off the unit":     {Chunk: 4097},
		"chunk beyond huff0":     {Chunk: 260 << 10},
		"chunk below zero":       {Chunk: -4096},
		"workers below zero":     {Workers: -1},
		"nothing but wrong type": {},
	} {
		dt := kernel.BF16
		if o == (Options{}) {
			dt = 9
		}
		if _, err := Encode(nil, make([]byte, 100), dt, o); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAStreamIsDecodedOnlyAsWhatItIs(t *testing.T) {
	raw := keys(rng(t), 10000, kernel.BF16)
	stream := roundTrip(t, raw, kernel.BF16, Options{})
	for name, err := range map[string]error{
		"shorter":    Decode(make([]byte, 9999), stream, kernel.BF16, Options{}),
		"longer":     Decode(make([]byte, 10001), stream, kernel.BF16, Options{}),
		"other type": Decode(make([]byte, 10000), stream, kernel.F16, Options{}),
		"no type":    Decode(make([]byte, 10000), stream, 0, Options{}),
	} {
		if !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSteadyCallsAllocateLittle(t *testing.T) {
	if raceDetector {
		t.Skip("the pool forgets at random under the race detector")
	}
	raw := keys(rng(t), 1<<20, kernel.BF16)
	dst := make([]byte, 0, MaxEncodedBytes(len(raw), Options{}))
	back := make([]byte, len(raw))
	stream, err := Encode(dst, raw, kernel.BF16, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(20, func() { _, _ = Encode(dst, raw, kernel.BF16, Options{}) }); n > 8 {
		t.Errorf("Encode of 8 chunks: %v allocations", n)
	}
	if n := testing.AllocsPerRun(20, func() { _ = Decode(back, stream, kernel.BF16, Options{}) }); n > 16 {
		t.Errorf("Decode of 8 chunks: %v allocations", n)
	}
}
