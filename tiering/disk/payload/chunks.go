package payload

import (
	"fmt"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/disk/codec"
	"github.com/spliced-kv/spliced/tiering/disk/extent"
)

// chunk is the place in a rank's layout of the bytes that one digest covers.
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

// storedChunk is a chunk and its place in the payload.
type storedChunk struct {
	chunk
	codec codec.ID
	at    int64 // in the payload
	bytes int64 // stored size
}

// codedChunks lists the chunks of a coded payload with their locations. It returns an
// error if the manifest does not agree with the layout.
func codedChunks(m *extent.Manifest, l *profile.Layout) ([]storedChunk, error) {
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

// span is a range of indexes: first <= i < end.
type span struct{ first, end int }

// grouped divides a list into groups of neighboring chunks that are read together. A
// group has at most the given number of bytes, or a single chunk.
func grouped(list []storedChunk, bytes int64) (groups []span) {
	for i := 0; i < len(list); {
		g := span{i, i + 1}
		for g.end < len(list) && list[g.end].at+list[g.end].bytes-list[i].at <= bytes {
			g.end++
		}
		groups = append(groups, g)
		i = g.end
	}
	return groups
}
