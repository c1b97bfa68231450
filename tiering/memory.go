package tiering

import (
	"fmt"
	"slices"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Bounds that keep every product of a block, token or head number with its
// stride far from overflow.
const (
	maxMemoryBytes = 1 << 42
	maxBlockTokens = 1 << 16
)

// CheckMemory checks engine memory against a profile: every attention layer
// once, rows that do not overlap inside a block, and at least one block inside
// the region. The caller does so once, before the first use.
func (s *Store) CheckMemory(id tier.ProfileID, m *Memory) error {
	p, err := s.profile(id)
	if err != nil {
		return err
	}
	size := m.Region.Bytes()
	if size > maxMemoryBytes || m.BlockTokens < 1 || m.BlockTokens > maxBlockTokens {
		return fmt.Errorf("memory of %d bytes in blocks of %d tokens: %w", size, m.BlockTokens, tier.ErrInvalid)
	}
	seen := map[int]bool{}
	for i := range m.Layers {
		ml := &m.Layers[i]
		if _, err := p.Attention(ml.Layer); err != nil || ml.Layer == profile.AllLayers || seen[ml.Layer] {
			return fmt.Errorf("memory: layer %d is named twice or has no rows: %w", ml.Layer, tier.ErrInvalid)
		}
		seen[ml.Layer] = true
		for _, kind := range [...]profile.PartKind{profile.PartK, profile.PartV} {
			pl := p.paged(ml, kind)
			if err := pl.check(size, m.end(pl.base), m.BlockTokens); err != nil {
				return fmt.Errorf("memory: layer %d: %w", ml.Layer, err)
			}
		}
	}
	if n := len(p.AttentionLayers()); len(seen) != n {
		return fmt.Errorf("memory: %d of %d attention layers: %w", len(seen), n, tier.ErrInvalid)
	}
	return nil
}

// end is where the run of addresses ends that an offset lies in.
func (m *Memory) end(off int64) int64 {
	i, found := slices.BinarySearch(m.Chunks, off)
	if found {
		i++
	}
	if i < len(m.Chunks) {
		return m.Chunks[i]
	}
	return m.Region.Bytes()
}

// pagedRows is where the keys or the values of one layer lie in engine memory.
type pagedRows struct {
	base, block, token, head int64 // offset and strides in bytes
	heads                    int
	rowBytes                 int64 // of one head of one token
	align                    int64 // one element
}

func (p *profileState) paged(ml *MemoryLayer, kind profile.PartKind) pagedRows {
	a := &p.Layer(ml.Layer).Attention
	pr := pagedRows{base: ml.KBase, block: ml.BlockStride, token: ml.KTokenStride, head: ml.KHeadStride}
	dim := a.KeyDim
	if kind == profile.PartV {
		pr.base, pr.token, pr.head = ml.VBase, ml.VTokenStride, ml.VHeadStride
		dim = a.ValueDim
	}
	pr.heads = p.RankKVHeads(ml.Layer)
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

// blocks is how many blocks lie wholly before end.
func (pr *pagedRows) blocks(end int64, blockTokens int) int64 {
	span := int64(blockTokens-1)*pr.token + int64(pr.heads-1)*pr.head + pr.rowBytes
	room := end - pr.base - span
	if room < 0 {
		return 0
	}
	return room/pr.block + 1
}
