package kernels

import (
	"fmt"
	"math"
	"slices"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// AttendJob is the attention of one layer for one request, on device memory. Q has
// consecutive query rows, [Rows, Heads, KeyDim], already rotated to their positions. They
// attend to the key and value rows of all Runs. The result is Out [Rows, Heads, ValueDim].
// Q and Out are contiguous and of QType. Consecutive heads share a key head.
type AttendJob struct {
	Rows     int
	Heads    int
	KeyHeads int // divides Heads
	KeyDim   int
	ValueDim int
	Begin    int          // position of the first query row
	Type     gpuipc.DType // of keys and values
	QType    gpuipc.DType
	Scale    float32 // factor of the scores, such as 1/sqrt(KeyDim)
	Q        uint64
	Out      uint64
	Runs     []AttendRun
}

// AttendRun is a run of rows of keys and values, read in place. All strides are in bytes.
// If BlockRows is 0, rows follow each other at RowStride. Otherwise the rows are in the
// blocks of a block table, and the run begins at row FirstRow of that table, as in
// RotateTarget. Keys and values share the table.
type AttendRun struct {
	Rows      int
	Begin     int // position of the first row; a query row sees rows up to its own position
	Keys      AttendRows
	Values    AttendRows
	Blocks    []uint32
	BlockRows int
	FirstRow  int
	// Turn is the rotation that the keys lack. If the keys were stored as if the run began
	// at position 0, but the run begins at position p here, Turn is the rotation by p
	// positions (MEPIC §4). The kernel rotates the queries by the inverse. nil means that
	// the keys are final.
	Turn *gpuipc.Rotation
}

// AttendRows is the place of keys or values. Base is the address of block 0. If
// AttendRun.BlockRows is 0, Base is the address of row 0.
type AttendRows struct {
	Base        uint64
	BlockStride int64
	RowStride   int64
	HeadStride  int64
}

const (
	attendThreads   = 128
	attendQueries   = 8  // queries of a key head that one block of threads handles
	attendKeys      = 64 // keys of a tile
	attendRowBytes  = 72 // bytes of a job in the tables: attending::Job
	attendRunBytes  = 96 // bytes of a run in the tables: attending::Run
	attendItemBytes = 24 // bytes of an item in the tables
	// attendItems is the approximate number of blocks of threads that share the work of a
	// launch: a few for each multiprocessor of any GPU. Many queries need many blocks
	// anyway; then the keys are cut into fewer parts. The number is a guess.
	attendItems = 1024
	// attendLeast is the smallest number of key rows of an attendItem. With fewer rows, the
	// work would not pay for the ValueDim numbers that an item writes for each query. The
	// number is a guess.
	attendLeast = 256
	// attendMost is the most queries of one key head, summed over the rows of a job.
	attendMost = attendQueries * maxGridY
	// maxAttendRows is the most rows in all runs of a launch together.
	maxAttendRows = 1 << 30
)

// Attend builds launches of spliced_attend_*, and of spliced_attend_join, which must run
// after them. The parameter scratch is the address of AttendScratch(jobs) bytes for
// intermediate results, aligned to 16. Jobs may differ in everything. Several jobs may read
// the same runs.
//
// Compared with float64, results with F32 keys and values are correct to 1e-5 of the
// largest value. With F16 and BF16 they are correct up to the rounding of the output. A
// query that sees no row gets zeros.
func Attend(jobs []AttendJob, scratch uint64) ([]Launch, error) {
	plan, err := planAttend(jobs)
	if err != nil {
		return nil, err
	}
	if plan.scratch > 0 && (scratch == 0 || scratch%16 != 0) {
		return nil, fmt.Errorf("attend: scratch at %#x: %w", scratch, gpuipc.ErrInvalid)
	}
	var launches []Launch
	for _, entry := range attendKernels {
		launches = append(launches, plan.launches(entry, scratch)...)
	}
	for part := range slices.Chunk(plan.jobs, maxGridY) {
		launches = append(launches, attendJoin(part, scratch))
	}
	return launches, nil
}

// AttendScratch returns the bytes of working memory that Attend of these jobs needs.
func AttendScratch(jobs []AttendJob) (int64, error) {
	plan, err := planAttend(jobs)
	if err != nil {
		return 0, err
	}
	return plan.scratch, nil
}

// attendKernels has the kernels, in the order of their launches.
var attendKernels = []string{"spliced_attend_f32", "spliced_attend_f16", "spliced_attend_bf16", "spliced_attend_any"}

// attendPlan assigns parts of jobs to blocks of threads.
type attendPlan struct {
	jobs    []plannedAttend
	scratch int64
}

type plannedAttend struct {
	*AttendJob
	entry        string
	items        []attendItem
	sums, scales int64 // offsets of its results in the scratch memory
}

// attendItem is a part of a run: count rows from row first on.
type attendItem struct{ run, first, count int }

func planAttend(jobs []AttendJob) (*attendPlan, error) {
	total, work := 0, 0
	for i := range jobs {
		if err := jobs[i].check(); err != nil {
			return nil, fmt.Errorf("attend, job %d: %w", i, err)
		}
		for r := range jobs[i].Runs {
			n := jobs[i].seen(&jobs[i].Runs[r]) * jobs[i].KeyHeads
			if total += n; total > maxAttendRows {
				return nil, fmt.Errorf("attend: more than %d rows: %w", maxAttendRows, gpuipc.ErrInvalid)
			}
			work += n * jobs[i].blocks()
		}
	}
	rows := max(attendLeast, (work/attendItems+attendKeys-1)/attendKeys*attendKeys)
	plan := &attendPlan{}
	for i := range jobs {
		if jobs[i].Rows > 0 {
			plan.add(&jobs[i], rows)
		}
	}
	return plan, nil
}

// add cuts the runs of a job into items of the given number of rows.
func (p *attendPlan) add(a *AttendJob, rows int) {
	j := plannedAttend{AttendJob: a, entry: a.entry()}
	for i := range a.Runs {
		n := a.seen(&a.Runs[i])
		for first := 0; first < n; first += rows {
			j.items = append(j.items, attendItem{i, first, min(rows, n-first)})
		}
	}
	n := int64(len(j.items)) * int64(a.Rows*a.Heads)
	j.sums = p.scratch
	j.scales = j.sums + (4*n*int64(a.ValueDim)+15)/16*16
	p.scratch = j.scales + (8*n+15)/16*16
	p.jobs = append(p.jobs, j)
}

// seen returns the number of rows of a run that some query row sees.
func (a *AttendJob) seen(r *AttendRun) int {
	return max(0, min(r.Rows, a.Begin+a.Rows-r.Begin))
}

// blocks returns the number of blocks of threads that share the queries of a key head.
func (a *AttendJob) blocks() int {
	return (a.Rows*a.Heads/a.KeyHeads + attendQueries - 1) / attendQueries
}

func (a *AttendJob) check() error {
	const most = 1 << 20
	if a.Rows < 0 || a.Rows > most || a.Begin < 0 || a.Begin > maxAttendRows || a.Heads <= 0 || a.Heads > most || a.KeyHeads <= 0 || a.KeyHeads > maxGridY || a.Heads%a.KeyHeads != 0 ||
		a.Rows*a.Heads/a.KeyHeads > attendMost || a.KeyDim <= 0 || a.KeyDim > most || a.ValueDim <= 0 || a.ValueDim > attendThreads*8 {
		return fmt.Errorf("%d rows of %d heads [%d, %d], %d of keys: %w", a.Rows, a.Heads, a.KeyDim, a.ValueDim, a.KeyHeads, gpuipc.ErrInvalid)
	}
	size := uint64(a.QType.Size())
	// The difference of an infinity, or of what is not a number, with itself is not a number.
	if size == 0 || a.Type.Size() == 0 || a.Rows > 0 && (a.Q == 0 || a.Out == 0) || (a.Q|a.Out)%size != 0 || a.Scale-a.Scale != 0 {
		return fmt.Errorf("queries of type %d at %#x to %#x, keys of type %d, scale %v: %w", a.QType, a.Q, a.Out, a.Type, a.Scale, gpuipc.ErrInvalid)
	}
	if n := a.shared(); n > MaxShared {
		return fmt.Errorf("[%d, %d] takes %d bytes of shared memory, most %d: %w", a.KeyDim, a.ValueDim, n, MaxShared, gpuipc.ErrInvalid)
	}
	for i := range a.Runs {
		if err := a.checkRun(&a.Runs[i]); err != nil {
			return fmt.Errorf("run %d: %w", i, err)
		}
	}
	return nil
}

func (a *AttendJob) checkRun(r *AttendRun) error {
	if r.Rows < 0 || r.Rows > maxAttendRows || r.Begin < 0 || r.Begin > maxAttendRows {
		return fmt.Errorf("%d rows at position %d: %w", r.Rows, r.Begin, gpuipc.ErrInvalid)
	}
	if t := r.Turn; t != nil && (t.Dims < 0 || t.Dims%2 != 0 || t.Dims > a.KeyDim || len(t.Cos) != t.Dims/2 || len(t.Sin) != t.Dims/2) {
		return fmt.Errorf("rotation of %d of %d dimensions: %w", t.Dims, a.KeyDim, gpuipc.ErrInvalid)
	}
	if r.Rows == 0 {
		return nil
	}
	switch {
	case r.BlockRows == 0 && (len(r.Blocks) > 0 || r.FirstRow != 0):
		return fmt.Errorf("rows without blocks have a block table: %w", gpuipc.ErrInvalid)
	case r.BlockRows < 0 || r.BlockRows > 1<<30 || r.FirstRow < 0 || r.FirstRow > 1<<30:
		return fmt.Errorf("blocks of %d rows, first %d: %w", r.BlockRows, r.FirstRow, gpuipc.ErrInvalid)
	case r.BlockRows > 0 && (r.FirstRow+r.Rows-1)/r.BlockRows >= len(r.Blocks):
		return fmt.Errorf("%d rows from row %d on end behind a table of %d blocks of %d: %w", r.Rows, r.FirstRow, len(r.Blocks), r.BlockRows, gpuipc.ErrInvalid)
	}
	for _, x := range []*AttendRows{&r.Keys, &r.Values} {
		if x.Base == 0 || x.BlockStride < 0 || x.RowStride < 0 || x.HeadStride < 0 || x.places()%uint64(a.Type.Size()) != 0 {
			return fmt.Errorf("rows at %#x, strides %d, %d and %d, of type %d: %w", x.Base, x.BlockStride, x.RowStride, x.HeadStride, a.Type, gpuipc.ErrInvalid)
		}
		end := addresses{at: x.Base}
		end.add(uint64(a.KeyHeads), uint64(x.HeadStride))
		if r.BlockRows > 0 {
			end.add(uint64(slices.Max(r.used())), uint64(x.BlockStride))
			end.add(uint64(r.BlockRows), uint64(x.RowStride))
		} else {
			end.add(uint64(r.Rows), uint64(x.RowStride))
		}
		if end.over {
			return fmt.Errorf("rows reach past the last address: %w", gpuipc.ErrInvalid)
		}
	}
	return nil
}

// places returns the bitwise or of all values that determine the alignment.
func (x *AttendRows) places() uint64 {
	return x.Base | uint64(x.BlockStride) | uint64(x.RowStride) | uint64(x.HeadStride)
}

// used returns the entries of the block table whose blocks have the rows.
func (r *AttendRun) used() []uint32 {
	if r.BlockRows == 0 || r.Rows == 0 {
		return nil
	}
	return r.Blocks[r.FirstRow/r.BlockRows : (r.FirstRow+r.Rows-1)/r.BlockRows+1]
}

// The method entry returns the name of the kernel for the job. The fast kernels, one for
// each type of keys, need rows that consist of complete pieces of eight numbers and are
// aligned to 16 bytes. All other jobs use spliced_attend_any.
func (a *AttendJob) entry() string {
	all := uint64(0)
	for i := range a.Runs {
		all |= a.Runs[i].Keys.places() | a.Runs[i].Values.places()
	}
	if a.KeyDim%8 != 0 || a.ValueDim%8 != 0 || all%16 != 0 {
		return "spliced_attend_any"
	}
	switch a.Type {
	case kernel.F16:
		return "spliced_attend_f16"
	case kernel.BF16:
		return "spliced_attend_bf16"
	}
	return "spliced_attend_f32"
}

// shared returns the bytes of shared memory that attending::layout takes.
func (a *AttendJob) shared() int {
	return 32*attendKeys + 4*attendQueries*((a.KeyDim+63)/64*64+attendKeys+1+a.ValueDim)
}

// launches returns the launches of one kernel.
func (p *attendPlan) launches(entry string, scratch uint64) []Launch {
	var group []plannedAttend
	var launches []Launch
	items := 0
	for _, j := range p.jobs {
		if j.entry != entry || len(j.items) == 0 {
			continue
		}
		if items > 0 && items+len(j.items) > maxGridX {
			launches = append(launches, attendLaunch(entry, group, scratch))
			group, items = nil, 0
		}
		group, items = append(group, j), items+len(j.items)
	}
	if items > 0 {
		launches = append(launches, attendLaunch(entry, group, scratch))
	}
	return launches
}

func attendLaunch(entry string, jobs []plannedAttend, scratch uint64) Launch {
	var t tables
	var items words
	keyHeads, blocks, shared, runs, first := 0, 0, 0, 0, 0
	for i := range jobs {
		j := &jobs[i]
		keyHeads, blocks, shared = max(keyHeads, j.KeyHeads), max(blocks, j.blocks()), max(shared, j.shared())
		t.words = append(t.words, j.row(first, scratch)...)
		for _, x := range j.items {
			items.u32(uint32(i), uint32(runs+x.run), uint32(x.first), uint32(x.count), uint32(int32(j.Begin+1-j.Runs[x.run].Begin)), 0)
		}
		runs, first = runs+len(j.Runs), first+len(j.items)
	}
	t.align(TableAlign)
	runsAt := len(t.words)
	itemsAt := runsAt + runs*attendRunBytes
	t.words = append(t.words, make(words, runs*attendRunBytes)...)
	t.words = append(t.words, items...)
	at := runsAt
	for i := range jobs {
		for r := range jobs[i].Runs {
			t.put(at, jobs[i].Runs[r].row(&t))
			at += attendRunBytes
		}
	}
	args := arguments()
	args.u64(uint64(runsAt), uint64(itemsAt))
	return Launch{
		Name: entry, Grid: [3]uint32{uint32(first), uint32(keyHeads), uint32(blocks)}, Block: [3]uint32{attendThreads, 1, 1},
		Shared: uint32(shared), Args: args, Tables: t.words,
	}
}

func attendJoin(jobs []plannedAttend, scratch uint64) Launch {
	var rows words
	blocks := 0
	for i := range jobs {
		blocks = max(blocks, jobs[i].Rows*jobs[i].Heads)
		rows = append(rows, jobs[i].row(0, scratch)...)
	}
	args := arguments()
	args.u64(0, 0)
	return Launch{
		Name: "spliced_attend_join", Grid: [3]uint32{uint32(blocks), uint32(len(jobs)), 1}, Block: [3]uint32{attendThreads, 1, 1},
		Args: args, Tables: rows,
	}
}

// row returns the job in the form of attending::Job.
func (j *plannedAttend) row(firstItem int, scratch uint64) words {
	var w words
	w.u64(j.Q, j.Out, scratch+uint64(j.sums), scratch+uint64(j.scales))
	w.u32(uint32(j.Rows), uint32(j.Heads), uint32(j.KeyHeads), uint32(j.KeyDim), uint32(j.ValueDim), uint32(j.Type), uint32(j.QType), uint32(firstItem), uint32(len(j.items)))
	w.f32(float32(float64(j.Scale) * math.Log2E))
	return w
}

// row returns the run in the form of attending::Run. It appends the run's data to the tables.
func (r *AttendRun) row(t *tables) words {
	var w words
	k, v := &r.Keys, &r.Values
	w.u64(k.Base, v.Base, uint64(k.BlockStride), uint64(k.RowStride), uint64(k.HeadStride), uint64(v.BlockStride), uint64(v.RowStride), uint64(v.HeadStride))
	w.u64(t.blocksOf(r.used()), t.turnsOf(r.Turn, nil, 0))
	first, half, interleaved := r.FirstRow, 0, false
	if r.BlockRows > 0 {
		first %= r.BlockRows
	}
	if r.Turn != nil {
		half, interleaved = r.Turn.Dims/2, r.Turn.Interleaved
	}
	w.u32(uint32(r.BlockRows), uint32(first), uint32(half), oneIf(interleaved))
	return w
}
