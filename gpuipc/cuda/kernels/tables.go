package kernels

import (
	"slices"

	"github.com/spliced-kv/spliced/gpuipc"
)

// tables has the rows of jobs, and after them the data of the jobs.
type tables struct {
	words
	turns  []placedTurn
	blocks []placedBlocks
}

// placedTurn is a rotation in the tables, and its offset. One of turn and perRow is set.
type placedTurn struct {
	turn   *gpuipc.Rotation
	perRow *gpuipc.RowRotation
	rows   int
	at     uint64
}

// placedBlocks is a block table in the tables, and its offset.
type placedBlocks struct {
	blocks []uint32
	at     uint64
}

// tablesBack is the number of earlier tables of each kind that are compared with a new one, to
// find an equal table.
const tablesBack = 4

// blocksOf returns the offset of a block table, 0 if it is empty.
func (t *tables) blocksOf(used []uint32) uint64 {
	if len(used) == 0 {
		return 0
	}
	for _, p := range t.blocks[max(0, len(t.blocks)-tablesBack):] {
		if slices.Equal(p.blocks, used) {
			return p.at
		}
	}
	at := uint64(t.align(TableAlign))
	t.u32(used...)
	t.blocks = append(t.blocks, placedBlocks{used, at})
	return at
}

// turnsOf returns the offset of the cosines and sines of a rotation, 0 if there are none.
func (t *tables) turnsOf(turn *gpuipc.Rotation, perRow *gpuipc.RowRotation, rows int) uint64 {
	if (turn == nil || turn.Dims == 0) && (perRow == nil || perRow.Dims == 0) {
		return 0
	}
	for _, p := range t.turns[max(0, len(t.turns)-tablesBack):] {
		if p.is(turn, perRow, rows) {
			return p.at
		}
	}
	at := uint64(t.align(TableAlign))
	if turn != nil {
		t.f32(turn.Cos...)
		t.f32(turn.Sin...)
	} else {
		t.rowAngles(perRow, rows)
	}
	t.turns = append(t.turns, placedTurn{turn, perRow, rows, at})
	return at
}

func (p *placedTurn) is(turn *gpuipc.Rotation, perRow *gpuipc.RowRotation, rows int) bool {
	if turn != nil {
		return p.turn != nil && slices.Equal(p.turn.Cos, turn.Cos) && slices.Equal(p.turn.Sin, turn.Sin)
	}
	return p.perRow != nil && p.rows == rows && p.perRow.Position == perRow.Position && slices.Equal(p.perRow.InvFreq, perRow.InvFreq)
}

func oneIf(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

// arguments returns an argument block with space for the address of the tables.
func arguments() words { return make(words, 8) }
