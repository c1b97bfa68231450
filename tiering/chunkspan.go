package tiering

import (
	"fmt"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// ChunkSpan is how many bytes the chunks [first, first+chunks) of a part of a
// reservation take: the length that CommitItem.Src must have. ErrInvalid when
// the part does not have these chunks.
func (c *Session) ChunkSpan(id tier.ReservationID, part, first, chunks int) (int64, error) {
	s := c.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := c.openLocked(); err != nil {
		return 0, err
	}
	f := c.fills[id]
	if f == nil {
		return 0, fmt.Errorf("reservation %d: %w", id, tier.ErrGone)
	}
	parts := f.object.fill.layout.Parts
	if part < 0 || part >= len(parts) {
		return 0, fmt.Errorf("%s: part %d of %d: %w", f.object.name(), part, len(parts), tier.ErrInvalid)
	}
	have := gpuipc.Chunks(parts[part].Len)
	if chunks <= 0 || first < 0 || first > have-chunks {
		return 0, fmt.Errorf("%s part %d: chunks [%d, +%d) of %d: %w", f.object.name(), part, first, chunks, have, tier.ErrInvalid)
	}
	off := int64(first) * gpuipc.ChunkBytes
	return min(int64(chunks)*gpuipc.ChunkBytes, parts[part].Len-off), nil
}
