// Package kernels has the device's side of gpuipc/kernel: CUDA C++ compiled to PTX (ISA
// 7.8, sm_80, so any NVIDIA GPU since Ampere with a driver since CUDA 11.8), and the
// functions that turn a job into launches of it. It calls no driver: a Launch is a value,
// which the daemon launches, or a client in its own process.
//
// A kernel's argument block starts with the device address of its tables, which have
// everything of variable number (jobs, steps, blocks, angles), little-endian, in the C
// structs next to the kernel. Tensors are contiguous device memory, given as raw
// addresses. Callers make sure that addresses are readable, and order the launch after
// the writes of its operands.
//
// The emulation (emulate) compiles the same sources for the host; tests run every kernel
// in it against gpuipc/kernel. make ptx rewrites spliced.ptx.zst, and spliced.ptx, which
// has its head.
package kernels

import (
	"bytes"
	_ "embed"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/klauspost/compress/zstd"
)

// The text is seven times as large, and read once or twice by a process.
//
//go:embed spliced.ptx.zst
var compressed []byte

// PTX returns the text of all kernels, for cuModuleLoadDataEx after a zero byte is added. It
// expands it at each call, which takes some ten milliseconds, and keeps nothing.
func PTX() []byte {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		panic(fmt.Sprintf("kernels: a decoder of zstd: %v", err)) // its options are wrong
	}
	defer d.Close()
	text, err := d.DecodeAll(compressed, nil)
	if err != nil {
		panic(fmt.Sprintf("kernels: %d bytes of spliced.ptx.zst: %v", len(compressed), err)) // they are part of the program
	}
	return text
}

// Entries returns the names of all kernels in the text of PTX.
func Entries(text []byte) []string {
	var names []string
	for line := range bytes.Lines(text) {
		if rest, ok := bytes.CutPrefix(line, []byte(".visible .entry ")); ok {
			name, _, _ := bytes.Cut(rest, []byte("("))
			names = append(names, string(name))
		}
	}
	return names
}

// TableAlign is the alignment of a launch's Tables in device memory.
const TableAlign = 16

// Launch is one kernel launch.
type Launch struct {
	Name   string // entry of PTX
	Grid   [3]uint32
	Block  [3]uint32
	Shared uint32 // bytes of dynamic shared memory; beyond 48 KiB it has to be asked for
	// Args is the argument block. Its first 8 bytes are zero: the launcher puts the device
	// address of Tables there, little-endian, or leaves them when there are no Tables.
	Args []byte
	// Tables has to be copied to device memory before the kernel runs, and stay until it ended.
	Tables []byte
}

// MaxShared is the largest dynamic shared memory of these launches: the limit of a block
// on every GPU of compute capability 8.0 and above (8.6 and 8.9 have the least, 99 KiB).
const MaxShared = 99 << 10

const (
	maxGridX = 1<<31 - 1
	maxGridY = 1<<16 - 1
)

// words appends little-endian numbers to an argument block or to tables.
type words []byte

func (w *words) u64(v ...uint64) {
	for _, x := range v {
		*w = binary.LittleEndian.AppendUint64(*w, x)
	}
}

func (w *words) u32(v ...uint32) {
	for _, x := range v {
		*w = binary.LittleEndian.AppendUint32(*w, x)
	}
}

func (w *words) f32(v ...float32) {
	for _, x := range v {
		*w = binary.LittleEndian.AppendUint32(*w, math.Float32bits(x))
	}
}

// align pads with zeros and returns the offset of the next byte.
func (w *words) align(n int) uint32 {
	for len(*w)%n != 0 {
		*w = append(*w, 0)
	}
	return uint32(len(*w))
}

// arguments returns an argument block with space for the address of the tables.
func arguments() words { return make(words, 8) }
