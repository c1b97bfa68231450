package plan

import (
	"fmt"
	"slices"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// EngineLayer says where one attention layer's rows are in engine memory. Numbers are bytes.
// Row t of head h of block b is at Base + b*BlockStride + t*TokenStride + h*HeadStride, with
// KBase and the strides K* for keys, and VBase and the strides V* for values.
type EngineLayer struct {
	Layer        int
	KBase        int64
	VBase        int64
	BlockStride  int64
	KTokenStride int64
	KHeadStride  int64
	VTokenStride int64
	VHeadStride  int64
}

// EngineMemory describes engine memory that has the rows of all attention layers in blocks.
// CheckMemory validates a value once for a profile. The value must not change afterwards.
type EngineMemory struct {
	Region gpuipc.Region
	// Chunks has the ends (offsets) of the runs of contiguous addresses in the region; nil
	// = one run. All keys of a layer must be in one run, and so must its values.
	Chunks      []int64
	BlockTokens int
	Layers      []EngineLayer
}

// Bounds that prevent overflow when a block, token or head number is multiplied by its stride.
const (
	maxMemoryBytes = 1 << 42
	maxBlockTokens = 1 << 16
)

// CheckMemory checks engine memory against a profile. Each attention layer must be listed
// once, rows must not overlap inside a block, and at least one block must fit into its
// run. The caller does so once, before the first use.
func (g *Geometry) CheckMemory(m *EngineMemory) error {
	size := m.Region.Bytes()
	if size > maxMemoryBytes || m.BlockTokens < 1 || m.BlockTokens > maxBlockTokens {
		return fmt.Errorf("memory of %d bytes in blocks of %d tokens: %w", size, m.BlockTokens, tier.ErrInvalid)
	}
	seen := map[int]bool{}
	for i := range m.Layers {
		ml := &m.Layers[i]
		if _, err := g.attention(ml.Layer); err != nil || ml.Layer == profile.AllLayers || seen[ml.Layer] {
			return fmt.Errorf("memory: layer %d is named twice or has no rows: %w", ml.Layer, tier.ErrInvalid)
		}
		seen[ml.Layer] = true
		for _, kind := range [...]profile.PartKind{profile.PartK, profile.PartV} {
			pl := g.paged(ml, kind)
			if err := pl.check(size, m.end(pl.base), m.BlockTokens); err != nil {
				return fmt.Errorf("memory: layer %d: %w", ml.Layer, err)
			}
		}
	}
	if n := len(g.AttentionLayers()); len(seen) != n {
		return fmt.Errorf("memory: %d of %d attention layers: %w", len(seen), n, tier.ErrInvalid)
	}
	return nil
}

// end returns the end of the run of addresses that contains the offset off.
func (m *EngineMemory) end(off int64) int64 {
	i, found := slices.BinarySearch(m.Chunks, off)
	if found {
		i++
	}
	if i < len(m.Chunks) {
		return m.Chunks[i]
	}
	return m.Region.Bytes()
}

// pagedRows describes the keys or the values of one layer in engine memory.
type pagedRows struct {
	base, block, token, head int64 // offset and strides in bytes
	heads                    int
	rowBytes                 int64 // bytes of one row of one head
	align                    int64 // size of one element
}

func (g *Geometry) paged(ml *EngineLayer, kind profile.PartKind) pagedRows {
	a := &g.Layer(ml.Layer).Attention
	pr := pagedRows{base: ml.KBase, block: ml.BlockStride, token: ml.KTokenStride, head: ml.KHeadStride}
	dim := a.KeyDim
	if kind == profile.PartV {
		pr.base, pr.token, pr.head = ml.VBase, ml.VTokenStride, ml.VHeadStride
		dim = a.ValueDim
	}
	pr.heads = g.RankKVHeads(ml.Layer)
	pr.align = int64(a.DType.Size())
	pr.rowBytes = int64(dim) * pr.align
	return pr
}

func (pr *pagedRows) check(size, end int64, blockTokens int) error {
	for _, v := range [...]int64{pr.base, pr.block, pr.token, pr.head} {
		if v < 0 || v > size || v%pr.align != 0 {
			return fmt.Errorf("offset or stride of %d in %d bytes: %w", v, size, tier.ErrInvalid)
		}
	}
	tight := blockTokens > 1 && pr.token < pr.rowBytes || pr.heads > 1 && pr.head < pr.rowBytes || pr.block < pr.rowBytes
	if tight || pr.blocks(end, blockTokens) < 1 {
		return fmt.Errorf("%d tokens of %d heads of %d bytes with strides %d, %d, %d from %d in a run that ends at %d: %w",
			blockTokens, pr.heads, pr.rowBytes, pr.block, pr.token, pr.head, pr.base, end, tier.ErrInvalid)
	}
	return nil
}

// blocks returns the number of blocks that lie completely before the offset end.
func (pr *pagedRows) blocks(end int64, blockTokens int) int64 {
	span := int64(blockTokens-1)*pr.token + int64(pr.heads-1)*pr.head + pr.rowBytes
	room := end - pr.base - span
	if room < 0 {
		return 0
	}
	return room/pr.block + 1
}

// boundMemory is engine memory together with the block table of one plan.
type boundMemory struct {
	*EngineMemory
	geometry *Geometry
	blocks   []uint32
	layer    map[int]*EngineLayer
}

// bind returns the destination's memory with its block table. It checks that every block
// that receives rows of the plan is inside the memory.
func (r *run) bind(d *Destination) (*boundMemory, error) {
	b := &boundMemory{EngineMemory: d.Memory, geometry: r.geometry, blocks: d.Blocks, layer: map[int]*EngineLayer{}}
	limit := int64(1) << 32
	for i := range d.Memory.Layers {
		ml := &d.Memory.Layers[i]
		b.layer[ml.Layer] = ml
		for _, kind := range [...]profile.PartKind{profile.PartK, profile.PartV} {
			pr := r.geometry.paged(ml, kind)
			limit = min(limit, pr.blocks(d.Memory.end(pr.base), d.Memory.BlockTokens))
		}
	}
	if n := len(r.chain); n > 0 {
		if err := b.check(0, r.chain[n-1].end, limit); err != nil {
			return nil, err
		}
	}
	for i := range r.spans {
		if sp := &r.spans[i]; sp.isSegment() {
			if err := b.check(sp.Start, sp.Start+sp.Count, limit); err != nil {
				return nil, fmt.Errorf("span %d: %w", i, err)
			}
		}
	}
	return b, nil
}

// check checks the table's entries for tokens [begin, end): block numbers must be below
// limit. It does not read entries of other tokens, which engines leave unset.
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

// scatter returns the destination of rows of a layer that begin at the prompt position at.
func (b *boundMemory) scatter(layer int, kind profile.PartKind, at int) gpuipc.Scatter {
	pr := b.geometry.paged(b.layer[layer], kind)
	return gpuipc.Scatter{
		Region: b.Region, Base: pr.base, Blocks: b.blocks, BlockRows: b.BlockTokens, FirstRow: at,
		BlockStride: pr.block, RowStride: pr.token, HeadStride: pr.head,
	}
}
