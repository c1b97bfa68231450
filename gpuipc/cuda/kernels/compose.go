package kernels

import (
	"fmt"
	"math"
	"slices"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// ComposeJob is a gpuipc.ComposeJob on device memory. All tensors are contiguous, and an
// address of 0 means that a tensor is absent. Out may equal From. Apart from that, no bytes
// that a job writes may overlap any other tensor of the launch.
//
// A dense step whose T is F32 is not exact at the edge of F32's range. If rounding a number
// to 11 bits overflows (from 0x7f7ff000 on, 3.4e38), the result is NaN, even if the exact
// product is finite.
type ComposeJob struct {
	Transition gpuipc.Transition
	Heads      int
	DK, DV     int
	From       uint64 // F32 [Heads, DK, DV]
	Steps      []ComposeStep
	Out        uint64 // F32 [Heads, DK, DV]
}

// ComposeStep is one step of a ComposeJob, see gpuipc.ComposeStep. Addresses must be
// aligned to elements, except addresses of packed parts.
type ComposeStep struct {
	T, S, Before uint64
	TType, SType gpuipc.DType
	// TPacked and SPacked are the lengths in bytes of the packed parts (kernel.Packed) at T
	// and S. 0 means plain numbers. For a malformed part, no byte after its end is read,
	// and heads are zeros.
	TPacked, SPacked int64 `json:",omitempty"`
	Rotation         *gpuipc.Rotation
}

// Compose builds the launches for jobs, such as all layers of a model. All jobs that use
// the same kernel are in one launch, whatever their shapes. Launches do not depend on each
// other.
//
// Scalar and diagonal states have the bits of gpuipc/kernel. Dense states are close to
// those in float64. Measured as the root of the mean square, the error is 2.7e-7 in the
// emulation after up to 6 steps (the tests allow 1e-6). It is 1.1e-6 after 40 steps whose
// transitions keep the state's size, where plain F32 has 6e-7. An infinity in a dense state
// may become a NaN.
//
// Packed parts are read in place. Dense results are about as close to float64 of the stored
// numbers: 3e-7 after 3 steps and 2e-6 after 40, where the state is stored to 2^-24 of the
// largest number of its column. Results of other transitions have the bits of
// gpuipc/kernel.
//
// The fastest jobs have rows of a multiple of 16 bytes (in packed parts: of 8 numbers) at
// addresses aligned to 16, and dense transitions of at most 192 key dimensions. Other jobs
// use simple and slow kernels. So do packed parts without dense transitions.
//
// Compose refuses inconsistent sizes, types or addresses, packed parts of 4 GiB or more, and
// dense transitions with so many key dimensions that a column of the state does not fit
// shared memory (about 10,000).
func Compose(jobs []ComposeJob) ([]Launch, error) {
	groups := make([][]*ComposeJob, composeKernels)
	for i := range jobs {
		j := &jobs[i]
		if err := j.check(); err != nil {
			return nil, fmt.Errorf("compose, job %d: %w", i, err)
		}
		if j.writes() {
			k := j.kernel()
			groups[k] = append(groups[k], j)
		}
	}
	var launches []Launch
	for k, group := range groups {
		for part := range slices.Chunk(group, maxGridY) {
			l, err := composeKernel(k).launch(part)
			if err != nil {
				return nil, fmt.Errorf("compose: %w", err)
			}
			launches = append(launches, l)
		}
	}
	return launches, nil
}

// composeKernel is one of the kernels. A job uses the fastest kernel that supports it.
type composeKernel int

const (
	composeRows composeKernel = iota
	composeNumbers
	composeTurned
	composeSingle
	composeDense64
	composeDense128
	composeDense192
	composePlain
	composePacked64
	composePacked128
	composePacked192
	composePackedPlain
	composePackedSingle
	composeKernels = iota
)

func (k composeKernel) String() string {
	return [...]string{"spliced_compose_rows", "spliced_compose_numbers", "spliced_compose_turned", "spliced_compose_single",
		"spliced_compose_dense_64", "spliced_compose_dense_128", "spliced_compose_dense_192", "spliced_compose_plain",
		"spliced_compose_packed_64", "spliced_compose_packed_128", "spliced_compose_packed_192",
		"spliced_compose_packed_plain", "spliced_compose_packed_single"}[k]
}

func (j *ComposeJob) check() error {
	const most, steps = 1 << 20, 1 << 20
	if j.Heads <= 0 || j.DK <= 0 || j.DV <= 0 || j.Heads > most || j.DK > most || j.DV > most || j.numbers() > 1<<31 {
		return fmt.Errorf("%d heads of [%d, %d]: %w", j.Heads, j.DK, j.DV, gpuipc.ErrInvalid)
	}
	if j.factors() == 0 || len(j.Steps) > steps {
		return fmt.Errorf("transition %d, %d steps: %w", j.Transition, len(j.Steps), gpuipc.ErrInvalid)
	}
	if (j.From|j.Out)%4 != 0 {
		return fmt.Errorf("states at %#x and %#x: %w", j.From, j.Out, gpuipc.ErrInvalid)
	}
	for i := range j.Steps {
		if err := j.checkStep(&j.Steps[i]); err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
	}
	if k := j.kernel(); k == composePlain || k == composePackedPlain {
		if plainColumns(j.DK) == 0 {
			return fmt.Errorf("dense transitions of %d key dimensions: %w", j.DK, gpuipc.ErrInvalid)
		}
	}
	return nil
}

func (j *ComposeJob) checkStep(s *ComposeStep) error {
	if s.Before%4 != 0 || (s.T == 0) != (s.S == 0) {
		return fmt.Errorf("T at %#x, S at %#x, state before at %#x: %w", s.T, s.S, s.Before, gpuipc.ErrInvalid)
	}
	if s.S == 0 {
		return nil
	}
	tSize, sSize := uint64(s.TType.Size()), uint64(s.SType.Size())
	if tSize == 0 || sSize == 0 || j.Transition == kernel.Scalar && s.TType != kernel.F32 ||
		s.TPacked == 0 && s.T%tSize != 0 || s.SPacked == 0 && s.S%sSize != 0 {
		return fmt.Errorf("T of type %d at %#x, S of type %d at %#x: %w", s.TType, s.T, s.SType, s.S, gpuipc.ErrInvalid)
	}
	if s.TPacked != 0 && j.Transition != kernel.Dense || !j.fitsPart(s.TPacked) || !j.fitsPart(s.SPacked) {
		return fmt.Errorf("transition %d, packed parts of %d and %d bytes: %w", j.Transition, s.TPacked, s.SPacked, gpuipc.ErrInvalid)
	}
	if r := s.Rotation; r != nil {
		if j.Transition != kernel.Scalar {
			return fmt.Errorf("rotation with transition %d, only scalar ones commute: %w", j.Transition, gpuipc.ErrInvalid)
		}
		if r.Dims < 0 || r.Dims%2 != 0 || r.Dims > j.DK || len(r.Cos) != r.Dims/2 || len(r.Sin) != r.Dims/2 {
			return fmt.Errorf("rotation of %d of %d dimensions with %d cosines and %d sines: %w",
				r.Dims, j.DK, len(r.Cos), len(r.Sin), gpuipc.ErrInvalid)
		}
	}
	return nil
}

// fitsPart reports whether a packed part of n bytes has room for its header. 0 means that
// there is no packed part, which fits too.
func (j *ComposeJob) fitsPart(n int64) bool {
	return n == 0 || n >= int64(kernel.PackedHeader(j.Heads)) && n <= math.MaxUint32
}

func (j *ComposeJob) numbers() int { return j.Heads * j.DK * j.DV }

// factors returns how many numbers the T of a head has.
func (j *ComposeJob) factors() int {
	switch j.Transition {
	case kernel.Scalar:
		return 1
	case kernel.Diagonal:
		return j.DK
	case kernel.Dense:
		return j.DK * j.DK
	}
	return 0
}

// span returns the number of consecutive numbers of the state that one factor multiplies.
func (j *ComposeJob) span() int { return j.DK * j.DV / min(j.factors(), j.DK*j.DV) }

// writes reports whether the job has any output.
func (j *ComposeJob) writes() bool {
	if j.Out != 0 && (j.Out != j.From || len(j.Steps) > 0) {
		return true
	}
	return slices.ContainsFunc(j.Steps, func(s ComposeStep) bool { return s.Before != 0 })
}

func (j *ComposeJob) kernel() composeKernel {
	if j.Transition == kernel.Dense {
		return j.denseKernel()
	}
	if j.packed() {
		return composePackedSingle
	}
	_, one := j.pairs()
	switch {
	case !j.aligned():
		return composeSingle
	case j.turns() && one && j.DV%4 == 0:
		return composeTurned
	case j.turns():
		return composeSingle
	case j.span()%4 == 0:
		return composeRows
	case j.span() == 1 && j.numbers()%4 == 0 && j.alignedFactors():
		return composeNumbers
	}
	return composeSingle
}

// packed reports whether some step has packed parts.
func (j *ComposeJob) packed() bool {
	return slices.ContainsFunc(j.Steps, func(s ComposeStep) bool { return s.S != 0 && (s.TPacked != 0 || s.SPacked != 0) })
}

// aligned reports whether four consecutive numbers can be read and written at once.
func (j *ComposeJob) aligned() bool {
	states := j.From | j.Out
	for i := range j.Steps {
		s := &j.Steps[i]
		states |= s.Before
		if s.S%uint64(max(1, 4*s.SType.Size())) != 0 {
			return false
		}
	}
	return states%16 == 0
}

// alignedFactors reports whether four consecutive numbers of T can be read at once.
func (j *ComposeJob) alignedFactors() bool {
	return !slices.ContainsFunc(j.Steps, func(s ComposeStep) bool { return s.T%uint64(max(1, 4*s.TType.Size())) != 0 })
}

func (j *ComposeJob) turns() bool {
	return slices.ContainsFunc(j.Steps, func(s ComposeStep) bool { return s.turned() })
}

func (s *ComposeStep) turned() bool { return s.S != 0 && s.Rotation != nil && s.Rotation.Dims > 0 }

// pairs returns a rotation with the Dims and Interleaved of the steps' rotations.
// The result one is false if the steps differ in them.
func (j *ComposeJob) pairs() (r gpuipc.Rotation, one bool) {
	for i := range j.Steps {
		if !j.Steps[i].turned() {
			continue
		}
		next := j.Steps[i].Rotation
		if r.Dims != 0 && (r.Dims != next.Dims || r.Interleaved != next.Interleaved) {
			return r, false
		}
		r = *next
	}
	return r, true
}

// denseKernel returns the kernel for the job's key dimensions. If the states cannot be
// split into strips, it returns the plain kernel.
func (j *ComposeJob) denseKernel() composeKernel {
	plain, first := composePlain, composeDense64
	if j.packed() {
		plain, first = composePackedPlain, composePacked64
	}
	switch {
	case !j.inStrips() || j.DK > 192:
		return plain
	case j.DK > 128:
		return first + 2
	case j.DK > 64:
		return first + 1
	}
	return first
}

// inStrips reports whether the job can be computed in strips. Then all rows of T and S can
// be copied in units of 16 bytes, and states in units of two numbers. Packed parts may be
// at any address, but their rows must have a multiple of 8 numbers.
func (j *ComposeJob) inStrips() bool {
	states := j.From | j.Out
	for i := range j.Steps {
		s := &j.Steps[i]
		states |= s.Before
		if s.S != 0 && (!whole(s.T, s.TPacked, j.DK, s.TType.Size()) || !whole(s.S, s.SPacked, j.DV, s.SType.Size())) {
			return false
		}
	}
	return states%8 == 0 && j.DV%2 == 0
}

// whole reports whether rows of so many numbers, or packed ones, can be copied in units of 16
// bytes.
func whole(at uint64, packed int64, numbers, size int) bool {
	return at%16 == 0 && (packed != 0 && numbers%8 == 0 || packed == 0 && numbers*size%16 == 0)
}

const (
	streamThreads = 256
	plainThreads  = 128
)

func (k composeKernel) launch(jobs []*ComposeJob) (Launch, error) {
	args := arguments()
	threads, shared, columns := streamThreads, uint32(0), 0
	switch k {
	case composeRows, composeNumbers, composeTurned, composeSingle, composePackedSingle:
	case composePlain, composePackedPlain:
		dk := mostDK(jobs)
		threads, columns = plainThreads, plainColumns(dk)
		shared = plainShared(dk, columns)
		args.u32(uint32(columns), uint32(8*dk*columns), uint32(dk), 0)
	default:
		r := k.ring(jobs)
		threads, columns = 2*r.columns, r.columns
		shared = r.bytes()
		args.u32(r.arguments()...)
	}
	most := 0
	for _, j := range jobs {
		most = max(most, k.blocks(j, columns))
	}
	tables := composeTables(jobs)
	if most > maxGridX || len(tables) > 1<<30 {
		return Launch{}, fmt.Errorf("%d blocks, %d bytes of tables: %w", most, len(tables), gpuipc.ErrInvalid)
	}
	return Launch{
		Name: k.String(), Grid: [3]uint32{uint32(most), uint32(len(jobs)), 1}, Block: [3]uint32{uint32(threads), 1, 1},
		Shared: shared, Args: args, Tables: tables,
	}, nil
}

// blocks returns the number of blocks of threads for a job. The parameter columns is the width
// of the strips of kernels that compute in strips.
func (k composeKernel) blocks(j *ComposeJob, columns int) int {
	switch k {
	case composeRows, composeNumbers:
		return streamBlocks(j.numbers() / 4)
	case composeTurned:
		return streamBlocks(j.Heads * ((j.DK + 1) / 2) * (j.DV / 4))
	case composeSingle:
		return streamBlocks(j.numbers())
	case composePackedSingle:
		return j.Heads * streamBlocks(j.DK*j.DV)
	}
	return strips(j, columns)
}

func streamBlocks(units int) int { return (units + streamThreads - 1) / streamThreads }

func mostDK(jobs []*ComposeJob) (n int) {
	for _, j := range jobs {
		n = max(n, j.DK)
	}
	return n
}

// strips returns the number of strips of the given columns in all states of the job.
func strips(j *ComposeJob, columns int) int { return j.Heads * ((j.DV + columns - 1) / columns) }

// plainColumns returns the columns of the widest strip of a state with dk rows for which
// two strips fit into shared memory; 0 if not even one column fits.
func plainColumns(dk int) int {
	for columns := 8; columns > 0; columns /= 2 {
		if dk <= MaxShared && plainShared(dk, columns) <= MaxShared {
			return columns
		}
	}
	return 0
}

// plainShared returns the bytes of two strips of the state and a piece of T, which has 33
// numbers for each row of threads.
func plainShared(dk, columns int) uint32 {
	return uint32((8*dk*columns + plainThreads/columns*33*4 + 15) / 16 * 16)
}

// ring is the layout of shared memory in dense kernels. It begins with slots; each has room
// for a tile of 32 rows of T and a tile of 32 rows of S. The new states of all warps are at
// the end. Kernels for packed parts divide the room of the slots according to the forms
// that they find. There is room for two tiles of any form. Between the slots and the new
// states, these kernels also keep the places of heads.
type ring struct {
	columns                int
	tBytes, sBytes, scales uint32 // bytes of a tile
	slots                  uint32 // number of slots
	room, heads            uint32 // for packed parts: bytes of all slots together, and of the places of heads
	park                   uint32 // bytes of the new states of all warps
}

func (r *ring) slot() uint32 { return r.tBytes + r.sBytes + r.scales }

func (r *ring) bytes() uint32 { return r.behind() + r.heads + r.park }

// The method behind returns the offset of the end of the slots, in bytes.
func (r *ring) behind() uint32 {
	if r.room != 0 {
		return r.room
	}
	return r.slots * r.slot()
}

// arguments returns the values of DenseArgs, or of PackedArgs for packed parts.
func (r *ring) arguments() []uint32 {
	if r.room == 0 {
		return []uint32{uint32(r.columns), r.tBytes, r.slot(), r.slots, r.behind(), 0}
	}
	return []uint32{uint32(r.columns), r.room, r.room, r.room + r.heads}
}

// sharedOfThree is the shared memory of a block if three blocks run on a multiprocessor
// with 227 KiB. On an H200, three blocks with two tiles each are an eighth faster than two
// blocks with three tiles.
const sharedOfThree = 75 << 10

// multiprocessors is the number of multiprocessors of an H200. Strips are chosen for this
// number. A device with fewer multiprocessors runs the same blocks in more waves.
const multiprocessors = 132

// ring chooses how many columns the strip of a block has, and how many tiles are in flight.
// Columns of a state do not mix, so strips are independent over all steps. But each strip
// reads T. HBM delivers T once, because strips of a head run at about the same time;
// L2 delivers it once per strip. So ring chooses strips of 64 columns, unless strips of
// 32 reduce the load of the busiest multiprocessor by a quarter.
//
// Example: 32 heads of 128 columns are 128 blocks of 32 columns, which keep 128 of 132
// multiprocessors busy; 64 blocks of 64 columns would leave half of them idle. 30 such
// layers are 1,920 blocks of 64 columns with four warps each, three at once on a
// multiprocessor. More than 64 columns do not fit the shared memory of every device
// (MaxShared).
func (k composeKernel) ring(jobs []*ComposeJob) ring {
	wide, narrow := k.ringOf(jobs, 64), k.ringOf(jobs, 32)
	if wide.bytes() > MaxShared || 4*load(jobs, 32) <= 3*load(jobs, 64) {
		return narrow
	}
	return wide
}

// load returns the number of columns that the busiest multiprocessor computes.
func load(jobs []*ComposeJob, columns int) int {
	blocks := 0
	for _, j := range jobs {
		blocks += strips(j, columns)
	}
	return (blocks + multiprocessors - 1) / multiprocessors * columns
}

func (k composeKernel) ringOf(jobs []*ComposeJob, columns int) ring {
	packed := k >= composePacked64
	dk := 64 * int(1+k-composeDense64)
	if packed {
		dk = 64 * int(1+k-composePacked64)
	}
	r := ring{columns: columns, slots: 3, park: uint32(columns / 16 * dk / 32 * 2048)}
	t, s := 32*dk*2, 32*columns*2
	for _, j := range jobs {
		for i := range j.Steps {
			st := &j.Steps[i]
			t, s = max(t, 32*dk*st.TType.Size()), max(s, 32*columns*st.SType.Size())
		}
	}
	r.tBytes, r.sBytes = uint32(t), uint32(s)
	if packed {
		r.tBytes, r.sBytes = max(r.tBytes, packedTile(dk)), max(r.sBytes, packedTile(columns))
		r.scales, r.heads = packedScales, packedBatch
		r.room = 2 * r.slot()
		if free := int(sharedOfThree) - int(r.heads+r.park); free > int(r.room) {
			r.room = min(4*r.slot(), uint32(free)/128*128)
		}
		return r
	}
	if r.bytes() > sharedOfThree {
		r.slots = 2
	}
	return r
}

// packedTile returns the largest size in bytes of a tile of integers, a multiple of 128;
// see rowsBytes.
func packedTile(columns int) uint32 { return uint32(32*(2*columns+16) + 128) }

const (
	packedScales = 384  // bytes of the scales of a tile, a multiple of 128
	packedBatch  = 1040 // bytes of a Batch
)

const (
	composeJobBytes  = 48
	composeStepBytes = 48
)

// composeTables returns the tables of a launch: first the jobs, then their steps, then
// cosines and sines. compose_job.cu has the structs.
func composeTables(jobs []*ComposeJob) words {
	at := uint32(len(jobs) * composeJobBytes)
	var w words
	for _, j := range jobs {
		r, _ := j.pairs()
		w.u64(j.From, j.Out)
		w.u32(at, uint32(len(j.Steps)), uint32(j.Heads), uint32(j.DK), uint32(j.DV), uint32(j.span()))
		w.u32(uint32(r.Dims), oneIf(r.Interleaved))
		at += uint32(len(j.Steps) * composeStepBytes)
	}
	turns := angles{at: at, known: make(map[string]uint32)}
	for _, j := range jobs {
		for i := range j.Steps {
			turns.step(&w, &j.Steps[i])
		}
	}
	w = append(w, turns.words...)
	return w
}

// angles collects the cosines and sines that follow the steps. Equal ones are stored once,
// for example if all layers have the same step.
type angles struct {
	words words
	at    uint32
	known map[string]uint32
}

func (a *angles) step(w *words, s *ComposeStep) {
	w.u64(s.T, s.S, s.Before)
	if s.S == 0 {
		w.u32(0, 0, 0, 0, 0, 0)
		return
	}
	w.u32(uint32(s.TType), uint32(s.SType))
	if !s.turned() {
		w.u32(uint32(s.TPacked), 0, 0, uint32(s.SPacked))
		return
	}
	w.u32(a.place(s.Rotation), uint32(s.Rotation.Dims), oneIf(s.Rotation.Interleaved), uint32(s.SPacked))
}

func (a *angles) place(r *gpuipc.Rotation) uint32 {
	var b words
	b.f32(r.Cos...)
	b.f32(r.Sin...)
	where, ok := a.known[string(b)]
	if !ok {
		where = a.at + uint32(len(a.words))
		a.known[string(b)] = where
		a.words = append(a.words, b...)
	}
	return where
}
