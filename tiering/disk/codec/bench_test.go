package codec

import (
	"fmt"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// benchBytes is what a call takes: beyond the second-level cache, as parts are.
const benchBytes = 16 << 20

var benchOptions = []Options{{Chunk: 32 << 10}, {Chunk: 64 << 10}, {}, {Chunk: 256 << 10}, {Workers: 2}}

func optionsName(o Options) string {
	return fmt.Sprintf("chunk=%dK/workers=%d", o.chunk()>>10, max(o.Workers, 1))
}

// benchmarkOver runs f for each type and option set over the same bytes, and a
// plain copy of them as the floor.
func benchmarkOver(b *testing.B, f func(b *testing.B, raw []byte, dt kernel.DType, o Options)) {
	b.Run("floor=copy", func(b *testing.B) {
		src, dst := keys(rng(b), benchBytes, kernel.BF16), make([]byte, benchBytes)
		b.SetBytes(benchBytes)
		for b.Loop() {
			copy(dst, src)
		}
	})
	for _, dt := range []kernel.DType{kernel.BF16, kernel.F16, kernel.F32} {
		raw := keys(rng(b), benchBytes, dt)
		for _, o := range benchOptions {
			b.Run(fmt.Sprintf("dtype=%s/%s", dtypeName(dt), optionsName(o)), func(b *testing.B) {
				b.SetBytes(benchBytes)
				b.ReportAllocs()
				f(b, raw, dt, o)
			})
		}
	}
}

func BenchmarkEncode(b *testing.B) {
	benchmarkOver(b, func(b *testing.B, raw []byte, dt kernel.DType, o Options) {
		dst := make([]byte, 0, MaxEncodedBytes(len(raw), o))
		var stream []byte
		for b.Loop() {
			stream, _ = Encode(dst, raw, dt, o)
		}
		b.ReportMetric(float64(len(raw))/float64(len(stream)), "ratio")
	})
}

func BenchmarkDecode(b *testing.B) {
	benchmarkOver(b, func(b *testing.B, raw []byte, dt kernel.DType, o Options) {
		stream, err := Encode(nil, raw, dt, o)
		if err != nil {
			b.Fatal(err)
		}
		dst := make([]byte, len(raw))
		for b.Loop() {
			if err := Decode(dst, stream, dt, o); err != nil {
				b.Fatal(err)
			}
		}
	})
}
