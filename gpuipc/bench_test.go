package gpuipc

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

func testDevice(b testing.TB, workers int) Device {
	b.Helper()
	d, err := NewHost(HostOptions{Workers: workers})
	must(b, err)
	b.Cleanup(func() { must(b, d.Close()) })
	return d
}

func testRegion(b testing.TB, d Device, n int64, access Access) Ref {
	b.Helper()
	r, err := d.NewRegion(RegionSpec{Name: "bench", Bytes: n, Access: access})
	must(b, err)
	b.Cleanup(func() { _ = r.Close() })
	ref := Ref{Region: r, Extents: []Extent{{0, n}}}
	fill := make([]byte, n)
	for i := range fill {
		fill[i] = byte(i * 7)
	}
	must(b, d.Store(context.Background(), ref, fill))
	return ref
}

// BenchmarkCopyDigests has its floor, the plain copy, beside it.
func BenchmarkCopyDigests(b *testing.B) {
	for _, n := range []int64{1 << 20, 64 << 20} {
		d := testDevice(b, 1)
		dst, src := testRegion(b, d, n, ClientReads), testRegion(b, d, n, ClientWrites)
		digests := make([]uint64, Chunks(n))
		size := fmt.Sprintf("size=%dMiB", n>>20)
		b.Run(size+"/memcpy", func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(n)
			to, from := dst.Region.(*hostRegion).mem, src.Region.(*hostRegion).mem
			for b.Loop() {
				copy(to, from)
			}
		})
		b.Run(size+"/extents=1", func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(n)
			for b.Loop() {
				must(b, d.CopyDigests(context.Background(), dst, src, digests))
			}
		})
		cut := Ref{Region: dst.Region}
		const page = 64 << 10
		for off := n - page; off >= 0; off -= page {
			cut.Extents = append(cut.Extents, Extent{off, page})
		}
		b.Run(fmt.Sprintf("%s/extents=%d", size, len(cut.Extents)), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(n)
			for b.Loop() {
				must(b, d.CopyDigests(context.Background(), cut, src, digests))
			}
		})
	}
}

// BenchmarkComposePacked composes many steps out of parts as they were written and out of the
// same ones packed, by turns: of heads that forget nothing, and of some that keep nothing of
// what was before.
func BenchmarkComposePacked(b *testing.B) {
	const heads, dk, dv, steps = 32, 128, 128, 40 // more than the processor's caches hold
	const tBytes, sBytes = heads * dk * dk * 2, heads * dk * dv * 4
	d := testDevice(b, 1)
	ctx := context.Background()
	rng := rand.New(rand.NewPCG(1, 1))
	for _, mix := range []struct{ forget, fade int }{{0, 0}, {25, 0}, {50, 0}, {0, 50}, {33, 50}} {
		plain := testRegion(b, d, steps*(tBytes+sBytes), ClientReads)
		packed := testRegion(b, d, steps*(tBytes+sBytes), ClientReads)
		slot := testRegion(b, d, sBytes, ClientWrites)
		jobs := [2]ComposeJob{}
		for i := range jobs {
			jobs[i] = ComposeJob{Transition: kernel.Dense, Heads: heads, DK: dk, DV: dv, Out: slot}
		}
		var p Packer
		at := int64(0)
		for i := range int64(steps) {
			t, s := make([]float32, heads*dk*dk), make([]float32, heads*dk*dv)
			for k := range t {
				if t[k] = float32(rng.NormFloat64()) / 64; k/(dk*dk)*100 < mix.forget*heads {
					t[k] /= 1e6
				}
			}
			for h := range heads {
				noise(rng, s[h*dk*dv:][:dk*dv], dv, 100*h >= (100-mix.fade)*heads)
			}
			step, small := ComposeStep{TType: kernel.F16, SType: kernel.F32}, ComposeStep{TType: kernel.F16, SType: kernel.F32, TPacked: true, SPacked: true}
			for k, part := range [2][]float32{t, s} {
				off := i * (tBytes + sBytes)
				job := PackJob{Type: kernel.F16, Heads: heads, Rows: dk, Cols: dk, Of: PackTransitions, Tolerance: 0.05}
				if k == 1 {
					off += tBytes
					job.Type, job.Of = kernel.F32, PackStates
				}
				raw, kept := packedPart(&p, part, job)
				whole, less := plain.Slice(off, int64(len(raw))), packed.Slice(at, int64(len(kept)))
				must(b, errors.Join(d.Store(ctx, whole, raw), d.Store(ctx, less, kept)))
				if at += int64(len(kept)); k == 0 {
					step.T, small.T = whole, less
				} else {
					step.S, small.S = whole, less
				}
			}
			jobs[0].Steps, jobs[1].Steps = append(jobs[0].Steps, step), append(jobs[1].Steps, small)
		}
		b.Run(fmt.Sprintf("forget=%d%%/fade=%d%%", mix.forget, mix.fade), func(b *testing.B) {
			var took [2]time.Duration
			for b.Loop() {
				for i := range jobs {
					began := time.Now()
					must(b, d.Compose(ctx, &jobs[i]))
					took[i] += time.Since(began)
				}
			}
			b.ReportMetric(took[0].Seconds()/took[1].Seconds(), "x-of-plain")
			b.ReportMetric(float64(at)/float64(steps*(tBytes+sBytes)), "bytes-of-plain")
		})
	}
}

// BenchmarkRotatePacked places bf16 keys of 8 heads of 128, 64 of them turning, as they were
// written and packed, by turns; and says what packing takes.
func BenchmarkRotatePacked(b *testing.B) {
	const rows, heads, dim = 16 << 10, 8, 128
	const bytes = rows * heads * dim * 2
	turn := &Rotation{Dims: 64, Cos: make([]float32, 32), Sin: make([]float32, 32)}
	for i := range turn.Cos {
		turn.Cos[i], turn.Sin[i] = 0.6, 0.8
	}
	d, ctx := testDevice(b, 1), context.Background()
	src, less := testRegion(b, d, bytes, ClientReads), testRegion(b, d, bytes, ClientReads)
	dst := testRegion(b, d, bytes, ClientWrites)
	rng := rand.New(rand.NewPCG(1, 1))
	x := make([]float32, rows*heads*dim)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
	raw, packed := make([]byte, bytes), make([]byte, bytes)
	kernel.FromF32(raw, x, kernel.BF16)
	var p Packer
	job := PackJob{Src: [][]byte{raw}, Type: kernel.BF16, Heads: 1, Rows: rows * heads, Cols: dim, Of: PackRows, Tolerance: 0.02}
	n, _ := p.Pack(packed, &job)
	less = less.Slice(0, int64(n))
	must(b, errors.Join(d.Store(ctx, src, raw), d.Store(ctx, less, packed[:n])))
	b.Run("pack", func(b *testing.B) {
		for b.Loop() {
			p.Pack(packed, &job)
		}
		b.ReportMetric(b.Elapsed().Seconds()*1e3/float64(b.N)/(bytes>>20), "ms/MiB")
	})
	table := Scatter{Region: dst.Region, BlockRows: 16, BlockStride: 16 * heads * dim * 2, RowStride: heads * dim * 2, HeadStride: dim * 2}
	for k := range uint32(rows / 16) {
		table.Blocks = append(table.Blocks, k^1)
	}
	for name, t := range map[string]*Rotation{"copy": nil, "turn": turn} {
		b.Run(name, func(b *testing.B) {
			jobs := [2]RotateJob{{Src: src}, {Src: less, SrcPacked: true}}
			var took [2]time.Duration
			for b.Loop() {
				for i := range jobs {
					j := jobs[i]
					j.Rows, j.Heads, j.Dim, j.Type, j.Turn, j.Dst = rows, heads, dim, kernel.BF16, t, table
					began := time.Now()
					must(b, d.Rotate(ctx, &j))
					took[i] += time.Since(began)
				}
			}
			b.ReportMetric(took[0].Seconds()/took[1].Seconds(), "x-of-plain")
			b.ReportMetric(float64(b.N)*bytes/took[1].Seconds()/1e9, "GB/s")
			b.ReportMetric(float64(n)/bytes, "bytes-of-plain")
		})
	}
}

// noise fills a matrix with numbers, or such that its singular values fade.
func noise(rng *rand.Rand, x []float32, cols int, fade bool) {
	if !fade {
		for i := range x {
			x[i] = float32(rng.NormFloat64())
		}
		return
	}
	row := make([]float32, cols)
	size := 1.0
	for range 24 {
		for j := range row {
			row[j] = float32(size * rng.NormFloat64())
		}
		for i := 0; i < len(x); i += cols {
			kernel.Axpy(x[i:][:cols], float32(rng.NormFloat64()), row)
		}
		size *= 0.75
	}
}
