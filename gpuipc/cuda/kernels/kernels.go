// Package kernels is the device's side of gpuipc/kernel. It has CUDA C++, compiled to PTX (ISA
// 7.8, sm_80, so it runs on any NVIDIA GPU since Ampere with a driver since CUDA 11.8), and
// functions that turn jobs into launches. It does not call the driver. A Launch is a plain
// value. The daemon launches it, or a client does so in its own process.
//
// A kernel's argument block begins with the device address of its tables. The tables have
// everything whose number varies (jobs, steps, blocks, angles), little-endian, as the C structs
// next to the kernel. Tensors are contiguous device memory, given as raw addresses. Callers
// must make sure that the addresses are readable, and that the launch runs after the writes of
// its operands.
//
// Clients in Python build launches with launches.py, which go generate translates from the functions
// of this package; see scripts/pygen. What these use of words.go is written again in launch.py.
//
// The emulation (folder emulate) compiles the same sources for the host. Tests run every kernel
// in it and compare with gpuipc/kernel. make ptx rewrites spliced.ptx.zst, and spliced.ptx,
// which has the first lines of the text.
package kernels

// TableAlign is the alignment in bytes of a launch's Tables in device memory.
const TableAlign = 16

// Launch is one kernel launch.
type Launch struct {
	Name   string // kernel in PTX
	Grid   [3]uint32
	Block  [3]uint32
	Shared uint32 // bytes of dynamic shared memory; more than 48 KiB must be allowed for the kernel first
	// Args is the argument block. Its first 8 bytes are zero. The launcher replaces them by the
	// device address of Tables, little-endian, unless Tables is empty.
	Args []byte
	// Tables must be copied to device memory before the kernel runs, and must stay there until
	// it has ended.
	Tables []byte
}

// MaxShared is the most dynamic shared memory that a launch uses, in bytes. It is the smallest
// limit of a block on any GPU of compute capability 8.0 and above (99 KiB, on 8.6 and 8.9).
const MaxShared = 99 << 10

const (
	maxGridX = 1<<31 - 1
	maxGridY = 1<<16 - 1
)
