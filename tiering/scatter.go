package tiering

import (
	"fmt"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// boundMemory is engine memory under the block table of one plan.
type boundMemory struct {
	*Memory
	profile *profileState
	blocks  []uint32
	layer   map[int]*MemoryLayer
}

// bind checks that every block that the plan's rows go to lies inside the
// memory.
func (h *heldPlan) bind(d *Destination) (*boundMemory, error) {
	b := &boundMemory{Memory: d.Memory, profile: h.profile, blocks: d.Blocks, layer: map[int]*MemoryLayer{}}
	limit := int64(1) << 32
	for i := range d.Memory.Layers {
		ml := &d.Memory.Layers[i]
		b.layer[ml.Layer] = ml
		for _, kind := range [...]profile.PartKind{profile.PartK, profile.PartV} {
			pr := h.profile.paged(ml, kind)
			limit = min(limit, pr.blocks(d.Memory.end(pr.base), d.Memory.BlockTokens))
		}
	}
	if h.base != nil {
		if err := b.check(0, h.base.end, limit); err != nil {
			return nil, err
		}
	}
	for i := range h.spans {
		if sp := &h.spans[i]; sp.object != nil {
			if err := b.check(sp.Start, sp.Start+sp.Count, limit); err != nil {
				return nil, fmt.Errorf("span %d: %w", i, err)
			}
		}
	}
	return b, nil
}

// check looks at the blocks of tokens [begin, end). Entries of other tokens are
// not read: engines leave them unset.
func (b *boundMemory) check(begin, end int, limit int64) error {
	first, last := begin/b.BlockTokens, (end-1)/b.BlockTokens
	if last >= len(b.blocks) {
		return fmt.Errorf("tokens up to %d in a table of %d blocks of %d: %w", end, len(b.blocks), b.BlockTokens, tier.ErrInvalid)
	}
	for i, block := range b.blocks[first : last+1] {
		if int64(block) >= limit {
			return fmt.Errorf("entry %d of the table is block %d of %d: %w", first+i, block, limit, tier.ErrInvalid)
		}
	}
	return nil
}

// scatter is the destination of rows that begin at a prompt position.
func (b *boundMemory) scatter(layer int, kind profile.PartKind, at int) gpuipc.Scatter {
	pr := b.profile.paged(b.layer[layer], kind)
	return gpuipc.Scatter{
		Region: b.Region, Base: pr.base, Blocks: b.blocks, BlockTokens: b.BlockTokens, FirstToken: at,
		BlockStride: pr.block, TokenStride: pr.token, HeadStride: pr.head,
	}
}
