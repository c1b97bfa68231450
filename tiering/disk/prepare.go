package disk

import (
	"context"
	"fmt"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/disk/extent"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// prepared is what a write gives to the disk behind its header.
type prepared struct {
	manifest []byte // as stored
	payload  int64
	pieces   []piece
	coded    bool
	release  func() // of the memory that pieces lie in
}

// headerBound is the longest header an object can get: the manifest stored with
// no gain. Room is counted before the manifest is made, since that takes longer
// than a lock may be held.
func (t *Tier) headerBound(o *tier.Object) int64 {
	const fixed = 512 // of all fields whose length is known
	n := int64(fixed + len(t.owners[o.Tenant].Name) + len(o.Publisher) + 4*len(o.Tokens))
	for i := range o.Shares {
		n += 8 * int64(len(o.Shares[i].Digests))
	}
	if t.codes() {
		// By part its codec and length, by chunk its stored length, by MiB a digest.
		for i := range o.Shares {
			n += codedPartBytes*int64(len(o.Shares[i].Digests)) + 8*int64(extent.Chunks(o.Shares[i].Ref.Len())+1)
		}
	}
	n += n/128 + 64 // of a zstd frame that does not compress
	return int64(extent.HeaderBytes(int(n)))
}

// codedPartBytes is what a part with one chunk adds to a manifest; one with more
// adds less for each. A part without bytes has no chunk, so a margin is kept.
const codedPartBytes = 2 * (1 + 8 + 4 + 4)

// codes says whether any part is coded.
func (t *Tier) codes() bool { return len(t.cfg.Coded) > 0 }

// prepare makes the bytes of a write ready: in place, or coded in memory.
func (t *Tier) prepare(ctx context.Context, e *entry, o *tier.Object) (*prepared, error) {
	m := describe(e, o)
	var p *prepared
	var err error
	if t.codes() {
		p, err = t.encodeShares(ctx, e, o, m)
	} else {
		p, err = t.viewShares(ctx, o)
	}
	if err != nil {
		return nil, err
	}
	p.payload = m.PayloadBytes()
	if p.manifest, err = m.Encode(nil); err != nil {
		p.release()
		return nil, fmt.Errorf("disk: %x: %w: %w", o.Key[:8], err, tier.ErrInvalid)
	}
	return p, nil
}

func describe(e *entry, o *tier.Object) *extent.Manifest {
	m := &extent.Manifest{
		Fingerprint: o.Profile.Fingerprint(), Tenant: e.owner.Name, Publisher: o.Publisher, Created: o.Created.UnixNano(),
		Spec: o.Spec, Begin: o.Begin, End: o.End, Parent: extentName(o.Parent), Tokens: o.Tokens,
		RankBytes: e.rankBytes, Digests: make([][]uint64, len(o.Shares)),
	}
	for i := range o.Shares {
		m.Digests[i] = o.Shares[i].Digests
	}
	return m
}

func extentName(n tier.Name) extent.Name { return extent.Name{Kind: uint8(n.Kind), Key: n.Key} }

func tierName(n extent.Name) tier.Name {
	return tier.Name{Kind: tier.CheckpointKind(n.Kind), Key: n.Key}
}

// viewShares takes the bytes as they lie in memory, rank after rank.
func (t *Tier) viewShares(ctx context.Context, o *tier.Object) (*prepared, error) {
	p := &prepared{}
	views := make([]*view, 0, len(o.Shares))
	p.release = func() {
		for _, v := range views {
			v.close()
		}
	}
	for i := range o.Shares {
		v, err := openView(ctx, t.cfg.Device, o.Shares[i].Ref, false)
		if v != nil {
			views = append(views, v)
		}
		if err != nil {
			p.release()
			return nil, fmt.Errorf("disk: rank %d of %x: %w: %w", i, o.Key[:8], err, tier.ErrUnavailable)
		}
		p.pieces = append(p.pieces, v.pieces...)
	}
	return p, nil
}

// chunk is one digest's bytes: where they lie in a rank's layout.
type chunk struct {
	rank int
	part *profile.Part
	off  int64 // in the rank's bytes
	n    int64
}

// chunksOf lists the chunks of all ranks in the order of their digests.
func chunksOf(l *profile.Layout, ranks int) []chunk {
	var list []chunk
	for rank := range ranks {
		for i := range l.Parts {
			p := &l.Parts[i]
			for at := int64(0); at < p.Len; at += extent.ChunkBytes {
				list = append(list, chunk{rank, p, p.Off + at, min(extent.ChunkBytes, p.Len-at)})
			}
		}
	}
	return list
}
