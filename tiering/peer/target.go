package peer

import (
	"context"
	"errors"
	"fmt"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// span is a range of one rank's bytes that is read at once: whole chunks.
type span struct {
	rank   int
	off, n int64
	chunks []chunk
	gaps   []gpuipc.Extent // ranges between and after parts, as offsets into the rank
}

// chunk is a range of bytes with its digest.
type chunk struct {
	off, n int64 // in the rank's bytes
	digest uint64
}

func countChunks(l *profile.Layout) (n int) {
	for i := range l.Parts {
		n += gpuipc.Chunks(l.Parts[i].Len)
	}
	return n
}

// spansOf divides all ranks into spans of a length in bytes, up to a chunk more. digests
// has one digest for each chunk, by rank.
func spansOf(l *profile.Layout, digests [][]uint64, length int64) (list []span) {
	for rank := range digests {
		var s *span
		k := 0
		for i := range l.Parts {
			p := &l.Parts[i]
			for at := int64(0); at < p.Len; at += gpuipc.ChunkBytes {
				c := chunk{p.Off + at, min(gpuipc.ChunkBytes, p.Len-at), digests[rank][k]}
				if k++; s == nil || s.n >= length {
					list = append(list, span{rank: rank, off: c.off})
					s = &list[len(list)-1]
				}
				s.chunks = append(s.chunks, c)
				s.n = c.off + c.n - s.off
			}
			next := l.Bytes
			if i+1 < len(l.Parts) {
				next = l.Parts[i+1].Off
			}
			if gap := next - p.Off - p.Len; gap > 0 && s != nil {
				s.gaps = append(s.gaps, gpuipc.Extent{Off: p.Off + p.Len, Len: gap})
			}
		}
	}
	return list
}

// errTarget reports that the destination memory failed. It wraps tier.ErrUnavailable.
var errTarget = fmt.Errorf("peer: memory: %w", tier.ErrUnavailable)

// target is the destination memory of a copy.
type target struct {
	dev   gpuipc.Device
	refs  []gpuipc.Ref
	views [][][]byte // by rank; nil = the CPU cannot address the memory
	unpin []func()
	order uint64 // start order among all copies being read
}

func openTarget(dev gpuipc.Device, refs []gpuipc.Ref) (*target, error) {
	t := &target{dev: dev, refs: refs, views: make([][][]byte, len(refs))}
	for i := range refs {
		views, unpin, err := dev.Pin(refs[i], true)
		switch {
		case err == nil:
			t.views[i], t.unpin = views, append(t.unpin, unpin)
		case !errors.Is(err, gpuipc.ErrUnavailable):
			t.close()
			return nil, fmt.Errorf("rank %d: %w: %w", i, errTarget, err)
		}
	}
	return t, nil
}

func (t *target) close() {
	for _, unpin := range t.unpin {
		unpin()
	}
}

// fill reads a span's bytes into memory. It verifies the digest of each chunk as soon as
// the chunk has arrived and is still in the processor's cache: 64 MiB over loopback
// arrived at 0.74 of the rate of a bare copy instead of 0.69 (measured on a busy machine).
// It clears the gaps between parts, since no digest covers the sender's bytes there.
func (t *target) fill(ctx context.Context, s *span, read func(runs [][]byte) error) error {
	views := t.views[s.rank]
	if views == nil {
		return t.stage(ctx, s, read)
	}
	at := s.off
	for i := range s.chunks {
		c := &s.chunks[i]
		if err := read(gpuipc.Window(views, at, c.off+c.n-at)); err != nil {
			return err
		}
		if err := t.check(ctx, s.rank, c); err != nil {
			return err
		}
		at = c.off + c.n
	}
	for _, g := range s.gaps {
		for _, run := range gpuipc.Window(views, g.Off, g.Len) {
			clear(run)
		}
	}
	return nil
}

// stage does the same as the method fill, for memory that the CPU cannot address. It uses a
// buffer of up to RangeBytes and a chunk for each of the Streams ranges in flight.
func (t *target) stage(ctx context.Context, s *span, read func(runs [][]byte) error) error {
	end := s.off + s.n
	if k := len(s.gaps); k > 0 {
		end = max(end, s.gaps[k-1].Off+s.gaps[k-1].Len)
	}
	staged := make([]byte, end-s.off)
	if err := read([][]byte{staged[:s.n]}); err != nil {
		return err
	}
	for _, g := range s.gaps {
		clear(staged[g.Off-s.off : g.Off-s.off+g.Len])
	}
	if err := t.dev.Store(ctx, t.refs[s.rank].Slice(s.off, end-s.off), staged); err != nil {
		return t.failed(ctx, err)
	}
	for i := range s.chunks {
		if err := t.check(ctx, s.rank, &s.chunks[i]); err != nil {
			return err
		}
	}
	return nil
}

// failed returns the context's error if it has ended, and otherwise errTarget with err.
func (t *target) failed(ctx context.Context, err error) error {
	if ended := ctx.Err(); ended != nil {
		return ended
	}
	return fmt.Errorf("%w: %w", errTarget, err)
}

// check verifies the digest of a chunk in memory.
func (t *target) check(ctx context.Context, rank int, c *chunk) error {
	got, err := t.digest(ctx, rank, c)
	if err != nil {
		return t.failed(ctx, err)
	}
	if got != c.digest {
		return fmt.Errorf("rank %d, bytes [%d, +%d) have the digest %016x, not %016x: %w", rank, c.off, c.n, got, c.digest, tier.ErrCorrupt)
	}
	return nil
}

func (t *target) digest(ctx context.Context, rank int, c *chunk) (uint64, error) {
	if views := t.views[rank]; views != nil {
		if runs := gpuipc.Window(views, c.off, c.n); len(runs) == 1 {
			return gpuipc.DigestBytes(runs[0]), nil
		}
	}
	var sum [1]uint64
	err := t.dev.Digests(ctx, t.refs[rank].Slice(c.off, c.n), sum[:])
	return sum[0], err
}
