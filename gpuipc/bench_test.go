package gpuipc

import (
	"context"
	"fmt"
	"testing"
)

// benchRegions returns two touched regions of n bytes and a device.
func benchDevice(b *testing.B, workers int) Device {
	b.Helper()
	d, err := NewHost(HostOptions{Workers: workers})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := d.Close(); err != nil {
			b.Error(err)
		}
	})
	return d
}

func benchRegion(b *testing.B, d Device, n int64, access Access) Ref {
	b.Helper()
	r, err := d.NewRegion(RegionSpec{Name: "bench", Bytes: n, Access: access})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = r.Close() })
	ref := Ref{Region: r, Extents: []Extent{{0, n}}}
	fill := make([]byte, n)
	for i := range fill {
		fill[i] = byte(i * 7)
	}
	if err := d.Store(context.Background(), ref, fill); err != nil {
		b.Fatal(err)
	}
	return ref
}

// BenchmarkCopyDigests has its floor, the plain copy, beside it.
func BenchmarkCopyDigests(b *testing.B) {
	for _, n := range []int64{1 << 20, 64 << 20} {
		d := benchDevice(b, 1)
		dst, src := benchRegion(b, d, n, ClientReads), benchRegion(b, d, n, ClientWrites)
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
				if err := d.CopyDigests(context.Background(), dst, src, digests); err != nil {
					b.Fatal(err)
				}
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
				if err := d.CopyDigests(context.Background(), cut, src, digests); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
