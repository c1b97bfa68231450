package kernel

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
)

// BenchmarkDecode compares chunkwise decoding with recurrent decoding, which is the
// same code with room for one row: a delta rule with a decay per token, as in
// Qwen3-Next, one state for each of the requests, all of them larger than any
// cache but the last. Both run in turn with a sum over as many bytes and a copy of
// them; medians of the rounds, in processor time of this thread.
func BenchmarkDecode(b *testing.B) {
	const d, states = 128, 256 << 20
	eachISA(b, func(b *testing.B) {
		if len(Features()) == 0 {
			b.Skip("too slow to be limited by memory")
		}
		for _, capacity := range []int{2, 4, 8, 16, 32, 64} {
			for _, heads := range []int{1, 2} {
				b.Run(fmt.Sprintf("rows=%d/heads=%d", capacity, heads), func(b *testing.B) {
					benchDecode(b, d, heads, capacity, states/(4*d*d))
				})
			}
		}
	})
}

func benchDecode(b *testing.B, d, heads, capacity, total int) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	dec := newDecoding(rng(b), d, d, heads, 1, Scalar, true)
	groups := total / heads
	size := heads * d * d
	states, from := make([]float32, groups*size), make([]float32, groups*size)
	chunk, one := make([]*Buffer, groups), make([]*Buffer, groups)
	for i := range groups {
		copy(states[i*size:], dec.start)
		chunk[i], one[i] = dec.buffer(capacity, F16), dec.buffer(1, F16)
	}
	copy(from, states)
	out, sc := make([]float32, heads*d), new(BufferScratch)
	step := func(buffers []*Buffer) {
		for i, x := range buffers {
			x.Decode(states[i*size:][:size], dec.tokens, out, x.N == x.Capacity()-1, sc)
		}
	}
	names := []string{"recurrent", "chunkwise", "read", "copy"}
	took := make([][]float64, len(names))
	sums, ones := make([]float32, d), make([]float32, d)
	for i := range ones {
		ones[i] = 1
	}
	for b.Loop() {
		for k, run := range []func(){
			func() {
				for range capacity {
					step(one)
				}
			},
			func() {
				for range capacity {
					step(chunk)
				}
			},
			func() {
				for i := range groups * heads {
					sumRows(sums, nil, ones, nil, states[i*d*d:][:d*d], d)
				}
			},
			func() { copy(from, states) },
		} {
			took[k] = append(took[k], float64(measured(run)))
		}
	}
	steps := float64(capacity * groups * heads)
	recurrent, chunkwise := median(took[0])/steps, median(took[1])/steps
	moved := 0
	for n := range capacity {
		chunk[0].N = n
		moved += chunk[0].Traffic(1, true, n == capacity-1).Moved()
	}
	bytes := float64(4 * len(states))
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(recurrent, "recurrent-ns")
	b.ReportMetric(chunkwise, "chunkwise-ns")
	b.ReportMetric(recurrent/chunkwise, "speedup")
	b.ReportMetric(float64(8*d*d)/recurrent, "recurrent-GB/s")
	b.ReportMetric(float64(moved)/float64(capacity*heads)/chunkwise, "chunkwise-GB/s")
	b.ReportMetric(bytes/median(took[2]), "read-GB/s")
	b.ReportMetric(2*bytes/median(took[3]), "copy-GB/s")
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}
