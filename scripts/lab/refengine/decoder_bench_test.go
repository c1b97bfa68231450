package refengine

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// BenchmarkDecoder compares generating with rows beside the states with moving the
// states at every token, in turns; medians.
func BenchmarkDecoder(b *testing.B) {
	wide := benchmarked()
	wide.Dim, wide.Hidden = 256, 512
	wide.Linear.KeyHeads, wide.Linear.ValueHeads, wide.Linear.KeyDim, wide.Linear.ValueDim = 8, 16, 128, 128
	for name, c := range map[string]struct {
		heads int
	}{"d=32": {0}, "d=128": {1}} {
		cfg := benchmarked()
		if c.heads > 0 {
			cfg = wide
		}
		m := build[float32](b, cfg)
		m.workers = 1
		const n = 32
		run := map[string]func() time.Duration{
			"state-a-token": func() time.Duration {
				st := m.NewState()
				logits := prefill(b, m, st, text(1, 200))
				begin := time.Now()
				for range n {
					logits = prefill(b, m, st, []uint32{Greedy(logits)})
				}
				return time.Since(begin)
			},
		}
		for _, rows := range []int{1, 4, 8, 0} {
			run[fmt.Sprintf("rows=%d", rows)] = func() time.Duration {
				d := NewDecoder(m, m.NewState(), DecoderOptions{Rows: rows, Alone: -1})
				logits, err := d.Prefill(text(1, 200))
				if err != nil {
					b.Fatal(err)
				}
				begin := time.Now()
				if _, err := d.Generate(logits, n); err != nil {
					b.Fatal(err)
				}
				return time.Since(begin)
			}
		}
		b.Run(name, func(b *testing.B) {
			took := map[string][]time.Duration{}
			for b.Loop() {
				for what, f := range run {
					took[what] = append(took[what], f())
				}
			}
			b.ReportMetric(0, "ns/op")
			for what, all := range took {
				slices.Sort(all)
				b.ReportMetric(float64(all[len(all)/2].Microseconds())/n, what+"-µs/token")
			}
		})
	}
}
