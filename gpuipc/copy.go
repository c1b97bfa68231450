package gpuipc

import (
	"context"
	"fmt"
	"hash/crc32"
)

// CopyDigests hashes the destination. A client that keeps changing its staging memory can
// damage its own object, but the digests always match the stored bytes.
func (h *host) CopyDigests(ctx context.Context, dst, src Ref, digests []uint64) error {
	a := h.access()
	defer a.release()
	err := a.Copy(dst, src)
	if err == nil {
		err = CheckDigests(digests, dst.Len())
	}
	if err != nil {
		return fmt.Errorf("%s: %w", OpCopyDigests, err)
	}
	to, from := a.memory(dst), a.memory(src)
	return h.chunks(ctx, OpCopyDigests, to.n, func(s *scratch, i int, off, n int64) {
		to.populate(off, n)
		copyRange(&to, &from, off, n)
		digests[i] = s.digest(&to, off, n)
	})
}

// Digests stores the digest of each chunk of src.
func (h *host) Digests(ctx context.Context, src Ref, digests []uint64) error {
	return h.sum(ctx, OpDigests, src, digests, (*scratch).digest)
}

// Checksums stores the CRC-32 of each chunk of src.
func (h *host) Checksums(ctx context.Context, src Ref, sums []uint64) error {
	return h.sum(ctx, OpChecksums, src, sums, (*scratch).checksum)
}

func (h *host) sum(ctx context.Context, op Op, src Ref, sums []uint64, sum func(s *scratch, m *memory, off, n int64) uint64) error {
	a := h.access()
	defer a.release()
	err := a.object("source", src, 1, reads)
	if err == nil {
		err = CheckDigests(sums, src.Len())
	}
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	from := a.memory(src)
	return h.chunks(ctx, op, from.n, func(s *scratch, i int, off, n int64) {
		sums[i] = sum(s, &from, off, n)
	})
}

// Load copies src to dst; their lengths must be equal.
func (h *host) Load(ctx context.Context, dst []byte, src Ref) error {
	a := h.access()
	defer a.release()
	if err := a.Reads("source", src, 1, int64(len(dst))); err != nil {
		return fmt.Errorf("%s: %w", OpLoad, err)
	}
	from := a.memory(src)
	return h.chunks(ctx, OpLoad, from.n, func(_ *scratch, _ int, off, n int64) {
		from.load(dst[off:off+n], off)
	})
}

// Store copies src to dst; their lengths must be equal.
func (h *host) Store(ctx context.Context, dst Ref, src []byte) error {
	a := h.access()
	defer a.release()
	err := a.Writes("destination", dst, 1, int64(len(src)))
	if err == nil {
		err = a.Disjoint()
	}
	if err != nil {
		return fmt.Errorf("%s: %w", OpStore, err)
	}
	to := a.memory(dst)
	return h.chunks(ctx, OpStore, to.n, func(_ *scratch, _ int, off, n int64) {
		to.populate(off, n)
		to.store(off, src[off:off+n])
	})
}

// chunks runs f over all chunks of an object of n bytes.
func (h *host) chunks(ctx context.Context, op Op, n int64, f func(s *scratch, i int, off, n int64)) error {
	err := h.run(ctx, op, Chunks(n), true, func(w *worker, i int) error {
		off := int64(i) * ChunkBytes
		f(w.scratch, i, off, min(ChunkBytes, n-off))
		return nil
	})
	if err != nil {
		return fmt.Errorf("%s of %d bytes: %w", op, n, err)
	}
	return nil
}

// copyRange copies the bytes [off, off+n) of src to the same offset in dst.
func copyRange(dst, src *memory, off, n int64) {
	for n > 0 {
		to := dst.run(off, n)
		k := int64(copy(to, src.run(off, int64(len(to)))))
		off, n = off+k, n-k
	}
}

// digest hashes one chunk.
func (s *scratch) digest(m *memory, off, n int64) uint64 {
	if b := m.run(off, n); int64(len(b)) == n {
		return DigestBytes(b)
	}
	s.hasher.Reset()
	for n > 0 {
		b := m.run(off, n)
		_, _ = s.hasher.Write(b) // never fails
		off, n = off+int64(len(b)), n-int64(len(b))
	}
	return s.hasher.Sum64()
}

// checksum returns the CRC-32 of one chunk.
func (*scratch) checksum(m *memory, off, n int64) uint64 {
	sum := uint32(0)
	for n > 0 {
		b := m.run(off, n)
		sum = crc32.Update(sum, crc32.IEEETable, b)
		off, n = off+int64(len(b)), n-int64(len(b))
	}
	return uint64(sum)
}
