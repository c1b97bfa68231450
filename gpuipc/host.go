package gpuipc

import (
	"bufio"
	"bytes"
	"cmp"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// Options selects and configures a device. The zero value is the host device
// with its defaults.
type Options struct {
	Host HostOptions
}

// HostOptions configures the host device.
type HostOptions struct {
	// Workers bounds the goroutines of all operations together: they add at most Workers-1
	// goroutines to those of their callers. 0 = GOMAXPROCS; 1 = every operation runs in its
	// caller alone.
	Workers int
	// Between is for tests. It is called before every chunk of an operation except the
	// first, on the goroutine that works on the chunk. The parameter chunk is the number of
	// chunks of the operation that were started before. Between may block, which stops the
	// operation there.
	Between func(op Op, chunk int)
}

// Op is an operation of a Device, for instrumentation and messages.
type Op uint8

// The operations.
const (
	OpNewRegion Op = 1 + iota
	OpImport
	OpCopyDigests
	OpDigests
	OpLoad
	OpStore
	OpCompose
	OpRotate
	OpPin
	OpReplay
	OpChecksums
)

var opNames = [...]string{OpNewRegion: "new region", OpImport: "import", OpCopyDigests: "copy with digests",
	OpDigests: "digests", OpLoad: "load", OpStore: "store", OpCompose: "compose", OpRotate: "rotate", OpPin: "pin", OpReplay: "replay", OpChecksums: "checksums"}

func (o Op) String() string {
	if int(o) < len(opNames) && o != 0 {
		return opNames[o]
	}
	return fmt.Sprintf("op %d", uint8(o))
}

// Open returns the device selected by o.
func Open(o Options) (Device, error) { return NewHost(o.Host) }

// NewHost returns the host device: memory is memfds, kernels run on the CPU.
func NewHost(o HostOptions) (Device, error) {
	if o.Workers < 0 {
		return nil, fmt.Errorf("host device: %d workers: %w", o.Workers, ErrInvalid)
	}
	o.Workers = cmp.Or(o.Workers, runtime.GOMAXPROCS(0))
	h := &host{
		between: o.Between,
		workers: o.Workers,
		extra:   make(chan struct{}, o.Workers-1),
		scratch: sync.Pool{New: func() any { return new(scratch) }},
	}
	h.holes.open()
	return h, nil
}

// host is the Device of this machine's memory.
type host struct {
	between func(Op, int)
	workers int
	extra   chan struct{} // one entry per goroutine that was added to the callers'
	scratch sync.Pool     // *scratch, one per working goroutine
	regions atomic.Int64  // number of open regions
	holes   holeGuard     // guards imported regions
}

// Describe returns the processor and the instruction sets in use.
func (h *host) Describe() Description {
	return Description{Kind: "host", Name: processorName(), Features: kernel.Features()}
}

// Close returns ErrInvalid while regions are open: their memory would have no
// owner.
func (h *host) Close() error {
	if n := h.regions.Load(); n != 0 {
		return fmt.Errorf("close host device: %d regions are open: %w", n, ErrInvalid)
	}
	h.holes.close()
	return nil
}

// processorName returns the processor's name for people, or the architecture if the system
// does not say the name.
func processorName() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if key, value, ok := bytes.Cut(lines.Bytes(), []byte(":")); ok && string(bytes.TrimSpace(key)) == "model name" {
			return string(bytes.TrimSpace(value))
		}
	}
	return runtime.GOARCH
}
