package kernel

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// cpuTime is the processor time that this thread has had: others may run between.
func cpuTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err)
	}
	return time.Duration(t.Nano())
}

// loop runs f and reports work per processor time of the thread, in the best
// round, which is the least disturbed one, and in the mean.
func loop(b *testing.B, work float64, unit string, f func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	b.ReportAllocs()
	f()
	var best, total time.Duration
	for b.Loop() {
		t := cpuTime()
		f()
		d := cpuTime() - t
		if total += d; best == 0 || d < best {
			best = d
		}
	}
	b.ReportMetric(work/float64(best), "best-"+unit)
	b.ReportMetric(work*float64(b.N)/float64(total), unit)
}

func BenchmarkComposeDense(b *testing.B) {
	const heads, d = 32, 128
	const flops = heads * 2 * d * d * d
	eachISA(b, func(b *testing.B) {
		b.Run("limit=peak", func(b *testing.B) {
			const rounds = 20_000
			loop(b, peakFMA(rounds), "GFLOP/s", func() { peakFMA(rounds) })
		})
		for _, tt := range []DType{F16, F32} {
			b.Run("T="+tt.name(), func(b *testing.B) {
				r := rng(b)
				sc := NewScratch(d, d)
				var steps [heads][]Step
				var states [heads][]float32
				for h := range heads {
					p := newPlan(b, r, Dense, d, d, 1, tt, F32)
					steps[h], states[h] = p.steps, p.start
				}
				b.SetBytes(heads * d * d * int64(tt.Size()+4+4+4))
				loop(b, flops, "GFLOP/s", func() {
					for h := range heads {
						Compose(Dense, d, d, states[h], steps[h], sc)
					}
				})
			})
		}
	})
}

func BenchmarkGemm(b *testing.B) {
	eachISA(b, func(b *testing.B) {
		for _, s := range [][3]int{{512, 128, 128}, {512, 512, 64}, {512, 64, 256}, {512, 500, 256}, {512, 1536, 512}, {1, 512, 512}, {16, 512, 512}} {
			for _, nt := range []bool{false, true} {
				m, n, k := s[0], s[1], s[2]
				b.Run(fmt.Sprintf("m=%d/n=%d/k=%d/nt=%v", m, n, k, nt), func(b *testing.B) {
					x, y, c := make([]float32, m*k), make([]float32, n*k), make([]float32, m*n)
					loop(b, float64(2*m*n*k), "GFLOP/s", func() {
						if nt {
							GemmNT(c, n, x, k, y, k, m, n, k)
						} else {
							Gemm(c, n, x, k, y, n, m, n, k)
						}
					})
				})
			}
		}
	})
}
