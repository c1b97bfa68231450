package kernels

import (
	"slices"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

func TestLaunchesThatDecodeAreTheGoldenOnes(t *testing.T) {
	var cases []goldenCase
	for _, c := range goldenBuffers() {
		launches, err := Buffer(c.jobs)
		cases = append(cases, newGoldenCase(t, "buffer", c.what, c.jobs, launches, err))
	}
	for _, c := range goldenAttends() {
		launches, err := Attend(c.jobs, 0x7f4000000000)
		cases = append(cases, newGoldenCase(t, "attend", c.what, c.jobs, launches, err))
	}
	checkGolden(t, "launches_decode.json", cases)
}

type goldenBuffer struct {
	what string
	jobs []BufferJob
}

func goldenBuffers() []goldenBuffer {
	step := goodBuffer()
	step.Heads, step.DK, step.DV, step.Capacity, step.Pending, step.New.N = 8, 128, 128, 16, 9, 1
	verify, flush, rows, long, tree, flat := step, step, step, step, step, step
	verify.New.N, verify.New.E = 5, 0xb000
	flush.Pending, flush.Out = 15, flush.From
	rows.From, rows.PerKey, rows.Capacity, rows.Pending = 0, true, 160, 130
	long.Capacity, long.New.N, long.Out, long.New.E = 64, 19, 0xc000, 0xb000
	tree.New.N, tree.Parents = 6, []int32{-1, 0, 1, 2, 3, 4, 5, 6, 6, 8, 9, 9, 11, 7, 13}
	flat.New.N, flat.Out = 0, flat.From
	odd := step
	odd.DK, odd.DV, odd.U, odd.From, odd.Delta = 33, 30, 0x2002, 0x4004, false
	none := step
	none.New.N = 0
	deep := tree
	deep.Capacity, deep.New.N = 64, 12
	for i := len(tree.Parents); i < deep.Pending+deep.New.N; i++ {
		deep.Parents = append(deep.Parents, int32(i/2))
	}
	taken := tree
	taken.Out = taken.From
	gone := taken
	gone.New.N, gone.Parents = 0, slices.Clone(tree.Parents[:8])
	gone.Pending, gone.Parents[7] = 8, 3
	return []goldenBuffer{
		{"one row", []BufferJob{step}},
		{"drafts, readers of their own", []BufferJob{verify}},
		{"the last row and a flush", []BufferJob{flush}},
		{"a flush alone", []BufferJob{flat}},
		{"rows without a state", []BufferJob{rows}},
		{"more rows than a launch takes", []BufferJob{long}},
		{"a tree of drafts", []BufferJob{tree}},
		{"a tree that takes two launches", []BufferJob{deep}},
		{"a flush of what the last row of a tree descends from", []BufferJob{taken, gone}},
		{"all kinds", []BufferJob{odd, verify, none, step, tree, rows, long, flush}},
		{"nothing", []BufferJob{none}},
	}
}

type goldenAttend struct {
	what string
	jobs []AttendJob
}

func goldenAttends() []goldenAttend {
	step := goodAttend()
	turn := &gpuipc.Rotation{Dims: 4, Interleaved: true, Cos: []float32{0.5, -1}, Sin: []float32{0.25, 0}}
	rows := step.Runs[0].Keys
	dense := AttendRun{Rows: 700, Begin: 1000, Keys: AttendRows{Base: 0x20000, RowStride: 256, HeadStride: 128}, Values: AttendRows{Base: 0x30000, RowStride: 128, HeadStride: 1 << 20}, Turn: turn}
	own := AttendRun{Rows: 40, Begin: 1700, Keys: rows, Values: rows, Blocks: []uint32{9, 2, 5, 8}, BlockRows: 16, FirstRow: 20}
	paged := step
	paged.Rows, paged.Begin, paged.Runs = 3, 1732, []AttendRun{{Rows: 1000, Keys: rows, Values: rows, Blocks: make([]uint32, 63), BlockRows: 16}, dense, own}
	other := paged
	other.Runs = []AttendRun{own, dense, {Rows: 5, Begin: 1733, Keys: rows, Values: rows}, {}}
	halves, single, odd := paged, paged, step
	halves.Type, single.Type, single.QType, single.KeyDim = kernel.F16, kernel.F32, kernel.F32, 32
	odd.KeyDim, odd.QType = 60, kernel.F32
	none, alone := step, step
	none.Rows, alone.Runs = 0, nil
	long := step
	long.Begin, long.Runs = 1<<24, []AttendRun{{Rows: 1 << 24, Keys: AttendRows{Base: 0x20000, RowStride: 256, HeadStride: 128}, Values: dense.Values}}
	seam := long
	seam.Rows, seam.Begin = 512, 20000
	return []goldenAttend{
		{"one run", []AttendJob{step}},
		{"runs of a request, turned and its own", []AttendJob{paged}},
		{"runs that two requests share", []AttendJob{paged, other}},
		{"all kinds", []AttendJob{odd, halves, single, none, paged, alone}},
		{"more rows than items of the least size", []AttendJob{long, step}},
		{"many rows of queries", []AttendJob{seam}},
		{"nothing", []AttendJob{none}},
	}
}
