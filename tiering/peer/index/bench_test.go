package index

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// filled is an index of this many nodes with this many keys each; it gives the tags of
// the first node's.
func filled(nodes, keys int) (*Index, []uint64) {
	x, r := New(Config{}), rand.New(rand.NewPCG(1, 1))
	var tags []uint64
	for n := range Node(nodes) {
		o := NewOwn(1)
		for range keys {
			tag := r.Uint64()
			if n == 0 {
				tags = append(tags, tag)
			}
			o.Add(tag)
		}
		for more := true; more; {
			var err error
			if more, err = x.Apply(n, o.Delta(nil, x.Position(n))); err != nil {
				panic(err)
			}
		}
	}
	return x, tags
}

// benchNodes is 100, or what SPLICED_INDEX_NODES says: 1000 take 340 MiB and a minute.
func benchNodes() int {
	if n, err := strconv.Atoi(os.Getenv("SPLICED_INDEX_NODES")); err == nil {
		return n
	}
	return 100
}

func BenchmarkLookup32(b *testing.B) {
	x, tags := filled(benchNodes(), 100_000)
	s := x.Stats()
	b.ReportMetric(float64(s.Bytes)*8/float64(s.Keys), "bits/key")
	r := rand.New(rand.NewPCG(2, 2))
	ask := make([]uint64, 1<<16)
	for _, absent := range []bool{false, true} {
		for i := range ask {
			ask[i] = r.Uint64()
			if !absent {
				ask[i] = tags[r.IntN(len(tags))]
			}
		}
		name := "held"
		if absent {
			name = "absent"
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			var dst [32 * 4]Node
			var counts [32]int
			found, at := 0, 0
			for b.Loop() {
				x.Lookup(ask[at:at+32], dst[:], counts[:])
				at = (at + 32) % len(ask)
				for _, n := range counts {
					if n > 0 {
						found++
					}
				}
			}
			b.ReportMetric(float64(found)/float64(b.N*32), "found/key")
			b.ReportMetric(float64(s.Bytes)*8/float64(s.Keys), "bits/key")
		})
	}
}

// BenchmarkLookup32Everywhere looks up what a thousand peers hold.
func BenchmarkLookup32Everywhere(b *testing.B) {
	x, o := New(Config{}), NewOwn(1)
	tags := randomTags(32)
	for _, tag := range tags {
		o.Add(tag)
	}
	for n := range Node(1000) {
		follow(b, x, n, o)
	}
	var dst [32 * 4]Node
	var counts [32]int
	for b.Loop() {
		x.Lookup(tags, dst[:], counts[:])
	}
	b.ReportMetric(float64(counts[0]), "holders")
}

func randomTags(n int) []uint64 {
	r, tags := rand.New(rand.NewPCG(4, 4)), make([]uint64, n)
	for i := range tags {
		tags[i] = r.Uint64()
	}
	return tags
}

// BenchmarkApply is what a peer's set costs who reads it, per key, with a table of that
// many nodes already there.
func BenchmarkApply(b *testing.B) {
	x, _ := filled(benchNodes(), 100_000)
	r := rand.New(rand.NewPCG(3, 3))
	o := NewOwn(1)
	n := Node(benchNodes())
	changes := 0
	var held []uint64
	for range 100_000 {
		held = append(held, r.Uint64())
		o.Add(held[len(held)-1])
	}
	for more := true; more; more, _ = x.Apply(n, o.Delta(nil, x.Position(n))) {
	}
	for b.Loop() {
		b.StopTimer()
		for range 83 {
			i := r.IntN(len(held))
			o.Remove(held[i])
			held[i] = r.Uint64()
			o.Add(held[i])
		}
		d := o.Delta(nil, x.Position(n))
		b.StartTimer()
		if _, err := x.Apply(n, d); err != nil {
			b.Fatal(err)
		}
		changes += 166
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(changes), "ns/change")
}

func BenchmarkDelta(b *testing.B) {
	o, r := NewOwn(1), rand.New(rand.NewPCG(3, 3))
	for range 100_000 {
		o.Add(r.Uint64())
	}
	at := Position{1, o.Version(), 0}
	for range 166 {
		o.Add(r.Uint64())
	}
	b.Run("changes", func(b *testing.B) {
		b.ReportAllocs()
		var d []byte
		for b.Loop() {
			d = o.Delta(d[:0], at)
		}
		b.ReportMetric(float64(len(d))*8/166, "bits/key")
	})
	b.Run("piece", func(b *testing.B) {
		b.ReportAllocs()
		var d []byte
		for b.Loop() {
			d = o.Delta(d[:0], Position{})
		}
		b.ReportMetric(float64(len(d))*8/maxMessageKeys, "bits/key")
	})
}
