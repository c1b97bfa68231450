package cuda

import (
	"fmt"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
)

// Options selects a device. The zero value is the only device, with the
// defaults below.
type Options struct {
	// Library is the path of the driver library; "" = libcuda.so.1 as found by
	// the dynamic linker.
	Library string
	// Device is the UUID, as in "GPU-8a2f...", of the device; "" = the first.
	Device string
	// ChunkBytes bounds the physical allocations of regions, rounded up to the
	// device's granularity; 0 = 1 GiB. Fewer chunks mean fewer descriptors for
	// each client.
	ChunkBytes int64
	// Streams bounds the operations that run at once; 0 = 8. Reads and writes
	// of 8 bytes have two streams in addition.
	Streams int
	// CallTimeout bounds how long a call waits for the driver to open or close
	// memory of another process; 0 = 2 s.
	CallTimeout time.Duration
	// AttachWait bounds how long AttachHost waits for the driver to pin
	// memory; the remainder is pinned while the device is in use. 0 = 10 s.
	AttachWait time.Duration
	// Log, if set, gets messages that are worth logging once, such as that
	// host memory could not be pinned. It must be safe for concurrent use.
	Log func(message string)
}

const (
	defaultChunkBytes  = 1 << 30
	defaultStreams     = 8
	maxStreams         = 256
	defaultCallTimeout = 2 * time.Second
	defaultAttachWait  = 10 * time.Second
)

// withDefaults replaces zeros and refuses invalid values.
func (o Options) withDefaults() (Options, error) {
	if o.ChunkBytes < 0 || o.Streams < 0 || o.Streams > maxStreams || o.CallTimeout < 0 || o.AttachWait < 0 {
		return o, fmt.Errorf("cuda: chunks of %d bytes, %d streams (at most %d), call timeout %v, attach wait %v: %w",
			o.ChunkBytes, o.Streams, maxStreams, o.CallTimeout, o.AttachWait, gpuipc.ErrInvalid)
	}
	if o.ChunkBytes == 0 {
		o.ChunkBytes = defaultChunkBytes
	}
	if o.Streams == 0 {
		o.Streams = defaultStreams
	}
	if o.CallTimeout == 0 {
		o.CallTimeout = defaultCallTimeout
	}
	if o.AttachWait == 0 {
		o.AttachWait = defaultAttachWait
	}
	if o.Log == nil {
		o.Log = func(string) {}
	}
	return o, nil
}

// Info describes a device, without a context on it.
type Info struct {
	UUID   gpuipc.UUID
	Name   string
	Bytes  int64 // memory of the device
	Driver int   // CUDA version of the driver: 1000*major + 10*minor
	Major  int   // compute capability
	Minor  int
	// Mode is "default", "exclusive process" (one process at a time: engine and
	// daemon cannot share it) or "prohibited".
	Mode string
	// MPS reports whether contexts of several processes run at the same time
	// under the Multi-Process Service. Without it they take turns (time
	// slicing).
	MPS Tristate
	// Descriptors: memory can leave the process as POSIX descriptors.
	Descriptors bool
	// WaitValues: streams can wait for and write 64-bit values in memory.
	WaitValues bool
	// Trouble is the reason why fields are missing; empty = none is.
	Trouble string
}

// Tristate is a bool that an older driver may not report.
type Tristate uint8

// The answers.
const (
	Unknown Tristate = iota
	No
	Yes
)

func (t Tristate) String() string {
	switch t {
	case No:
		return "no"
	case Yes:
		return "yes"
	}
	return "unknown"
}

// Counters of one device since Open.
type Counters struct {
	// StuckCalls is the number of driver calls on memory of other processes
	// that are past their deadline now, LateCalls that of all such calls.
	StuckCalls, LateCalls int64
	// Lanes is the number of streams created.
	Lanes int64
	// Gathered is the number of operands that straddled extents and were
	// copied through scratch memory.
	Gathered int64
	// Unpinned is the bytes of host memory copied through staging, because the
	// driver had not registered them (yet).
	Unpinned int64
}
