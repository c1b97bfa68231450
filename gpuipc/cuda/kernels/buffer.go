package kernels

import (
	"fmt"
	"slices"

	"github.com/spliced-kv/spliced/gpuipc"
)

// BufferJob is a step of decoding for one layer of one request, on device memory.
// It decodes rows with the states and appends them, or flushes rows into the states, or both.
// Tensors are contiguous.
//
//	K  [Capacity, KeyHeads, DK] of Type           G  F32 [Capacity, Heads], or [Capacity, Heads, DK] with PerKey
//	U  [Capacity, Heads, DV] of Type              From, Out  F32 [Heads, DK, DV]
//
// If From is 0, the states are zero and only rows are read (KVBuffer §3.4). If Out is 0, the rows
// of New are appended and the states stay unchanged. Otherwise all rows are added to From, and the
// result is written to Out, which may be From. K, U and G stay unchanged then, and the caller must
// treat the buffer as empty. If rows branch, a flush uses the last row and its ancestors, such as
// the path of accepted drafts, and drops all other rows.
type BufferJob struct {
	Heads    int // value heads
	KeyHeads int // divides Heads: consecutive value heads share a key head
	DK, DV   int
	Type     gpuipc.DType
	PerKey   bool
	Delta    bool // delta rule: what the state returns for a key is subtracted from its value
	Capacity int  // rows for which there is memory
	Pending  int  // rows in the buffer
	K, U, G  uint64
	From     uint64
	Out      uint64
	New      BufferRows
	// Parents has one entry for each pending and new row: the row that this row follows, or
	// -1 if this row follows directly on the states. If Parents is nil, each row follows
	// the previous one.
	Parents []int32
}

// BufferRows has N new rows of an engine's projections. Q and K are [N, KeyHeads, DK], and V and
// Outputs are [N, Heads, DV], all of Type. G is as in BufferJob, and Beta [N, Heads] has the write
// strengths; both are F32. To read the states, a delta rule uses E [N, Heads, DK] of Type
// instead of K; 0 means K.
type BufferRows struct {
	N       int
	Type    gpuipc.DType
	Q, K, V uint64
	G       uint64
	Beta    uint64
	E       uint64
	Outputs uint64
}

const (
	bufferThreads  = 128
	bufferColumns  = 32 // columns of a state that one block of threads handles
	bufferGroups   = 16
	bufferRowBytes = 168 // bytes of a job in the tables: buffering::Job
	maxBufferRows  = 1 << 20
)

// bufferKernels has the largest number of new rows of each kernel.
var bufferKernels = []int{1, 4, 8}

// Buffer builds launches of spliced_buffer_1, _4 and _8. Usually that is one launch for each kernel
// that some job needs. A job with more than eight new rows needs further launches, which treat the
// rows of earlier launches as pending. More jobs than the height of a grid also need further
// launches. Launches must run in order. Jobs may differ in everything and run in any order, so no
// job may write what another reads or writes.
//
// Sums are added in another order than on the CPU. Compared with float64, outputs with F32 rows are
// correct to 1e-5 of the largest output. F16 and BF16 rows add their own rounding.
func Buffer(jobs []BufferJob) ([]Launch, error) {
	var waves [][][]*BufferJob // by wave and kernel
	for i := range jobs {
		if err := jobs[i].check(); err != nil {
			return nil, fmt.Errorf("buffer, job %d: %w", i, err)
		}
		a := jobs[i]
		for wave := 0; ; wave++ {
			part, more := a.cut(bufferKernels[len(bufferKernels)-1])
			if wave == len(waves) {
				waves = append(waves, make([][]*BufferJob, len(bufferKernels)))
			}
			if k := part.kernel(); part.New.N > 0 || part.Out != 0 {
				waves[wave][k] = append(waves[wave][k], part)
			}
			if !more {
				break
			}
		}
	}
	var launches []Launch
	for _, wave := range waves {
		for i, group := range wave {
			for part := range slices.Chunk(group, maxGridY) {
				launches = append(launches, bufferLaunch(bufferKernels[i], part))
			}
		}
	}
	return launches, nil
}

// cut splits a job with more than n new rows. The result has the first n new rows of a. In a
// itself these n rows become pending, and the remaining rows stay new. If a has at most n new
// rows, the result has all of them, more is false and a stays unchanged.
func (a *BufferJob) cut(n int) (first *BufferJob, more bool) {
	part := *a
	first = &part
	if a.New.N <= n {
		return first, false
	}
	first.Out, first.New.N = 0, n
	if a.Parents != nil {
		first.Parents = a.Parents[:a.Pending+n]
	}
	in, rows := &a.New, uint64(n)
	size := uint64(in.Type.Size())
	key, value := rows*uint64(a.KeyHeads*a.DK)*size, rows*uint64(a.Heads*a.DV)*size
	in.Q, in.K, in.V, in.Outputs = in.Q+key, in.K+key, in.V+value, in.Outputs+value
	in.G, in.Beta = in.G+rows*uint64(4*a.Heads*a.decays()), in.Beta+rows*uint64(4*a.Heads)
	if in.E != 0 {
		in.E += rows * uint64(a.Heads*a.DK) * size
	}
	in.N -= n
	a.Pending += n
	return first, true
}

// decays returns how many numbers the decay of a head has.
func (a *BufferJob) decays() int {
	if a.PerKey {
		return a.DK
	}
	return 1
}

func (a *BufferJob) check() error {
	const most = 1 << 16
	if a.Heads <= 0 || a.Heads > most || a.KeyHeads <= 0 || a.Heads%a.KeyHeads != 0 || a.DK <= 0 || a.DK > most || a.DV <= 0 || a.DV > most ||
		a.Heads*a.DV > 1<<30 || a.Heads*a.tiles() > maxGridX {
		return fmt.Errorf("%d heads of [%d, %d], %d of keys: %w", a.Heads, a.DK, a.DV, a.KeyHeads, gpuipc.ErrInvalid)
	}
	if a.Capacity < 0 || a.Capacity > maxBufferRows || a.Pending < 0 || a.New.N < 0 || a.Pending > a.Capacity || a.New.N > a.Capacity-a.Pending {
		return fmt.Errorf("%d and %d rows in a buffer of %d: %w", a.Pending, a.New.N, a.Capacity, gpuipc.ErrInvalid)
	}
	size := uint64(a.Type.Size())
	if size == 0 || a.rows() > 0 && (a.K == 0 || a.U == 0 || a.G == 0) || (a.K|a.U)%size != 0 || (a.G|a.From|a.Out)%4 != 0 {
		return fmt.Errorf("rows of type %d at %#x, %#x, %#x, states at %#x and %#x: %w", a.Type, a.K, a.U, a.G, a.From, a.Out, gpuipc.ErrInvalid)
	}
	if err := a.New.check(); err != nil {
		return err
	}
	if shared := a.shared(bufferKernels[a.kernel()]); shared > MaxShared {
		return fmt.Errorf("%d key dimensions take %d bytes of shared memory, most %d: %w", a.DK, shared, MaxShared, gpuipc.ErrInvalid)
	}
	return a.checkParents()
}

func (a *BufferJob) rows() int { return a.Pending + a.New.N }

func (r *BufferRows) check() error {
	if r.N == 0 {
		return nil
	}
	size := uint64(r.Type.Size())
	if size == 0 || r.Q == 0 || r.K == 0 || r.V == 0 || r.G == 0 || r.Beta == 0 || r.Outputs == 0 ||
		(r.Q|r.K|r.V|r.E|r.Outputs)%size != 0 || (r.G|r.Beta)%4 != 0 {
		return fmt.Errorf("%d new rows of type %d at %#x, %#x, %#x, %#x, %#x, %#x to %#x: %w", r.N, r.Type, r.Q, r.K, r.V, r.G, r.Beta, r.E, r.Outputs, gpuipc.ErrInvalid)
	}
	return nil
}

func (a *BufferJob) checkParents() error {
	if a.Parents == nil {
		return nil
	}
	if len(a.Parents) != a.rows() {
		return fmt.Errorf("%d parents of %d rows: %w", len(a.Parents), a.rows(), gpuipc.ErrInvalid)
	}
	for i, p := range a.Parents {
		if p < -1 || int(p) >= i {
			return fmt.Errorf("row %d behind row %d: %w", i, p, gpuipc.ErrInvalid)
		}
	}
	return nil
}

// The method kernel returns the index in bufferKernels of the kernel that handles the next part
// of the job: the smallest kernel with room for all new rows, else the largest kernel.
func (a *BufferJob) kernel() int {
	for i, m := range bufferKernels {
		if a.New.N <= m {
			return i
		}
	}
	return len(bufferKernels) - 1
}

// tiles returns the number of blocks of threads that share a head.
func (a *BufferJob) tiles() int { return (a.DV-1)/bufferColumns + 1 }

// The method shared returns the bytes of shared memory that buffering::layout takes. m is
// the largest number of new rows that the kernel handles.
func (a *BufferJob) shared(m int) int {
	channels := (a.DK + 3) / 4 * 4
	n := 2*m*channels + channels + bufferGroups*channels + bufferGroups*bufferColumns + 2*m*bufferGroups + 4*2*m*bufferColumns + m*bufferColumns + 2*m*m + m
	if a.From != 0 || a.Out != 0 {
		n += a.DK * bufferColumns
	}
	return 4 * n
}

func bufferLaunch(m int, jobs []*BufferJob) Launch {
	tables := make(words, bufferRowBytes*len(jobs))
	blocks, shared := 0, 0
	for i, a := range jobs {
		blocks, shared = max(blocks, a.Heads*a.tiles()), max(shared, a.shared(m))
		passes, count, ancestors := a.family(&tables)
		in, size := &a.New, uint64(a.Type.Size())
		var row words
		row.u64(a.From, a.Out, a.K, a.U, a.G, in.Q, in.K, in.V, in.G, in.Beta, in.E, in.Outputs, passes, ancestors)
		row.u32(uint32(a.Heads), uint32(a.KeyHeads), uint32(a.DK), uint32(a.DV), uint32(a.Type), uint32(in.Type),
			uint32(a.Pending), uint32(in.N), uint32(count), oneIf(a.PerKey), oneIf(a.Delta),
			oneIf(a.DV%4 == 0 && (a.From|a.Out)%16 == 0), oneIf(a.DV%4 == 0 && a.U%(4*size) == 0), 0)
		tables.put(bufferRowBytes*i, row)
	}
	return Launch{
		Name: fmt.Sprintf("spliced_buffer_%d", m), Grid: [3]uint32{uint32(blocks), uint32(len(jobs)), 1}, Block: [3]uint32{bufferThreads, 1, 1},
		Shared: uint32(shared), Args: arguments(), Tables: tables,
	}
}

// The method family describes branching rows by three things that it appends to tables. The
// first is a list of pending ancestors for the new rows; rows with the same ancestors share
// a list. The second is the list of the rows of a flush, if there is one. The third is a
// mask for each new row, which marks its ancestors among the new rows. For rows that do not
// branch, it appends nothing.
func (a *BufferJob) family(tables *words) (passes uint64, count int, ancestors uint64) {
	if a.chain() {
		return 0, 0, 0
	}
	var masks words
	var members []uint32
	var paths [][]uint32
	for i := range a.New.N {
		path, mask := a.ancestors(a.Pending + i)
		masks.u32(mask)
		at := 0
		for at < len(paths) && !slices.Equal(paths[at], path) {
			at++
		}
		if at == len(paths) {
			paths, members = append(paths, path), append(members, 0)
		}
		members[at] |= 1 << i
	}
	count = len(paths)
	if a.Out != 0 {
		paths, members = append(paths, a.lineage(a.rows()-1)), append(members, 0)
	}
	var rows words
	for i, path := range paths {
		at := tables.align(TableAlign)
		tables.u32(path...)
		rows.u32(members[i], uint32(len(path)), at, 0)
	}
	ancestors = uint64(tables.align(TableAlign))
	*tables = append(*tables, masks...)
	passes = uint64(tables.align(TableAlign))
	*tables = append(*tables, rows...)
	return passes, count, ancestors
}

// lineage returns a row and all its ancestors, ascending.
func (a *BufferJob) lineage(row int) []uint32 {
	var path []uint32
	for p := int32(row); p >= 0; p = a.Parents[p] {
		path = append(path, uint32(p))
	}
	slices.Reverse(path)
	return path
}

// chain reports whether each row follows the previous one.
func (a *BufferJob) chain() bool {
	if a.Parents == nil {
		return true
	}
	for i, p := range a.Parents {
		if int(p) != i-1 {
			return false
		}
	}
	return true
}

// ancestors returns the pending ancestors of a row, ascending, and a mask of its ancestors among
// the new rows.
func (a *BufferJob) ancestors(row int) (path []uint32, mask uint32) {
	for _, p := range a.lineage(int(a.Parents[row])) {
		if int(p) >= a.Pending {
			mask |= 1 << (int(p) - a.Pending)
		} else {
			path = append(path, p)
		}
	}
	return path, mask
}
