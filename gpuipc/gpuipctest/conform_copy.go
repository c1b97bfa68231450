package gpuipctest

import (
	"bytes"
	"context"
	"errors"
	"hash/crc32"
	"slices"
	"sync"

	"github.com/spliced-kv/spliced/gpuipc"
)

func testRegions(r *rig) {
	if d := r.dev.Describe(); d.Kind == "" || d.Name == "" {
		r.Errorf("description %+v", d)
	}
	for _, access := range []gpuipc.Access{gpuipc.ClientReads, gpuipc.ClientWrites} {
		region, err := r.dev.NewRegion(gpuipc.RegionSpec{Name: "a", Bytes: 12345, Access: access})
		if err != nil {
			r.Fatal(err)
		}
		if region.Bytes() < 12345 {
			r.Errorf("%d bytes instead of at least 12345", region.Bytes())
		}
		ref := gpuipc.Ref{Region: region, Extents: []gpuipc.Extent{{Off: 0, Len: region.Bytes()}}}
		if b := r.get(ref); slices.ContainsFunc(b, func(v byte) bool { return v != 0 }) {
			r.Error("a new region is not all zero")
		}
		r.checkExport(region)
		if n, err := region.Resident(); err != nil || n < 0 {
			r.Errorf("resident: %d, %v", n, err)
		}
		if err := r.dev.Close(); err == nil {
			r.Error("the device closed with an open region")
		}
		if err := region.Close(); err != nil {
			r.Error(err)
		}
		if err := r.dev.Load(r.Context(), make([]byte, ref.Len()), ref); !errors.Is(err, gpuipc.ErrInvalid) {
			r.Errorf("load from a closed region: %v", err)
		}
		if _, err := region.Export(); !errors.Is(err, gpuipc.ErrInvalid) {
			r.Errorf("export of a closed region: %v", err)
		}
		if err := region.Close(); !errors.Is(err, gpuipc.ErrInvalid) {
			r.Errorf("second close: %v", err)
		}
	}
	for name, spec := range map[string]gpuipc.RegionSpec{
		"no bytes":       {Access: gpuipc.ClientReads},
		"negative bytes": {Bytes: -1, Access: gpuipc.ClientReads},
		"no access":      {Bytes: 1},
		"unknown access": {Bytes: 1, Access: 9},
		"unknown huge":   {Bytes: 1, Access: gpuipc.ClientReads, Huge: 9},
	} {
		if _, err := r.dev.NewRegion(spec); !errors.Is(err, gpuipc.ErrInvalid) {
			r.Errorf("%s: %v", name, err)
		}
	}
	if _, err := r.dev.Import(gpuipc.Handle{Bytes: 4096}); !errors.Is(err, r.importKind()) {
		r.Errorf("import of nothing: %v", err)
	}
}

// checkExport checks that a host's region is exported as a handle, and an accelerator's
// region only as a share.
func (r *rig) checkExport(region gpuipc.Region) {
	r.Helper()
	h, err := region.Export()
	if _, ok := r.dev.(gpuipc.Accelerator); ok {
		if _, shared := region.(gpuipc.SharedRegion); !shared || !errors.Is(err, gpuipc.ErrUnavailable) {
			r.Errorf("export of a region of an accelerator, that can be shared %v: %v", shared, err)
		}
		return
	}
	if err != nil {
		r.Fatal(err)
	}
	if h.Bytes != region.Bytes() {
		r.Errorf("handle of %d bytes for a region of %d", h.Bytes, region.Bytes())
	}
	if err := h.File.Close(); err != nil {
		r.Error(err)
	}
}

// importKind returns the error that Import must return for a Handle without a descriptor.
// An accelerator imports no Handle at all, so its error is ErrUnavailable.
func (r *rig) importKind() error {
	if _, ok := r.dev.(gpuipc.Accelerator); ok {
		return gpuipc.ErrUnavailable
	}
	return gpuipc.ErrInvalid
}

func testLoadStore(r *rig) {
	r.fresh(3*gpuipc.ChunkBytes + 4096)
	for range r.rounds(50) {
		r.next = 0
		n := r.rng.Int64N(3 * gpuipc.ChunkBytes)
		if r.rng.IntN(2) == 0 {
			n = r.rng.Int64N(100)
		}
		ref := r.object(n, 1)
		if got := r.get(ref); !bytes.Equal(got, r.bytes(ref)) {
			r.Fatalf("%d bytes of %v differ", n, ref.Extents)
		}
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(r.rng.Uint32())
		}
		r.put(ref, b)
	}
	r.check("after all stores")
	r.refuses("load into a shorter slice", r.dev.Load(r.Context(), make([]byte, 9), r.at(0, 10)))
	r.refuses("store of a longer slice", r.dev.Store(r.Context(), r.at(0, 10), make([]byte, 11)))
}

func testCopies(r *rig) {
	const c = gpuipc.ChunkBytes
	r.fresh(7*c + 65536)
	for i, n := range []int64{0, 1, 100, 4095, c - 1, c, c + 1, 2*c + 17, 3*c + 5, 3 * c, r.rng.Int64N(3 * c)} {
		r.next = 0
		src := r.object(n, 1)
		dst := r.object(n, 1)
		digests := make([]uint64, gpuipc.Chunks(n))
		if err := r.dev.CopyDigests(r.Context(), dst, src, digests); err != nil {
			r.Fatalf("copy %d of %d bytes: %v", i, n, err)
		}
		want := r.bytes(src)
		r.expect(dst, want)
		r.check("copy")
		checkDigests(r, want, digests, gpuipc.DigestBytes)
		clear(digests)
		if err := r.dev.Digests(r.Context(), src, digests); err != nil {
			r.Fatal(err)
		}
		checkDigests(r, want, digests, gpuipc.DigestBytes)
		if err := r.dev.Checksums(r.Context(), src, digests); err != nil {
			r.Fatal(err)
		}
		checkDigests(r, want, digests, func(b []byte) uint64 { return uint64(crc32.ChecksumIEEE(b)) })
	}
}

func checkDigests(r *rig, object []byte, digests []uint64, of func([]byte) uint64) {
	r.Helper()
	i := 0
	for chunk := range slices.Chunk(object, gpuipc.ChunkBytes) {
		if digests[i] != of(chunk) {
			r.Fatalf("chunk %d of %d bytes has digest %#x, want %#x", i, len(object), digests[i], of(chunk))
		}
		i++
	}
	if i != len(digests) {
		r.Fatalf("%d digests for %d chunks", len(digests), i)
	}
}

func testConcurrentCopies(r *rig) {
	const copies = 8
	const n = 3*gpuipc.ChunkBytes/2 + 11
	r.fresh(2 * copies * (n + 4096))
	var group sync.WaitGroup
	var src, dst [copies]gpuipc.Ref
	var digests [copies][]uint64
	var errs [copies]error
	for i := range copies {
		src[i], dst[i] = r.object(n, 1), r.object(n, 1)
		digests[i] = make([]uint64, gpuipc.Chunks(n))
	}
	for i := range copies {
		group.Go(func() { errs[i] = r.dev.CopyDigests(context.Background(), dst[i], src[i], digests[i]) })
	}
	group.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		r.Fatal(err)
	}
	for i := range copies {
		r.expect(dst[i], r.bytes(src[i]))
		checkDigests(r, r.bytes(src[i]), digests[i], gpuipc.DigestBytes)
	}
	r.check("copies at once")
}

func testBadCopies(r *rig) {
	r.fresh(1 << 16)
	size := r.region.Bytes()
	foreign := &foreignRegion{Region: r.region}
	one := func(off, n int64) gpuipc.Ref { return r.at(off, n) }
	for _, c := range []struct {
		name     string
		dst, src gpuipc.Ref
		digests  int
	}{
		{"shorter source", one(0, 100), one(200, 99), 1},
		{"destination past the end", one(size-10, 11), one(0, 11), 1},
		{"source past the end", one(0, 11), one(size-10, 11), 1},
		{"negative offset", one(-1, 10), one(100, 10), 1},
		{"overlapping by one byte", one(0, 100), one(99, 100), 1},
		{"onto itself", one(0, 100), one(0, 100), 1},
		{"destination written twice", gpuipc.Ref{Region: r.region, Extents: []gpuipc.Extent{{Off: 0, Len: 10}, {Off: 5, Len: 10}}}, one(100, 20), 1},
		{"too few digests", one(0, 100), one(200, 100), 0},
		{"too many digests", one(0, 100), one(200, 100), 2},
		{"no region", gpuipc.Ref{Extents: []gpuipc.Extent{{Off: 0, Len: 10}}}, one(100, 10), 1},
		{"a foreign region", gpuipc.Ref{Region: foreign, Extents: []gpuipc.Extent{{Off: 0, Len: 10}}}, one(100, 10), 1},
		{"a foreign source", one(100, 10), gpuipc.Ref{Region: foreign, Extents: []gpuipc.Extent{{Off: 0, Len: 10}}}, 1},
	} {
		r.refuses(c.name, r.dev.CopyDigests(r.Context(), c.dst, c.src, make([]uint64, c.digests)))
	}
	// A source may name bytes twice.
	twice := gpuipc.Ref{Region: r.region, Extents: []gpuipc.Extent{{Off: 0, Len: 10}, {Off: 5, Len: 10}}}
	if err := r.dev.CopyDigests(r.Context(), one(100, 20), twice, make([]uint64, 1)); err != nil {
		r.Fatal(err)
	}
	r.expect(one(100, 20), r.bytes(twice))
	r.check("a source that names bytes twice")
	r.refuses("digests of a bad source", r.dev.Digests(r.Context(), one(size, 1), make([]uint64, 1)))
}

// foreignRegion is a Region that the device did not make.
type foreignRegion struct{ gpuipc.Region }

func testEndedContext(r *rig) {
	r.fresh(1 << 16)
	ctx, cancel := context.WithCancel(r.Context())
	cancel()
	compose := &gpuipc.ComposeJob{Transition: 1, Heads: 1, DK: 1, DV: 1, From: r.at(0, 4), Out: r.at(64, 4)}
	rotate := &gpuipc.RotateJob{Rows: 1, Heads: 1, Dim: 2, Type: 1, Src: r.at(0, 8), Dst: gpuipc.Scatter{Rows: r.at(64, 8)}}
	for name, err := range map[string]error{
		"copy":      r.dev.CopyDigests(ctx, r.at(0, 10), r.at(100, 10), make([]uint64, 1)),
		"digests":   r.dev.Digests(ctx, r.at(0, 10), make([]uint64, 1)),
		"checksums": r.dev.Checksums(ctx, r.at(0, 10), make([]uint64, 1)),
		"load":      r.dev.Load(ctx, make([]byte, 10), r.at(0, 10)),
		"store":     r.dev.Store(ctx, r.at(0, 10), make([]byte, 10)),
		"compose":   r.dev.Compose(ctx, compose),
		"rotate":    r.dev.Rotate(ctx, rotate),
		"replay":    r.dev.Replay(ctx, &gpuipc.ReplayJob{Heads: 1, KeyHeads: 1, DK: 1, DV: 1, Out: r.at(64, 4)}),
	} {
		if !errors.Is(err, context.Canceled) {
			r.Errorf("%s: %v", name, err)
		}
	}
	r.check("after operations that never began")
}
