package gpuipc

import (
	"context"
	"os"

	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// DType and Transition are the kernels' types, for users of Device.
type (
	DType      = kernel.DType
	Transition = kernel.Transition
)

// Extent is a run of bytes inside one region.
type Extent struct {
	Off int64
	Len int64
}

// Access limits the client that maps an exported region.
type Access uint8

// ClientReads regions are written by the daemon only, and no client can write
// them by any path. ClientWrites regions are written by one client. ClientViews
// regions are written by the daemon for one client, which gets a descriptor to
// read them. Unlike regions with many readers they can be discarded.
const (
	ClientReads  Access = 1
	ClientWrites Access = 2
	ClientViews  Access = 3
)

// HugePages selects huge pages for a host region.
type HugePages uint8

// HugeAuto uses huge pages if the kernel offers them.
const (
	HugeAuto HugePages = iota
	HugeNever
	HugeRequire
)

// RegionSpec asks a device for a region.
type RegionSpec struct {
	Name   string // for /proc and logs
	Bytes  int64  // rounded up to the device's page granularity
	Access Access
	Huge   HugePages
	// Way selects how the region of an accelerator leaves the process: 0 uses
	// descriptors if the device can, else a handle. Host devices ignore it.
	Way Way
}

// Handle lets a client in another process map a region. The receiver of a
// Handle owns File and closes it.
type Handle struct {
	File  *os.File
	Bytes int64
}

// Region is one exported (or imported) run of device memory. Its address is
// private to the device: users refer to it by Ref only.
type Region interface {
	Bytes() int64
	// Export makes a new handle for a client.
	Export() (Handle, error)
	// Resident returns the number of bytes that memory backs now.
	Resident() (int64, error)
	// Close unmaps the region; its Refs are ErrInvalid afterwards. Invariant:
	// no operation of the device that uses the region is running; the owner
	// drains first, and an early Close panics.
	Close() error
}

// Ref names one linear object inside a region: its extents in order. The zero
// Ref is "absent".
type Ref struct {
	Region  Region
	Extents []Extent
}

// Description describes a device.
type Description struct {
	Kind     string   // "host"
	Name     string   // processor or GPU name
	Features []string // instruction sets or capabilities in use, such as "avx2"
}

// Device owns memory and the kernels that run on it. Code above gpuipc works
// with any Device. All methods are safe for concurrent use. Calls with a
// context stop early between chunks of at most a few milliseconds when the
// context ends, and have finished with all memory when they return.
//
// Every Ref is checked before the first byte is written: extents inside the
// region and aligned to their elements, lengths as in the job, destinations
// apart from sources and from each other. A failed check is ErrInvalid and
// changes nothing; after any later error the contents of the destinations are
// undefined.
type Device interface {
	Describe() Description
	NewRegion(RegionSpec) (Region, error)
	// Import maps memory that a client owns, for reading and writing. It owns
	// h.File in any case. Memory that its owner could shrink is refused with
	// ErrInvalid.
	Import(h Handle) (Region, error)

	// CopyDigests copies src to dst (equal length) chunk by chunk and stores the
	// digest of each chunk of the *destination*; len(digests) must be
	// Chunks(length).
	CopyDigests(ctx context.Context, dst, src Ref, digests []uint64) error
	// Digests stores the digest of each chunk of src.
	Digests(ctx context.Context, src Ref, digests []uint64) error
	// Checksums stores the CRC-32 of each chunk of src, see ChecksumBytes.
	Checksums(ctx context.Context, src Ref, sums []uint64) error
	// Load copies src into host memory, Store copies host memory to dst.
	Load(ctx context.Context, dst []byte, src Ref) error
	Store(ctx context.Context, dst Ref, src []byte) error
	// Pin returns views of r's memory, one for each extent, for transfers that
	// need an address, such as direct I/O. Until unpin, which is called once,
	// the region counts as in use. write means that the views will be written;
	// the owner of the pages may do that. ErrUnavailable: the memory has no
	// host address, use Load and Store.
	Pin(r Ref, write bool) (views [][]byte, unpin func(), err error)

	Compose(ctx context.Context, job *ComposeJob) error
	Replay(ctx context.Context, job *ReplayJob) error
	Rotate(ctx context.Context, job *RotateJob) error

	// Close returns ErrInvalid while regions are open.
	Close() error
}

// ComposeJob moves a running state over a list of steps, all heads of one layer
// in one pass: state = T*state + S for each step (HYPIC Eq. 6).
type ComposeJob struct {
	Transition Transition
	Heads      int
	DK, DV     int
	From       Ref // F32 [Heads, DK, DV]; absent = zero state
	Steps      []ComposeStep
	Out        Ref // F32 [Heads, DK, DV]; may equal From; absent = not returned
}

// ComposeStep is one operator. T and S are both present or both absent;
// without them the step changes nothing and only Before is written.
type ComposeStep struct {
	T     Ref // Scalar [Heads] F32; Diagonal [Heads, DK]; Dense [Heads, DK, DK]
	TType DType
	S     Ref // [Heads, DK, DV]
	SType DType
	// TPacked and SPacked: T, of a dense transition, or S is a packed part of
	// such numbers, see Packer. Malformed bytes are ErrInvalid. Devices with
	// their own memory detect only a short length; otherwise malformed parts
	// give wrong numbers there.
	TPacked, SPacked bool
	// Before, if present, receives the F32 state before this step.
	Before Ref
	// Rotation, if set, rotates S on its key axis before it is added (HYPIC
	// Eq. 7; scalar transitions only).
	Rotation *Rotation
}

// Rotation is one rotation, the same for every row it is applied to.
type Rotation struct {
	Dims        int  // leading dimensions that rotate; even
	Interleaved bool // pairs (2i, 2i+1); false = pairs (i, i+Dims/2)
	Cos, Sin    []float32
}

// RotateJob copies rows of [heads, dim] elements to their destination and
// rotates their leading dimensions. Source rows are contiguous.
type RotateJob struct {
	Rows  int
	Heads int
	Dim   int
	Type  DType
	Src   Ref // [Rows, Heads, Dim]
	// SrcPacked: Src is a packed part (kernel.OpenRows) of rows with Type.
	// Accelerators return ErrUnavailable.
	SrcPacked bool
	// Turn is the rotation of every row; nil = plain copy. With PerRow set,
	// row i is rotated by position Position+i of frequencies InvFreq instead.
	Turn   *Rotation
	PerRow *RowRotation
	Dst    Scatter
}

// RowRotation rotates row i by the angles (Position+i)*InvFreq.
type RowRotation struct {
	Dims        int
	Interleaved bool
	Position    int
	InvFreq     []float64 // len Dims/2
}

// Scatter is the destination of rows: Rows, densely, if that is present, else the
// blocks of an engine's table, with row t, head h at byte
//
//	Base + Blocks[t/BlockRows]*BlockStride + (t%BlockRows)*RowStride + h*HeadStride
//
// The strides may nest in any order, as long as no two rows or heads overlap.
type Scatter struct {
	Rows Ref // [Rows, Heads, Dim] contiguous

	Region      Region
	Base        int64    // byte offset of block 0 in the region
	Blocks      []uint32 // block table, in row order
	BlockRows   int
	FirstRow    int   // index in the table of where row 0 goes
	BlockStride int64 // bytes
	RowStride   int64 // bytes
	HeadStride  int64 // bytes
}
