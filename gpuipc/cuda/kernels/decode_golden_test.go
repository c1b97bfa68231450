package kernels

import (
	"testing"
)

func TestLaunchesThatDecodeAreTheGoldenOnes(t *testing.T) {
	var cases []goldenCase
	for _, c := range goldenBuffers() {
		launches, err := Buffer(c.jobs)
		cases = append(cases, newGoldenCase(t, "buffer", c.what, c.jobs, launches, err))
	}
	checkGolden(t, "launches_decode.json", cases)
}

type goldenBuffer struct {
	what string
	jobs []BufferArgs
}

func goldenBuffers() []goldenBuffer {
	step := goodBuffer()
	step.Heads, step.DK, step.DV, step.Capacity, step.Pending, step.In.N = 8, 128, 128, 16, 9, 1
	verify, flush, rows, long, tree, flat := step, step, step, step, step, step
	verify.In.N, verify.In.E = 5, 0xb000
	flush.Pending, flush.Out = 15, flush.From
	rows.From, rows.PerKey, rows.Capacity, rows.Pending = 0, true, 160, 130
	long.Capacity, long.In.N, long.Out, long.In.E = 64, 19, 0xc000, 0xb000
	tree.In.N, tree.Parents = 6, []int32{-1, 0, 1, 2, 3, 4, 5, 6, 6, 8, 9, 9, 11, 7, 13}
	flat.In.N, flat.Out = 0, flat.From
	odd := step
	odd.DK, odd.DV, odd.U, odd.From, odd.Delta = 33, 30, 0x2002, 0x4004, false
	none := step
	none.In.N = 0
	deep := tree
	deep.Capacity, deep.In.N = 64, 12
	for i := len(tree.Parents); i < deep.Pending+deep.In.N; i++ {
		deep.Parents = append(deep.Parents, int32(i/2))
	}
	return []goldenBuffer{
		{"one row", []BufferArgs{step}},
		{"drafts, readers of their own", []BufferArgs{verify}},
		{"the last row and a flush", []BufferArgs{flush}},
		{"a flush alone", []BufferArgs{flat}},
		{"rows without a state", []BufferArgs{rows}},
		{"more rows than a launch takes", []BufferArgs{long}},
		{"a tree of drafts", []BufferArgs{tree}},
		{"a tree that takes two launches", []BufferArgs{deep}},
		{"all kinds", []BufferArgs{odd, verify, none, step, tree, rows, long, flush}},
		{"nothing", []BufferArgs{none}},
	}
}
