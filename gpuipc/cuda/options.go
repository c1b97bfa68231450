package cuda

import (
	"cmp"
	"fmt"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
)

// Options selects a device. The zero value selects the first device, with the defaults
// named below.
type Options struct {
	// Library is the path of the driver library; "" = libcuda.so.1, which the dynamic
	// linker finds.
	Library string
	// Device is the UUID of the device, as in "GPU-8a2f..."; "" = the first device.
	Device string
	// ChunkBytes bounds the physical allocations of regions, rounded up to the device's
	// granularity. 0 means 1 GiB. With fewer chunks each client needs fewer descriptors.
	ChunkBytes int64
	// Streams bounds the operations that run at once. 0 means 8. Reads and writes of 8
	// bytes have two streams in addition.
	Streams int
	// CallTimeout bounds how long a call waits for the driver to open or close memory of
	// another process. 0 means 2 s.
	CallTimeout time.Duration
	// AttachWait bounds how long AttachHost waits for the driver to pin memory. 0 means 10
	// s. Memory that is not pinned by then is pinned while the device is in use.
	AttachWait time.Duration
	// Log, if set, gets messages that are worth logging once, for example that host memory
	// could not be pinned. It must be safe for concurrent use.
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
	o.ChunkBytes = cmp.Or(o.ChunkBytes, defaultChunkBytes)
	o.Streams = cmp.Or(o.Streams, defaultStreams)
	o.CallTimeout = cmp.Or(o.CallTimeout, defaultCallTimeout)
	o.AttachWait = cmp.Or(o.AttachWait, defaultAttachWait)
	if o.Log == nil {
		o.Log = func(string) {}
	}
	return o, nil
}

// Info describes a device. Getting it needs no context on the device.
type Info struct {
	UUID   gpuipc.UUID
	Name   string
	Bytes  int64 // memory of the device
	Driver int   // CUDA version of the driver: 1000*major + 10*minor
	Major  int   // compute capability
	Minor  int
	// Mode is "default", "exclusive process" (only one process at a time, so an engine and
	// the daemon cannot share the device) or "prohibited".
	Mode string
	// MPS reports whether contexts of several processes run at the same time, under the
	// Multi-Process Service. Without it they take turns (time slicing).
	MPS Tristate
	// Descriptors reports whether memory can be passed to other processes as POSIX
	// descriptors.
	Descriptors bool
	// WaitValues reports whether streams can wait for and write 64-bit values in memory.
	WaitValues bool
	// Trouble is the reason why fields are missing; "" = none are missing.
	Trouble string
}

// Tristate is a bool that an older driver may not report.
type Tristate uint8

// The values of a Tristate.
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

// Counters are numbers of one device since Open.
type Counters struct {
	// StuckCalls is the number of driver calls on memory of other processes that have
	// passed their deadline and not returned. LateCalls also counts the calls that have
	// returned.
	StuckCalls, LateCalls int64
	// Lanes is the number of streams created.
	Lanes int64
	// Gathered is the number of operands with several addresses, which were copied through
	// scratch memory.
	Gathered int64
	// Unpinned is the bytes of host memory that were copied through staging buffers,
	// because the driver had not registered them (yet).
	Unpinned int64
}
