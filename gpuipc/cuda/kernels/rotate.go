package kernels

import (
	"fmt"
	"math"
	"slices"

	"github.com/spliced-kv/spliced/gpuipc"
)

// RotateJob is a gpuipc.RotateJob on device memory. Rows [Rows, Heads, Dim] of Type at Src
// are copied to Dst and rotated. Turn and PerRow are as in gpuipc.RotateJob, and at most one
// of them is set. Cosines and sines are computed here in the same way as on the host device,
// so that both devices rotate by the same numbers.
type RotateJob struct {
	Rows   int
	Heads  int
	Dim    int
	Type   gpuipc.DType
	Src    uint64
	Turn   *gpuipc.Rotation
	PerRow *gpuipc.RowRotation
	Dst    RotateTarget
}

// RotateTarget is the destination of rows. If BlockRows is 0, they are stored without gaps at
// Base, as [Rows, Heads, Dim]. Otherwise, with t = FirstRow+r, head h of row r is at
//
//	Base + Blocks[t/BlockRows]*BlockStride + (t%BlockRows)*RowStride + h*HeadStride
//
// as in gpuipc.Scatter, except that Base is the address of block 0. The caller must make sure
// that no two rows or heads overlap, and that all these bytes are writable.
type RotateTarget struct {
	Base        uint64
	Blocks      []uint32
	BlockRows   int
	FirstRow    int
	BlockStride int64
	RowStride   int64
	HeadStride  int64
}

const (
	rotateThreads  = 256
	rotateRowBytes = 152 // bytes of a job in the tables: rotation::Job
	// rotateBatch is the number of rows that a thread processes at once.
	rotateBatch = 6
	// rotateBlocks is the approximate number of blocks of threads for the numbers that are
	// rotated, over all jobs of a launch. As many blocks handle the numbers that are only
	// copied. 4096 is several blocks for each multiprocessor of any GPU, and few enough
	// that a thread uses its cosines and sines for many rows. Twice and half as many blocks
	// were slower on an H200.
	rotateBlocks = 4096
	// maxAngles bounds the cosines of a launch. The host needs 30 ns for each.
	maxAngles = 1 << 24
)

// Rotate builds the launches of spliced_rotate: one, unless there are more jobs than the
// height of a grid. Jobs may differ in everything. They run in any order, so no job may write
// what another reads or writes. Consecutive jobs with equal block tables or positions share
// one table.
//
// Results have the bits of gpuipc/kernel.RotateRows, except that a NaN in a rotated dimension
// may become another NaN.
func Rotate(jobs []RotateJob) ([]Launch, error) {
	var some []*plannedRotate
	angles := 0
	for i := range jobs {
		j, err := planRotate(&jobs[i])
		if err != nil {
			return nil, fmt.Errorf("rotate, job %d: %w", i, err)
		}
		if j.Rows == 0 {
			continue
		}
		if angles += j.angles(); angles > maxAngles {
			return nil, fmt.Errorf("rotate: more than %d cosines for one launch: %w", maxAngles, gpuipc.ErrInvalid)
		}
		some = append(some, j)
	}
	var launches []Launch
	for part := range slices.Chunk(some, maxGridY) {
		launches = append(launches, rotateLaunch(part))
	}
	return launches, nil
}

// plannedRotate is a checked RotateJob, with the plan of how threads share the work; see
// rotation::Job.
type plannedRotate struct {
	*RotateJob
	used        []uint32 // entries of the block table that the rows use
	first       int      // offset of row 0 in the first used block, in rows
	dims        int
	interleaved bool

	headBytes  uint64
	rowStride  uint64
	headStride uint64
	wide       bool
	copyBytes  uint64
	turned     rotatePart
	copied     rotatePart
}

// rotatePart says how blocks of threads share the numbers that are rotated, or those that are
// only copied; see rotation::Part.
type rotatePart struct {
	units      int
	lanes      int
	groupLanes int
	groups     int
	blocks     int // number of blocks that have work
}

// planRotate checks a job, and plans it if it has rows.
func planRotate(a *RotateJob) (*plannedRotate, error) {
	const most = 1 << 24
	if a.Rows < 0 || a.Rows > most || a.Heads <= 0 || a.Heads > most || a.Dim <= 0 || a.Dim > most || a.Heads > most/a.Dim {
		return nil, fmt.Errorf("%d rows of [%d, %d]: %w", a.Rows, a.Heads, a.Dim, gpuipc.ErrInvalid)
	}
	if a.Type.Size() == 0 {
		return nil, fmt.Errorf("element type %d: %w", a.Type, gpuipc.ErrInvalid)
	}
	j := &plannedRotate{RotateJob: a, headBytes: uint64(a.Dim * a.Type.Size())}
	if err := j.setTurn(); err != nil {
		return nil, err
	}
	if a.Rows == 0 {
		return j, nil
	}
	if err := j.setTarget(); err != nil {
		return nil, err
	}
	j.share()
	return j, nil
}

func (j *plannedRotate) setTurn() error {
	var want, cosines, sines int
	switch t, p := j.Turn, j.PerRow; {
	case t != nil && p != nil:
		return fmt.Errorf("one turn for all rows and one for each: %w", gpuipc.ErrInvalid)
	case t != nil:
		j.dims, j.interleaved = t.Dims, t.Interleaved
		want, cosines, sines = t.Dims/2, len(t.Cos), len(t.Sin)
	case p != nil:
		j.dims, j.interleaved = p.Dims, p.Interleaved
		want, cosines, sines = p.Dims/2, len(p.InvFreq), len(p.InvFreq)
	}
	if j.dims < 0 || j.dims%2 != 0 || j.dims > j.Dim || cosines != want || sines != want {
		return fmt.Errorf("rotation of %d of %d dimensions by %d and %d numbers: %w", j.dims, j.Dim, cosines, sines, gpuipc.ErrInvalid)
	}
	return nil
}

// setTarget cuts the block table down to the used entries. It checks that all addresses are
// valid and aligned to elements.
func (j *plannedRotate) setTarget() error {
	d := &j.Dst
	j.rowStride, j.headStride = uint64(d.RowStride), uint64(d.HeadStride)
	if d.BlockRows == 0 {
		if len(d.Blocks) != 0 || d.FirstRow != 0 || d.BlockStride|d.RowStride|d.HeadStride != 0 {
			return fmt.Errorf("rows without blocks have a block table or strides: %w", gpuipc.ErrInvalid)
		}
		j.rowStride, j.headStride = j.headBytes*uint64(j.Heads), j.headBytes
	} else if err := j.cutTable(); err != nil {
		return err
	}
	size := uint64(j.Type.Size())
	if j.Src == 0 || d.Base == 0 || (j.Src|d.Base|uint64(d.BlockStride)|j.rowStride|j.headStride)%size != 0 {
		return fmt.Errorf("rows at %#x to %#x, strides %d, %d, %d, of %d-byte elements: %w",
			j.Src, d.Base, d.BlockStride, j.rowStride, j.headStride, size, gpuipc.ErrInvalid)
	}
	last := uint64(j.Rows - 1)
	if d.BlockRows > 0 {
		last = uint64(d.BlockRows - 1)
	}
	end := addresses{at: d.Base}
	end.add(last, j.rowStride)
	end.add(uint64(j.Heads), max(j.headStride, j.headBytes))
	if len(j.used) > 0 {
		end.add(uint64(slices.Max(j.used)), uint64(d.BlockStride))
	}
	begin := addresses{at: j.Src}
	begin.add(uint64(j.Rows), j.headBytes*uint64(j.Heads))
	if end.over || begin.over {
		return fmt.Errorf("rows reach past the last address: %w", gpuipc.ErrInvalid)
	}
	return nil
}

func (j *plannedRotate) cutTable() error {
	const most = 1 << 30
	d := &j.Dst
	if d.BlockRows < 0 || d.BlockRows > most || d.FirstRow < 0 || d.FirstRow > math.MaxInt-j.Rows || d.BlockStride < 0 || d.RowStride < 0 || d.HeadStride < 0 {
		return fmt.Errorf("block table of %d rows a block, first %d, strides %d, %d, %d: %w",
			d.BlockRows, d.FirstRow, d.BlockStride, d.RowStride, d.HeadStride, gpuipc.ErrInvalid)
	}
	first, last := d.FirstRow/d.BlockRows, (d.FirstRow+j.Rows-1)/d.BlockRows
	if last >= len(d.Blocks) {
		return fmt.Errorf("rows end in block %d of %d: %w", last, len(d.Blocks), gpuipc.ErrInvalid)
	}
	j.used, j.first = d.Blocks[first:last+1], d.FirstRow%d.BlockRows
	return nil
}

// The method share splits each row into units, as wide as the alignment of all addresses
// allows, and shares the rows among threads.
func (j *plannedRotate) share() {
	size, dims := uint64(j.Type.Size()), uint64(j.dims)
	all := j.Src | j.Dst.Base | j.rowStride | j.headBytes
	if j.Heads > 1 {
		all |= j.headStride
	}
	if j.Dst.BlockRows > 0 {
		all |= uint64(j.Dst.BlockStride)
	}
	run := dims * size // bytes of adjacent elements that are rotated
	if !j.interleaved {
		run /= 2
	}
	j.wide = (all|run)%16 == 0
	turnUnits := j.dims / 2
	if j.wide {
		turnUnits = int(run / 16)
	}
	still := j.headBytes - dims*size
	low := all | still | dims*size | 16
	j.copyBytes = low & -low
	j.turned = j.part(turnUnits)
	j.copied = j.part(int(still / j.copyBytes))
}

func (j *plannedRotate) part(units int) rotatePart {
	if units == 0 {
		return rotatePart{}
	}
	p := rotatePart{units: units, lanes: j.Heads * units}
	p.groups = (p.lanes-1)/rotateThreads + 1
	p.groupLanes = (p.lanes-1)/p.groups + 1
	p.blocks = p.groups * ((j.Rows-1)/(rotateThreads/p.groupLanes*rotateBatch) + 1)
	return p
}

// atMost bounds the number of blocks. A part always keeps the blocks that one row needs.
func (p *rotatePart) atMost(blocks int) {
	if p.groups > 0 {
		p.blocks = min(p.blocks, max(1, blocks/p.groups)*p.groups)
	}
}

// angles returns the number of cosines that the job needs if it shares none with other jobs.
func (j *plannedRotate) angles() int {
	if j.PerRow != nil {
		return j.Rows * (j.dims / 2)
	}
	return j.dims / 2
}

func rotateLaunch(jobs []*plannedRotate) Launch {
	t := tables{words: make(words, len(jobs)*rotateRowBytes)}
	blocks := 1
	for i, j := range jobs {
		j.turned.atMost(rotateBlocks / len(jobs))
		j.copied.atMost(rotateBlocks / len(jobs))
		blocks = max(blocks, j.turned.blocks+j.copied.blocks)
		t.put(i*rotateRowBytes, j.row(t.turnsOf(j.Turn, j.PerRow, j.Rows), t.blocksOf(j.used)))
	}
	return Launch{
		Name: "spliced_rotate", Grid: [3]uint32{uint32(blocks), uint32(len(jobs)), 1}, Block: [3]uint32{rotateThreads, 1, 1},
		Args: arguments(), Tables: t.words,
	}
}

// row returns the job in the form of rotation::Job.
func (j *plannedRotate) row(turns, blocks uint64) words {
	form := uint32(0)
	switch {
	case j.dims > 0 && j.interleaved:
		form = 2
	case j.dims > 0:
		form = 1
	}
	var w words
	w.u64(j.Src, j.Dst.Base, turns, blocks, j.headBytes*uint64(j.Heads), j.headBytes,
		uint64(j.Dst.BlockStride), j.rowStride, j.headStride)
	w.u32(uint32(j.Rows), uint32(j.Dst.BlockRows), uint32(j.first), uint32(j.dims/2), uint32(j.Type), form,
		oneIf(j.PerRow != nil), oneIf(j.wide), uint32(j.copyBytes))
	for _, p := range []rotatePart{j.turned, j.copied} {
		w.u32(uint32(p.units), uint32(p.lanes), uint32(p.groupLanes), uint32(p.groups), uint32(p.blocks))
	}
	w.u32(0)
	return w
}
