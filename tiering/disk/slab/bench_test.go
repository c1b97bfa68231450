package slab

import (
	"fmt"
	"os"
	"testing"
)

// benchDirVariable names the directory in which the benchmarks make their files;
// it decides which disk is measured.
const benchDirVariable = "SLAB_BENCH_DIR"

const benchSlabBytes = 1 << 30

func benchFS(b *testing.B) FS {
	b.Helper()
	dir, err := os.MkdirTemp(os.Getenv(benchDirVariable), "slab")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.RemoveAll(dir) })
	return must[FS](b)(OpenDir(dir))
}

// cycle gives places for entries of n bytes, one behind the other over the slab.
func cycle(n int64) func() int64 {
	next := n
	return func() int64 {
		if next+n > benchSlabBytes {
			next = n
		}
		off := next
		next += n
		return off
	}
}

// BenchmarkWrite writes entries one after another into one slab, not synced.
// floor is a loop of pwrite of the same pieces with the same flags.
func BenchmarkWrite(b *testing.B) { benchmarkTransfer(b, (*Set).Write, File.WriteAt) }

// BenchmarkRead reads entries one after another, past the page cache.
func BenchmarkRead(b *testing.B) { benchmarkTransfer(b, (*Set).Read, File.ReadAt) }

func benchmarkTransfer(b *testing.B, through func(*Set, []Run, int64, [][]byte) error, floor func(File, [][]byte, int64) error) {
	fsys := benchFS(b)
	o := SetOptions{SlabBytes: benchSlabBytes, Granule: 64 << 10}
	s := closing[*Set](b)(OpenSet(fsys, o))
	slab := must[SlabInfo](b)(s.Grow())
	fill(b, s, slab)
	file, _ := s.file(slab.Number)
	for _, n := range []int64{1 << 20, 16 << 20, 64 << 20} {
		bufs := [][]byte{random(1, int(n))}
		size := fmt.Sprintf("size=%dMiB", n>>20)
		b.Run(size+"/floor", func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(n)
			next := cycle(n)
			for b.Loop() {
				off := next()
				for at := int64(0); at < n; at += pieceBytes {
					noError(b, floor(file, [][]byte{bufs[0][at:min(at+pieceBytes, n)]}, off+at))
				}
			}
		})
		for _, width := range []int{1, 2, 4, 8} {
			b.Run(fmt.Sprintf("%s/width=%d", size, width), func(b *testing.B) {
				b.ReportAllocs()
				b.SetBytes(n)
				s.width = width
				next := cycle(n)
				for b.Loop() {
					noError(b, through(s, []Run{{slab.Number, next(), n}}, 0, bufs))
				}
			})
		}
	}
}

// fill writes all of the slab once, since a block that is allocated but was never
// written is read as zeros without asking the disk, and its first write costs the
// file system more than later ones.
func fill(b *testing.B, s *Set, slab SlabInfo) {
	b.Helper()
	data := random(2, 32<<20)
	for off := s.opts.Granule; off < slab.Bytes; {
		n := min(int64(len(data)), slab.Bytes-off)
		noError(b, s.Write([]Run{{slab.Number, off, n}}, 0, [][]byte{data[:n]}))
		off += n
	}
	noError(b, s.Sync(slab.Number))
}

// BenchmarkGrow allocates and removes slabs of 1 GiB.
func BenchmarkGrow(b *testing.B) {
	s := closing[*Set](b)(OpenSet(benchFS(b), SetOptions{SlabBytes: benchSlabBytes, Granule: 64 << 10}))
	for b.Loop() {
		noError(b, s.Remove(must[SlabInfo](b)(s.Grow()).Number))
	}
}

// BenchmarkSpace allocates and frees in a space that is almost full and torn.
func BenchmarkSpace(b *testing.B) {
	for _, entries := range []int{10_000, 1_000_000} {
		b.Run(fmt.Sprintf("entries=%d", entries), func(b *testing.B) {
			b.ReportAllocs()
			const granule = 64 << 10
			s := NewSpace(granule)
			held := make([][]Run, entries)
			for i := range held {
				bytes := int64(1+i%37) * granule
				for s.FreeBytes() < bytes {
					s.AddSlab(uint32(len(s.Slabs())+1), benchSlabBytes)
				}
				held[i] = must[[]Run](b)(s.Alloc(bytes))
			}
			i := 0
			for b.Loop() {
				i = (i + 7919) % entries
				bytes := RunBytes(held[i])
				s.Free(held[i])
				held[i] = must[[]Run](b)(s.Alloc(bytes))
			}
		})
	}
}
