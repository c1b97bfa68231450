package plan

import (
	"fmt"
	"math"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// NoBlock stands in a block table for rows that are packed, or do not lie in one run of
// the arena: an extent ends among them. They have to be copied, with Rotate.
const NoBlock = math.MaxUint64

// BlockEntries is the size of a segment's block table in blocks of blockTokens
// interior tokens.
func (g *Geometry) BlockEntries(tokens, blockTokens int) (int, error) {
	if blockTokens < 1 || blockTokens > maxBlockTokens || tokens < 1 || tokens > profile.MaxTokens {
		return 0, fmt.Errorf("block table of %d tokens in blocks of %d: %w", tokens, blockTokens, tier.ErrInvalid)
	}
	return 2 * len(g.AttentionLayers()) * ((tokens-1)/blockTokens + 1), nil
}

// BlockTable appends where the rows of a leased segment with so many interior tokens
// lie, for a kernel that reads the arena's own pages: for each attention layer in
// ascending order the keys and then the values, for each block of blockTokens
// interior tokens the offset of its first row in the arena, or NoBlock, as for all of
// what is packed. Rows of a block follow each other without gaps, [KV heads, dim] of the
// profile's element type; the last block may have fewer than blockTokens.
//
// Pages are shared: any number of requests may read them at once, at different
// positions, since keys are kept as of the segment's own token 0 or not rotated at
// all. An offset is a multiple of profile.PartAlign only where a row's size is.
// The table holds as long as the lease. packed is as of the segment.
func (g *Geometry) BlockTable(tokens int, packed profile.Packed, extents []gpuipc.Extent, blockTokens int, dst []uint64) ([]uint64, error) {
	n, err := g.BlockEntries(tokens, blockTokens)
	if err != nil || n == 0 {
		return dst, err
	}
	// Parts ascend, so one walk over the extents finds them all.
	w := extentWalk{left: extents}
	parts, err := g.PackedParts(tokens, packed)
	if err != nil {
		return dst, err
	}
	for i := range parts.Parts {
		part := &parts.Parts[i]
		if !IsRows(part.Kind) {
			continue
		}
		row := part.Len / int64(tokens)
		for first := 0; first < tokens; first += blockTokens {
			if part.Packed {
				dst = append(dst, NoBlock)
				continue
			}
			rows := min(blockTokens, tokens-first)
			dst = append(dst, w.find(part.Off+int64(first)*row, int64(rows)*row))
		}
	}
	return dst, nil
}

// extentWalk finds ascending ranges of an object in the arena.
type extentWalk struct {
	left []gpuipc.Extent
	at   int64 // offset in the object at which left begins
}

// find answers the arena offset of n bytes at off, NoBlock unless one extent has
// them all.
func (w *extentWalk) find(off, n int64) uint64 {
	for len(w.left) > 0 && off >= w.at+w.left[0].Len {
		w.at += w.left[0].Len
		w.left = w.left[1:]
	}
	if len(w.left) == 0 || w.left[0].Off < 0 || off+n > w.at+w.left[0].Len {
		return NoBlock
	}
	return uint64(w.left[0].Off + off - w.at)
}
