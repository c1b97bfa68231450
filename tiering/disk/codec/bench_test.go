package codec

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// benchBytes is what a call takes: beyond the second-level cache, as parts are.
const benchBytes = 16 << 20

var benchOptions = []Options{{Chunk: 32 << 10}, {Chunk: 64 << 10}, {}, {Chunk: 256 << 10}, {Workers: 2}}

func optionsName(o Options) string {
	return fmt.Sprintf("chunk=%dK/workers=%d", o.chunk()>>10, max(o.Workers, 1))
}

// benchmarkOver times f for each type and option set over the same bytes, and a
// plain copy of them as the floor. f prepares and returns the call to time.
func benchmarkOver(b *testing.B, f func(b *testing.B, raw []byte, dt kernel.DType, o Options) func()) {
	b.Run("floor=copy", func(b *testing.B) {
		src, dst := keys(rng(b), benchBytes, kernel.BF16), make([]byte, benchBytes)
		timed(b, 1, func() { copy(dst, src) })
	})
	for _, dt := range []kernel.DType{kernel.BF16, kernel.F16, kernel.F32} {
		raw := keys(rng(b), benchBytes, dt)
		for _, o := range benchOptions {
			b.Run(fmt.Sprintf("dtype=%s/%s", dtypeName(dt), optionsName(o)), func(b *testing.B) {
				timed(b, o.Workers, f(b, raw, dt, o))
			})
		}
	}
}

// timed reports raw bytes per second: MB/s as the clock saw it, and by the
// processor time of the process, since others may run beside us; and of the best
// call, which says something where one goroutine does all the work.
func timed(b *testing.B, workers int, run func()) {
	b.SetBytes(benchBytes)
	b.ReportAllocs()
	run()
	var total, best time.Duration
	for b.Loop() {
		start := cpuTime()
		run()
		d := cpuTime() - start
		if total += d; best == 0 || d < best {
			best = d
		}
	}
	b.ReportMetric(benchBytes/1e6*float64(b.N)/total.Seconds(), "MB/cpu-s")
	if workers <= 1 {
		b.ReportMetric(benchBytes/1e6/best.Seconds(), "best-MB/cpu-s")
	}
}

func cpuTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t); err != nil {
		panic(err)
	}
	return time.Duration(t.Nano())
}

func BenchmarkEncode(b *testing.B) {
	benchmarkOver(b, func(b *testing.B, raw []byte, dt kernel.DType, o Options) func() {
		dst := make([]byte, 0, MaxEncodedBytes(len(raw), o))
		return func() {
			stream, err := Encode(dst, raw, dt, o)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(len(raw))/float64(len(stream)), "ratio")
		}
	})
}

func BenchmarkDecode(b *testing.B) {
	benchmarkOver(b, func(b *testing.B, raw []byte, dt kernel.DType, o Options) func() {
		stream, err := Encode(nil, raw, dt, o)
		if err != nil {
			b.Fatal(err)
		}
		dst := make([]byte, len(raw))
		return func() {
			if err := Decode(dst, stream, dt, o); err != nil {
				b.Fatal(err)
			}
		}
	})
}
