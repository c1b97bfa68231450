package gpuipc

import (
	"context"
	"fmt"
	"hash/crc32"
)

// CopyDigests hashes what was written, from the destination: a client that keeps
// changing its staging can damage its own object, but never make digest and
// stored bytes differ.
func (h *host) CopyDigests(ctx context.Context, dst, src Ref, digests []uint64) error {
	a := access{host: h}
	defer a.release()
	to, from, err := a.pair(dst, src)
	if err != nil {
		return fmt.Errorf("%s: %w", OpCopyDigests, err)
	}
	if err := checkDigests(digests, to.n); err != nil {
		return fmt.Errorf("%s: %w", OpCopyDigests, err)
	}
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
	a := access{host: h}
	defer a.release()
	from, err := a.open("source", src, 1, reads)
	if err == nil {
		err = checkDigests(sums, from.n)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return h.chunks(ctx, op, from.n, func(s *scratch, i int, off, n int64) {
		sums[i] = sum(s, &from, off, n)
	})
}

// Load copies src to dst; their lengths must be equal.
func (h *host) Load(ctx context.Context, dst []byte, src Ref) error {
	a := access{host: h}
	defer a.release()
	from, err := a.openExact("source", src, 1, reads, int64(len(dst)))
	if err != nil {
		return fmt.Errorf("%s: %w", OpLoad, err)
	}
	return h.chunks(ctx, OpLoad, from.n, func(_ *scratch, _ int, off, n int64) {
		from.load(dst[off:off+n], off)
	})
}

// Store copies src to dst; their lengths must be equal.
func (h *host) Store(ctx context.Context, dst Ref, src []byte) error {
	a := access{host: h}
	defer a.release()
	to, err := a.openExact("destination", dst, 1, writes, int64(len(src)))
	if err == nil {
		err = a.disjoint()
	}
	if err != nil {
		return fmt.Errorf("%s: %w", OpStore, err)
	}
	return h.chunks(ctx, OpStore, to.n, func(_ *scratch, _ int, off, n int64) {
		to.populate(off, n)
		to.store(off, src[off:off+n])
	})
}

// pair opens a copy's two sides.
func (a *access) pair(dst, src Ref) (to, from memory, err error) {
	if to, err = a.open("destination", dst, 1, writes); err != nil {
		return to, from, err
	}
	if from, err = a.openExact("source", src, 1, reads, to.n); err != nil {
		return to, from, err
	}
	return to, from, a.disjoint()
}

func checkDigests(digests []uint64, n int64) error {
	if len(digests) != Chunks(n) {
		return fmt.Errorf("%d digests for %d chunks of %d bytes: %w", len(digests), Chunks(n), n, ErrInvalid)
	}
	return nil
}

// chunks runs f over the chunks of an object of n bytes.
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

// copyRange copies the bytes [off, off+n) of one object to the same place in
// another.
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

// checksum is the CRC-32 of one chunk.
func (*scratch) checksum(m *memory, off, n int64) uint64 {
	sum := uint32(0)
	for n > 0 {
		b := m.run(off, n)
		sum = crc32.Update(sum, crc32.IEEETable, b)
		off, n = off+int64(len(b)), n-int64(len(b))
	}
	return uint64(sum)
}
