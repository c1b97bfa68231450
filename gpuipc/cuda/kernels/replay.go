package kernels

import (
	"fmt"
	"slices"

	"github.com/spliced-kv/spliced/gpuipc"
)

// ReplayJob is a gpuipc.ReplayJob on device memory, with the addresses of contiguous F32
// tensors of the same shapes. If From is 0, the states are zero. Out may be From, which flushes
// the rows into the states.
type ReplayJob struct {
	Heads    int
	KeyHeads int
	DK, DV   int
	Rows     int
	PerKey   bool
	From     uint64
	Decay    uint64
	K        uint64
	U        uint64
	Out      uint64
}

const (
	replayThreads  = 128
	replayHeight   = 4  // rows of a state that one thread handles
	replayRowBytes = 72 // bytes of a job in the tables: replaying::Job
)

// Replay builds the launches of spliced_replay: one, unless there are more jobs than the height
// of a grid. Jobs may differ in shape, but each gets as many blocks as the largest. They run in
// any order, so no job may write what another reads or writes.
//
// Results have the bits of gpuipc/kernel.Replay, except that a NaN may be another NaN.
func Replay(jobs []ReplayJob) ([]Launch, error) {
	for i := range jobs {
		if err := jobs[i].check(); err != nil {
			return nil, fmt.Errorf("replay, job %d: %w", i, err)
		}
	}
	var launches []Launch
	for part := range slices.Chunk(jobs, maxGridY) {
		launches = append(launches, replayLaunch(part))
	}
	return launches, nil
}

func (a *ReplayJob) check() error {
	const most = 1 << 20
	for _, n := range []int{a.Heads, a.KeyHeads, a.DK, a.DV} {
		if n <= 0 || n > most {
			return fmt.Errorf("%d heads of [%d, %d], %d of keys: %w", a.Heads, a.DK, a.DV, a.KeyHeads, gpuipc.ErrInvalid)
		}
	}
	if a.Heads%a.KeyHeads != 0 || a.Rows < 0 || a.Rows > most {
		return fmt.Errorf("%d rows of %d heads, %d of keys: %w", a.Rows, a.Heads, a.KeyHeads, gpuipc.ErrInvalid)
	}
	if a.Out == 0 || a.Rows > 0 && (a.Decay == 0 || a.K == 0 || a.U == 0) || (a.From|a.Decay|a.K|a.U|a.Out)%4 != 0 {
		return fmt.Errorf("states at %#x and %#x, rows at %#x, %#x, %#x: %w", a.From, a.Out, a.Decay, a.K, a.U, gpuipc.ErrInvalid)
	}
	if a.DK > most*2048/a.DV || a.Heads*a.tiles() > maxGridX {
		return fmt.Errorf("%d heads of [%d, %d] are more than a grid: %w", a.Heads, a.DK, a.DV, gpuipc.ErrInvalid)
	}
	return nil
}

// width returns how many columns a thread handles: four if it can read them with one aligned
// load, else one.
func (a *ReplayJob) width() int {
	if a.DV%4 == 0 && (a.From|a.U|a.Out)%16 == 0 {
		return 4
	}
	return 1
}

// tiles returns the number of blocks of threads that share a head.
func (a *ReplayJob) tiles() int {
	items := ((a.DK-1)/replayHeight + 1) * (a.DV / a.width())
	return (items-1)/replayThreads + 1
}

func replayLaunch(jobs []ReplayJob) Launch {
	var tables words
	blocks := 0
	for i := range jobs {
		a := &jobs[i]
		blocks = max(blocks, a.Heads*a.tiles())
		tables.u64(a.From, a.Decay, a.K, a.U, a.Out)
		tables.u32(uint32(a.Heads), uint32(a.KeyHeads), uint32(a.DK), uint32(a.DV), uint32(a.Rows), oneIf(a.PerKey),
			uint32(a.width()), uint32(a.tiles()))
	}
	return Launch{
		Name: "spliced_replay", Grid: [3]uint32{uint32(blocks), uint32(len(jobs)), 1}, Block: [3]uint32{replayThreads, 1, 1},
		Args: arguments(), Tables: tables,
	}
}
