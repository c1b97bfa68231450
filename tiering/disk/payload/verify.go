package payload

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/kernel"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/disk/catalog"
	"github.com/spliced-kv/spliced/tiering/disk/codec"
	"github.com/spliced-kv/spliced/tiering/disk/extent"
	"github.com/spliced-kv/spliced/tiering/disk/slab"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Extent is the description of an extent that its own header contains.
type Extent struct {
	extent.Header
	Manifest *extent.Manifest
	Stored   []byte // the manifest as stored
}

// ReadExtent reads the header of the extent that begins at the start of runs.
// tier.ErrCorrupt means that there is no extent, or that its header is damaged. ErrUnread
// means that the disk has failed.
func ReadExtent(from Source, runs []slab.Run) (*Extent, error) {
	block := slab.AlignedBuffer(slab.BlockBytes)
	if err := readRuns(from, runs, 0, [][]byte{block}); err != nil {
		return nil, err
	}
	h, err := extent.Parse(block)
	if err != nil {
		return nil, Corrupt(err)
	}
	if h.Runs[0].Slab != runs[0].Slab || h.Runs[0].Off != runs[0].Off {
		return nil, fmt.Errorf("header of an extent that begins in %v, found in %v: %w", h.Runs[0], runs[0], tier.ErrCorrupt)
	}
	header := slab.AlignedBuffer(h.HeaderBytes)
	if err := readRuns(from, h.Runs, 0, [][]byte{header}); err != nil {
		return nil, err
	}
	return parse(header)
}

// parse parses a whole header.
func parse(header []byte) (x *Extent, err error) {
	x = &Extent{}
	if x.Header, err = extent.Parse(header); err != nil {
		return nil, Corrupt(err)
	}
	if x.Stored, err = x.Header.Manifest(header); err != nil {
		return nil, Corrupt(err)
	}
	if x.Manifest, err = extent.Decode(x.Stored); err != nil {
		return nil, Corrupt(err)
	}
	if x.Manifest.Coded != x.Coded || x.Manifest.PayloadBytes() != x.PayloadBytes {
		return nil, fmt.Errorf("header and manifest disagree about the payload: %w", tier.ErrCorrupt)
	}
	return x, nil
}

// Agrees compares an extent with the row that points to it and the name of the row's
// tenant. It returns an error if they differ.
func (x *Extent) Agrees(r *catalog.Row, tenant string) error {
	m := x.Manifest
	switch {
	case x.Name != r.Name || x.Generation != r.Generation:
		return fmt.Errorf("its space holds %v of generation %d, not of %d", x.Name, x.Generation, r.Generation)
	case x.HeaderBytes != r.HeaderBytes || x.PayloadBytes != r.PayloadBytes || x.Coded != r.Coded || x.ManifestSum != r.ManifestSum:
		return errors.New("lengths or manifest are not those of its header")
	case !slices.Equal(x.Runs, r.Runs):
		return fmt.Errorf("it lies in %v, its header says %v", r.Runs, x.Runs)
	case m.Fingerprint != r.Fingerprint || m.Tenant != tenant || m.Spec != r.Spec || m.Packed != r.Packed || m.Begin != r.Begin || m.End != r.End ||
		m.Parent != r.Parent || len(m.Digests) != r.Ranks || m.RankBytes != r.RankBytes:
		return errors.New("it is not described as in its manifest")
	}
	return nil
}

// Verify reads a whole extent and verifies every digest, and the seal if there is a key.
func (x *Extent) Verify(ctx context.Context, from Source, p *profile.Profile, key *extent.Key, workers int) error {
	list, err := x.chunks(p)
	if err != nil {
		return Corrupt(err)
	}
	var tags []byte
	if key.Seals(x.Generation) {
		tags = make([]byte, len(list)*extent.TagBytes)
	}
	groups := grouped(list, pieceBytes)
	err = parallel(ctx, len(groups), workers, func(i int) error {
		return x.verify(from, list, groups[i], key, tags)
	})
	if err != nil {
		return err
	}
	return x.Proven(key, x.Stored, tags)
}

// verify verifies the digests of neighboring chunks and computes their tags.
func (x *Extent) verify(from Source, list []storedChunk, g span, key *extent.Key, tags []byte) error {
	first, last := &list[g.first], &list[g.end-1]
	begin := first.at &^ (slab.BlockBytes - 1)
	buf := slab.AlignedBuffer(int(blocks(last.at + last.bytes - begin)))
	if err := readRuns(from, x.Runs, int64(x.HeaderBytes)+begin, [][]byte{buf}); err != nil {
		return err
	}
	for k := g.first; k < g.end; k++ {
		c := &list[k]
		raw := buf[c.at-begin : c.at-begin+c.bytes]
		if c.codec != codec.None {
			to := make([]byte, c.n)
			if err := codec.Decode(to, raw, kernel.DType(c.part.DType), codec.Options{}); err != nil {
				return Corrupt(err)
			}
			raw = to
		}
		if err := compareDigest(x.Manifest, k, gpuipc.DigestBytes(raw)); err != nil {
			return err
		}
		if tags != nil {
			at := k * extent.TagBytes
			key.Tag(tags[at:at:at+extent.TagBytes], [][]byte{raw})
		}
	}
	return nil
}

// Fits checks that the layout of an extent agrees with its profile. It does not read the
// payload.
func (x *Extent) Fits(p *profile.Profile) error {
	if _, err := x.chunks(p); err != nil {
		return Corrupt(err)
	}
	return nil
}

// chunks lists the chunks of an extent and their locations, coded or not.
func (x *Extent) chunks(p *profile.Profile) ([]storedChunk, error) {
	m := x.Manifest
	if m.Fingerprint != p.Fingerprint() || len(m.Digests) != p.TPSize() {
		return nil, fmt.Errorf("%d ranks of profile %x, which has %d", len(m.Digests), m.Fingerprint[:8], p.TPSize())
	}
	l, err := tier.LayoutOf(p, tier.CheckpointKind(x.Kind), m.End-m.Begin, m.Packed)
	if err != nil {
		return nil, err
	}
	if l.Bytes != m.RankBytes {
		return nil, fmt.Errorf("%d bytes a rank, its profile says %d", m.RankBytes, l.Bytes)
	}
	plain := chunksOf(&l, len(m.Digests))
	if len(plain) != len(m.Digests)*len(m.Digests[0]) {
		return nil, fmt.Errorf("%d digests a rank for %d chunks in all", len(m.Digests[0]), len(plain))
	}
	if x.Coded {
		return codedChunks(m, &l)
	}
	list := make([]storedChunk, len(plain))
	for i, c := range plain {
		list[i] = storedChunk{c, codec.None, extent.RankOffset(c.rank, m.RankBytes) + c.off, c.n}
	}
	return list, nil
}
