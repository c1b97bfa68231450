package disk

import (
	"context"
	"fmt"
	"runtime"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/kernel"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/disk/codec"
	"github.com/spliced-kv/spliced/tiering/disk/extent"
	"github.com/spliced-kv/spliced/tiering/disk/slab"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// codedMargin is what coding may need beyond the raw bytes of a part before it is
// given up for the part: the tables of its chunks.
const codedMargin = 64 << 10

// encoding makes the payload of a coded entry in memory: only then is known how
// long it is, and with it where its header ends. How much of this goes on at once
// is bounded by Tier.staging.
type encoding struct {
	tier    *Tier
	out     []byte // so far
	scratch []byte
	raw     uint64 // of coded parts
	coded   uint64
}

func (t *Tier) encodeShares(ctx context.Context, e *entry, o *tier.Object, m *extent.Manifest) (*prepared, error) {
	took := t.staging.take(int64(e.ranks) * e.rankBytes)
	layout := e.model.layout(e.Kind, e.end-e.begin)
	margin := int64(codedMargin + 64*len(chunksOf(&layout, e.ranks)))
	enc := &encoding{
		tier:    t,
		out:     slab.AlignedBuffer(int(blocks(extent.PayloadBytes(e.ranks, e.rankBytes) + margin)))[:0],
		scratch: make([]byte, 0, extent.ChunkBytes),
	}
	m.Coded, m.Parts = true, make([][]extent.Part, e.ranks)
	for i := range o.Shares {
		var err error
		if m.Parts[i], err = enc.rank(ctx, o.Shares[i].Ref, &layout); err != nil {
			t.staging.give(took)
			return nil, fmt.Errorf("disk: rank %d of %x: %w: %w", i, e.Key[:8], err, tier.ErrUnavailable)
		}
	}
	n := len(enc.out)
	payload := enc.out[:blocks(int64(n))]
	clear(payload[n:])
	for at := 0; at < len(payload); at += extent.ChunkBytes {
		m.StoredDigests = append(m.StoredDigests, gpuipc.DigestBytes(payload[at:min(at+extent.ChunkBytes, len(payload))]))
	}
	t.mu.Lock()
	t.counters.CodedRawBytes += enc.raw
	t.counters.CodedBytes += enc.coded
	t.mu.Unlock()
	p := &prepared{coded: true, release: func() { t.staging.give(took) }}
	if len(payload) > 0 {
		p.pieces = []piece{{b: payload}}
	}
	return p, nil
}

// rank adds one rank's parts.
func (enc *encoding) rank(ctx context.Context, ref gpuipc.Ref, l *profile.Layout) ([]extent.Part, error) {
	v, err := openView(ctx, enc.tier.cfg.Device, ref, false)
	if v != nil {
		defer v.close()
	}
	if err != nil {
		return nil, err
	}
	parts := make([]extent.Part, len(l.Parts))
	for i := range l.Parts {
		p := &l.Parts[i]
		parts[i] = extent.Part{Bytes: p.Len}
		if enc.tier.coded[p.Kind] && p.Len > 0 {
			ok, err := enc.part(v, p, &parts[i])
			if err != nil {
				return nil, err
			}
			if ok {
				continue
			}
		}
		for _, run := range v.window(p.Off, p.Len) {
			enc.out = append(enc.out, run...)
		}
	}
	return parts, nil
}

// part adds a part chunk by chunk, each a stream of its own, so that a reader has
// every digest's bytes by themselves. A part that does not shrink is left alone.
func (enc *encoding) part(v *view, p *profile.Part, out *extent.Part) (ok bool, err error) {
	start := len(enc.out)
	for at := int64(0); at < p.Len; at += extent.ChunkBytes {
		n := min(extent.ChunkBytes, p.Len-at)
		before := len(enc.out)
		raw := gather(v.window(p.Off+at, n), enc.scratch)
		enc.out, err = codec.Encode(enc.out, raw, kernel.DType(p.DType), codec.Options{Workers: runtime.GOMAXPROCS(0)})
		if err != nil {
			return false, err
		}
		out.Chunks = append(out.Chunks, uint32(len(enc.out)-before))
	}
	if stored := int64(len(enc.out) - start); stored < p.Len {
		out.Codec = uint8(codec.Planes)
		enc.raw += uint64(p.Len)
		enc.coded += uint64(stored)
		return true, nil
	}
	enc.out, out.Chunks = enc.out[:start], nil
	return false, nil
}

// storedChunk is one digest's bytes in a coded payload.
type storedChunk struct {
	chunk
	codec codec.ID
	at    int64 // in the payload
	bytes int64 // there
}

// storedChunks lists where each chunk lies, or says how the manifest disagrees
// with the layout.
func storedChunks(m *extent.Manifest, l *profile.Layout) ([]storedChunk, error) {
	var list []storedChunk
	at := int64(0)
	for rank := range m.Parts {
		if len(m.Parts[rank]) != len(l.Parts) {
			return nil, fmt.Errorf("%d parts, not %d", len(m.Parts[rank]), len(l.Parts))
		}
		for i := range l.Parts {
			p, stored := &l.Parts[i], &m.Parts[rank][i]
			coded := codec.ID(stored.Codec)
			if stored.Bytes != p.Len || coded > codec.Planes || coded != codec.None && len(stored.Chunks) != extent.Chunks(p.Len) {
				return nil, fmt.Errorf("part %d of %d bytes, %v, in %d chunks, not %d bytes", i, stored.Bytes, coded, len(stored.Chunks), p.Len)
			}
			for k := range extent.Chunks(p.Len) {
				off := int64(k) * extent.ChunkBytes
				c := storedChunk{chunk{rank, p, p.Off + off, min(extent.ChunkBytes, p.Len-off)}, coded, at, 0}
				if c.bytes = c.n; coded != codec.None {
					c.bytes = int64(stored.Chunks[k])
				}
				if c.bytes > int64(codec.MaxEncodedBytes(int(c.n), codec.Options{})) {
					return nil, fmt.Errorf("part %d: %d bytes stored of %d", i, c.bytes, c.n)
				}
				at += c.bytes
				list = append(list, c)
			}
		}
	}
	return list, nil
}
