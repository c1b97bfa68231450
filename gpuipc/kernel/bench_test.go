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

// job is something to time: work per call, in units of 1e-9 of what is reported.
type job struct {
	work float64
	run  func()
}

// timed reports the work per processor time of this thread. With a limit, the limit
// runs before every call, and the ratio is of the best calls of either: those are
// the least disturbed ones.
func timed(b *testing.B, unit string, f job, limit *job) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	b.ReportAllocs()
	f.run()
	var best, total, bestLimit time.Duration
	for b.Loop() {
		if limit != nil {
			b.StopTimer()
			d := measured(limit.run)
			if bestLimit == 0 || d < bestLimit {
				bestLimit = d
			}
			b.StartTimer()
		}
		d := measured(f.run)
		if total += d; best == 0 || d < best {
			best = d
		}
	}
	b.ReportMetric(f.work/float64(best), "best-"+unit)
	b.ReportMetric(f.work*float64(b.N)/float64(total), unit)
	if limit != nil {
		b.ReportMetric(limit.work/float64(bestLimit), "limit-"+unit)
		b.ReportMetric(f.work/float64(best)/(limit.work/float64(bestLimit)), "of-limit")
	}
}

func measured(f func()) time.Duration {
	t := cpuTime()
	f()
	return cpuTime() - t
}

// onPage copies b to where a pool would have it: tests use odd addresses.
func onPage(b []byte) []byte {
	page := make([]byte, max(len(b), 64<<10)) // large ones begin on a page
	return page[:copy(page, b)]
}

func peakJob() *job {
	const rounds = 5_000
	return &job{peakFMA(rounds), func() { peakFMA(rounds) }}
}

func BenchmarkComposeDense(b *testing.B) {
	const heads, d = 32, 128
	eachISA(b, func(b *testing.B) {
		for _, tt := range []DType{F16, F32} {
			b.Run("T="+tt.name(), func(b *testing.B) {
				r := rng(b)
				sc := new(Scratch)
				var steps [heads][]Step
				var states [heads][]float32
				for h := range heads {
					p := newPlan(b, r, Dense, d, d, 1, tt, F32)
					steps[h], states[h] = p.steps, p.start
					steps[h][0].T, steps[h][0].S = onPage(p.steps[0].T), onPage(p.steps[0].S)
				}
				b.SetBytes(heads * d * d * int64(tt.Size()+4+4+4))
				timed(b, "GFLOP/s", job{heads * 2 * d * d * d, func() {
					for h := range heads {
						Compose(Dense, d, d, states[h], steps[h], sc)
					}
				}}, peakJob())
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
					timed(b, "GFLOP/s", job{float64(2 * m * n * k), func() {
						if nt {
							GemmNT(c, n, x, k, y, k, m, n, k)
						} else {
							Gemm(c, n, x, k, y, n, m, n, k)
						}
					}}, peakJob())
				})
			}
		}
	})
}

// BenchmarkRotate compares with a plain copy of the same bytes.
func BenchmarkRotate(b *testing.B) {
	type shape struct{ heads, dim, dims int }
	eachISA(b, func(b *testing.B) {
		for _, dt := range dtypes {
			for _, s := range []shape{{1, 128, 128}, {2, 256, 64}} {
				for _, interleaved := range []bool{false, true} {
					for _, mib := range []int{1, 128} {
						name := fmt.Sprintf("dtype=%s/heads=%d/dim=%d/dims=%d/interleaved=%v/MiB=%d", dt.name(), s.heads, s.dim, s.dims, interleaved, mib)
						b.Run(name, func(b *testing.B) {
							n := mib << 20
							src, dst := make([]byte, n), make([]byte, n)
							head := s.dim * dt.Size()
							turn := randomTurn(rng(b), s.dims, 1, interleaved)
							b.SetBytes(int64(n))
							timed(b, "GB/s", job{float64(n), func() {
								RotateRows(dst, s.heads*head, head, src, dt, n/s.heads/head, s.heads, s.dim, turn)
							}}, &job{float64(n), func() { copy(dst, src) }})
						})
					}
				}
			}
		}
	})
}
