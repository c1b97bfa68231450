package connector

import (
	"fmt"
	"slices"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/policy/profile"
)

// NoBlock stands in a block table for rows that do not lie in one run of the
// arena; they have to be copied, with Rotate.
const NoBlock = wire.None

// blockTable is where a segment's rows lie in the arena: for each part of keys or
// values, in order of the layout, the offset of each block.
type blockTable struct {
	tokens int // of a block; 0 = no table
	offset []uint64
}

// blocks is the number of blocks of one part.
func (t *blockTable) blocks(tokens int) int { return (tokens-1)/t.tokens + 1 }

func (t *blockTable) rows(tokens, i int) int { return min(t.tokens, tokens-i*t.tokens) }

// hasRows tells keys and values from states.
func hasRows(p *profile.Part) bool { return p.Kind == profile.PartK || p.Kind == profile.PartV }

// checked compares what the daemon says with the segment and the arena, and keeps
// a copy of it.
func (t blockTable) checked(o *object, tokens, arena int) (blockTable, error) {
	if t.tokens == 0 {
		return blockTable{}, nil
	}
	left, n := t.offset, t.blocks(tokens)
	for i := range o.layout.Parts {
		p := &o.layout.Parts[i]
		if !hasRows(p) {
			continue
		}
		if len(left) < n {
			return t, fmt.Errorf("a block table of %d entries for %d tokens in blocks of %d", len(t.offset), tokens, t.tokens)
		}
		for k, off := range left[:n] {
			bytes := uint64(p.Len) / uint64(tokens) * uint64(t.rows(tokens, k))
			if off != NoBlock && (bytes > uint64(arena) || off > uint64(arena)-bytes) {
				return t, fmt.Errorf("a block of %d bytes at %d of an arena of %d", bytes, off, arena)
			}
		}
		left = left[n:]
	}
	if len(left) > 0 {
		return t, fmt.Errorf("a block table with %d entries too many", len(left))
	}
	t.offset = slices.Clone(t.offset)
	return t, nil
}

// Table is where the keys or the values of an attention layer lie, for a kernel
// that reads the arena by block table: for each block of AcquireOptions.BlockTokens
// interior tokens, from the first one on, the offset of its first row in the arena,
// or NoBlock. Rows of a block follow each other as [KV heads, dim]; the last block
// may have fewer. The table is shared and must not be changed; it holds as long as
// the lease. nil when none was asked for, or the layer has no such rows.
//
// Any number of requests may read a block at once, at different positions: keys
// are as profile.Attention.Keys says, either turned to the segment's own positions,
// so that one further turn by the position of its token 0 places them all, or not
// turned. The tokens before and behind the interior are in no table. They are the
// seam, computed for each request, and lie in blocks of its own.
func (l *Lease) Table(layer int, kind profile.PartKind) []uint64 {
	at, _ := l.tablePart(layer, kind)
	return at
}

// Block is a view of block i of Table, as [rows, KV heads, dim]; nil where Table
// has NoBlock, and when the lease is not valid any more. See Part on views.
func (l *Lease) Block(layer int, kind profile.PartKind, i int) []byte {
	at, p := l.tablePart(layer, kind)
	if i < 0 || i >= len(at) || at[i] == NoBlock || l.keep() != nil {
		return nil
	}
	defer l.held.a.Release()
	end := at[i] + uint64(p.Len)/uint64(l.Tokens)*uint64(l.table.rows(l.Tokens, i))
	return l.held.a.Arena.Bytes()[at[i]:end:end]
}

// tablePart finds a part and its rows of the table.
func (l *Lease) tablePart(layer int, kind profile.PartKind) ([]uint64, *profile.Part) {
	if l == nil || l.table.tokens == 0 {
		return nil, nil
	}
	n, first := l.table.blocks(l.Tokens), 0
	for i := range l.layout.Parts {
		p := &l.layout.Parts[i]
		switch {
		case !hasRows(p):
		case p.Layer == layer && p.Kind == kind:
			return l.table.offset[first : first+n : first+n], p
		default:
			first += n
		}
	}
	return nil, nil
}
