package kernel

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// packJob is heads of T in F16 and S in F32, as a layer of a segment has them.
type packJob struct {
	name string
	t, s func(r *rand.Rand, x []float32, rows, cols int)
}

var packJobs = []packJob{
	{"nearOne", heads["decayNear1"], heads["noise"]},
	{"nearZero", heads["decayNear0"], heads["noise"]},
	{"noise", heads["noise"], heads["noise"]},
	{"fading", heads["decayNear1"], heads["fading"]},
}

// BenchmarkPack is of T and S together, beside a copy of as many bytes.
func BenchmarkPack(b *testing.B) {
	const n, d = 8, 128
	limits := []struct{ t, s float64 }{{1e-2, 1e-2}, {1e-3, 1e-3}, {1e-4, 1e-4}}
	eachISA(b, func(b *testing.B) {
		for _, j := range packJobs {
			for _, l := range limits {
				b.Run(fmt.Sprintf("head=%s/limit=%g", j.name, l.t), func(b *testing.B) {
					r := rng(b)
					x := make([]float32, n*d*d)
					for h := range n {
						j.t(r, x[h*d*d:][:d*d], d, d)
					}
					t, _ := encode(b, x, F16)
					for h := range n {
						j.s(r, x[h*d*d:][:d*d], d, d)
					}
					s, _ := encode(b, x, F32)
					t, s = onPage(t), onPage(s)
					dst := make([]byte, PackedHeader(n)+n*4*d*d)
					var pt, ps Packer
					packed := 0
					const mib = float64(n*d*d*6) / (1 << 20)
					b.SetBytes(n * d * d * 6)
					src, copied := make([]byte, n*d*d*6), make([]byte, n*d*d*6)
					timed(b, "MiB/ms", job{mib * 1e6, func() {
						packed, _ = pt.Pack(dst, t, F16, n, d, d, Limit{Absolute: l.t})
						m, _ := ps.Pack(dst, s, F32, n, d, d, Limit{Relative: l.s})
						packed += m
					}}, &job{mib * 1e6, func() { copy(copied, src) }})
					b.ReportMetric(float64(packed)/float64(n*d*d*6), "of-bytes")
				})
			}
		}
	})
}

// BenchmarkComposeForms is one step by the form of T and S. The limit is the step of
// plain ones, by turns with it.
func BenchmarkComposeForms(b *testing.B) {
	const n, d = 32, 128
	eachISA(b, func(b *testing.B) {
		for _, c := range []struct{ t, s Form }{
			{FormPlain, FormPlain}, {FormInt8, FormInt8}, {FormInt12, FormInt12}, {FormInt16, FormInt16},
			{FormInt8, FormPlain}, {FormZero, FormPlain}, {FormZero, FormInt8}, {FormZero, FormInt12},
			{FormInt8, FormRank + 9}, {FormInt8, FormRank + 31},
		} {
			b.Run(fmt.Sprintf("T=%s/S=%s", c.t.name(), c.s.name()), func(b *testing.B) {
				r := rng(b)
				sc := new(Scratch)
				var steps, plain [n][]Step
				var states [n][]float32
				bytes := 0
				for h := range n {
					p := newPlan(b, r, Dense, d, d, 1, F16, F32)
					s := p.steps[0]
					s.T, s.S = onPage(s.T), onPage(s.S)
					plain[h], states[h] = []Step{s}, p.start
					if s.TForm = c.t; c.t != FormPlain {
						s.T, _ = packedAs(b, c.t, s.T, F16, d, d)
						s.T = onPage(s.T)
					}
					if s.SForm = c.s; c.s != FormPlain {
						s.S, _ = packedAs(b, c.s, s.S, F32, d, d)
						s.S = onPage(s.S)
					}
					bytes += len(s.T) + len(s.S)
					steps[h] = []Step{s}
				}
				run := func(steps *[n][]Step) job {
					return job{n * 2 * d * d * d, func() {
						for h := range n {
							Compose(Dense, d, d, states[h], steps[h], sc)
						}
					}}
				}
				b.SetBytes(int64(bytes))
				limit := run(&plain)
				timed(b, "GFLOP/s", run(&steps), &limit)
			})
		}
	})
}
