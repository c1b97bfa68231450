package disk

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/kernel"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/disk/codec"
	"github.com/spliced-kv/spliced/tiering/disk/extent"
	"github.com/spliced-kv/spliced/tiering/disk/slab"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// found is an extent as it lies in slabs, offline.
type found struct {
	extent.Header
	manifest *extent.Manifest
	stored   []byte // the manifest as stored
}

// readHeader reads the header of the extent that begins with some runs. An error
// of the bytes is tiering.ErrCorrupt, one of the disk errUnread.
func (v *volume) readHeader(runs []slab.Run) (*found, error) {
	block := slab.AlignedBuffer(slab.BlockBytes)
	if err := v.readBlocks(runs, 0, block); err != nil {
		return nil, err
	}
	f := &found{}
	var err error
	if f.Header, err = extent.Parse(block); err != nil {
		return nil, corrupt(err)
	}
	if f.Runs[0].Slab != runs[0].Slab || f.Runs[0].Off != runs[0].Off {
		return nil, fmt.Errorf("header of an extent that begins in %v, found in %v: %w", f.Runs[0], runs[0], tier.ErrCorrupt)
	}
	header := slab.AlignedBuffer(f.HeaderBytes)
	if err := v.readBlocks(f.Runs, 0, header); err != nil {
		return nil, err
	}
	if f.stored, err = f.Manifest(header); err != nil {
		return nil, corrupt(err)
	}
	if f.manifest, err = extent.Decode(f.stored); err != nil {
		return nil, corrupt(err)
	}
	if f.manifest.Coded != f.Coded || f.manifest.PayloadBytes() != f.PayloadBytes {
		return nil, fmt.Errorf("header and manifest disagree about the payload: %w", tier.ErrCorrupt)
	}
	return f, nil
}

func corrupt(err error) error { return fmt.Errorf("%w: %w", err, tier.ErrCorrupt) }

// errUnread is beside the error of a disk: the bytes may be right.
var errUnread = errors.New("does not read")

func (v *volume) readBlocks(runs []slab.Run, off int64, b []byte) error {
	err := v.set.Read(runs, off, [][]byte{b})
	switch {
	case err == nil:
		return nil
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, tier.ErrInvalid):
		return corrupt(err)
	}
	return fmt.Errorf("%w: %w", errUnread, err)
}

// verify reads all of an extent and compares every digest.
func (v *volume) verify(ctx context.Context, f *found, p *profile.Profile, workers int) error {
	list, err := f.chunks(p)
	if err != nil {
		return corrupt(err)
	}
	per := len(f.manifest.Digests[0])
	groups := grouped(list)
	return parallel(ctx, len(groups), workers, func(i int) error {
		g := groups[i]
		first, last := &list[g.first], &list[g.end-1]
		begin := first.at &^ (slab.BlockBytes - 1)
		buf := slab.AlignedBuffer(int(blocks(last.at + last.bytes - begin)))
		if err := v.readBlocks(f.Runs, int64(f.HeaderBytes)+begin, buf); err != nil {
			return err
		}
		for k := g.first; k < g.end; k++ {
			c := &list[k]
			raw := buf[c.at-begin : c.at-begin+c.bytes]
			if c.codec != codec.None {
				to := make([]byte, c.n)
				if err := codec.Decode(to, raw, kernel.DType(c.part.DType), codec.Options{}); err != nil {
					return corrupt(err)
				}
				raw = to
			}
			if got, want := gpuipc.DigestBytes(raw), f.manifest.Digests[k/per][k%per]; got != want {
				return fmt.Errorf("rank %d, chunk %d has the digest %016x, not %016x: %w", k/per, k%per, got, want, tier.ErrCorrupt)
			}
		}
		return nil
	})
}

// chunks lists the chunks of an extent and where they lie, coded or not.
func (f *found) chunks(p *profile.Profile) ([]storedChunk, error) {
	m := f.manifest
	if m.Fingerprint != p.Fingerprint() || len(m.Digests) != p.TPSize() {
		return nil, fmt.Errorf("%d ranks of profile %x, which has %d", len(m.Digests), m.Fingerprint[:8], p.TPSize())
	}
	l := (&model{Profile: p}).layout(tier.CheckpointKind(f.Kind), m.End-m.Begin)
	if l.Bytes != m.RankBytes {
		return nil, fmt.Errorf("%d bytes a rank, its profile says %d", m.RankBytes, l.Bytes)
	}
	plain := chunksOf(&l, len(m.Digests))
	if len(plain) != len(m.Digests)*len(m.Digests[0]) {
		return nil, fmt.Errorf("%d digests a rank for %d chunks in all", len(m.Digests[0]), len(plain))
	}
	if f.Coded {
		return storedChunks(m, &l)
	}
	list := make([]storedChunk, len(plain))
	for i, c := range plain {
		list[i] = storedChunk{c, codec.None, extent.RankOffset(c.rank, m.RankBytes) + c.off, c.n}
	}
	return list, nil
}
