package refengine

import (
	"fmt"
	"testing"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/scripts/lab/refengine/modelfile"
)

// benchmarked is the shape of the demo's model.
func benchmarked() modelfile.Config {
	c := modelfile.Config{
		Name: "bench", Vocab: 260, Dim: 96, Hidden: 192, Eps: 1e-6,
		Storage: modelfile.Storage{State: profile.F32, Transition: profile.F16, Conv: profile.F32, KV: profile.BF16},
		Linear:  modelfile.LinearConfig{Family: profile.GDN, KeyHeads: 2, ValueHeads: 4, KeyDim: 32, ValueDim: 32, Kernel: 4},
		Attention: modelfile.AttentionConfig{
			Heads: 2, KVHeads: 1, HeadDim: 32, Gate: true, Rope: profile.Rope{Dims: 16, Theta: 1e6},
		},
	}
	for i := range 8 {
		if i%4 == 3 {
			c.Layers = append(c.Layers, profile.KindFull)
		} else {
			c.Layers = append(c.Layers, profile.KindLinear)
		}
	}
	return c
}

func BenchmarkPrefill(b *testing.B) {
	for _, n := range []int{512, 5200} {
		b.Run(fmt.Sprintf("tokens=%d", n), func(b *testing.B) {
			m := build[float32](b, benchmarked())
			tokens := text(1, n)
			b.ReportAllocs()
			for b.Loop() {
				prefill(b, m, m.NewState(), tokens)
			}
			b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "tokens/s")
		})
	}
}

func BenchmarkCapture(b *testing.B) {
	m := build[float32](b, benchmarked())
	spec, _ := m.Profile().MidSpec(512, 8)
	tokens := text(1, 512)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := m.Capture(tokens, spec); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(512*float64(b.N)/b.Elapsed().Seconds(), "tokens/s")
}

// BenchmarkServe is a warm request of ten passages; the floor is the prefill of
// its query and seams.
func BenchmarkServe(b *testing.B) {
	m := build[float32](b, benchmarked())
	c := NewMemory(m.Profile())
	r := Request{First: text(1, 120), Query: text(2, 60), Seam: 8}
	for i := range 10 {
		r.Mid = append(r.Mid, text(uint64(10+i), 512))
	}
	serve(b, m, c, r)
	b.ReportAllocs()
	for b.Loop() {
		serve(b, m, c, r)
	}
	b.ReportMetric(float64(len(r.Prompt()))*float64(b.N)/b.Elapsed().Seconds(), "tokens/s")
}
