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

// Access says what the client that maps an exported region may do.
type Access uint8

// ClientReads regions are written by the daemon only, and no client can write them by any
// path. ClientWrites regions are written by one client. ClientViews regions are written by
// the daemon for one client, which gets a descriptor to read them. Unlike ClientReads
// regions, they can be discarded (see Discard).
const (
	ClientReads  Access = 1
	ClientWrites Access = 2
	ClientViews  Access = 3
)

// HugePages selects huge pages for a host region.
type HugePages uint8

// HugeAuto uses huge pages if the kernel offers them. HugeNever does not use them, and
// HugeRequire fails without them.
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
	// Way selects how the region of an accelerator is passed to other processes. 0 uses
	// descriptors if the device can, else a handle. Host devices ignore it.
	Way Way
}

// Handle lets a client in another process map a region. The receiver of a
// Handle owns File and closes it.
type Handle struct {
	File  *os.File
	Bytes int64
}

// Region is one exported (or imported) run of device memory. Its address is private to the
// device. Users refer to its memory by Ref only.
type Region interface {
	Bytes() int64
	// Export makes a new handle for a client.
	Export() (Handle, error)
	// Resident returns the number of bytes that memory backs now.
	Resident() (int64, error)
	// Close unmaps the region; afterwards its Refs are ErrInvalid. Invariant: no operation
	// of the device uses the region. The owner waits for all operations first, and Close
	// panics if one is running.
	Close() error
}

// Ref names one object inside a region. The object consists of the bytes of the extents, in
// order. The zero Ref means that the object is absent.
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

// Device owns memory and the kernels that run on it. Code above gpuipc works with any
// Device. All methods are safe for concurrent use. A call whose context ends stops before
// its next chunk, and a chunk takes at most a few milliseconds. A call that has returned no
// longer touches any memory.
//
// Every Ref is checked before the first byte is written. Extents must be inside the region
// and aligned to their elements, and lengths must be as in the job. Destinations must not
// overlap sources or each other. A failed check returns ErrInvalid and changes nothing.
// After any later error the contents of the destinations are undefined.
type Device interface {
	Describe() Description
	NewRegion(RegionSpec) (Region, error)
	// Import maps memory that a client owns, for reading and writing. Import takes over
	// h.File, even if Import fails. It returns ErrInvalid for memory that its owner could
	// shrink.
	Import(h Handle) (Region, error)

	// CopyDigests copies src to dst, which has the same length, chunk by chunk. It stores
	// the digest of each chunk of the *destination*. len(digests) must be Chunks(length).
	CopyDigests(ctx context.Context, dst, src Ref, digests []uint64) error
	// Digests stores the digest of each chunk of src.
	Digests(ctx context.Context, src Ref, digests []uint64) error
	// Checksums stores the CRC-32 (IEEE) of each chunk of src, for clients without XXH3.
	Checksums(ctx context.Context, src Ref, sums []uint64) error
	// Load copies src into host memory, Store copies host memory to dst.
	Load(ctx context.Context, dst []byte, src Ref) error
	Store(ctx context.Context, dst Ref, src []byte) error
	// Pin returns views of r's memory, one for each extent, for transfers that need an
	// address, such as direct I/O. The region counts as in use until unpin is called, which
	// the caller must do once. If write is true, the caller will write to the views, which
	// only the owner of the pages may do. ErrUnavailable means that the memory has no host
	// address; then the caller must use Load and Store.
	Pin(r Ref, write bool) (views [][]byte, unpin func(), err error)

	Compose(ctx context.Context, job *ComposeJob) error
	Replay(ctx context.Context, job *ReplayJob) error
	Rotate(ctx context.Context, job *RotateJob) error

	// Close closes the device. It returns ErrInvalid while regions are open.
	Close() error
}

// ComposeJob applies a list of steps to the running states of all heads of one layer: state
// = T*state + S for each step (HYPIC Eq. 6).
type ComposeJob struct {
	Transition Transition
	Heads      int
	DK, DV     int
	From       Ref // F32 [Heads, DK, DV]; absent = zero state
	Steps      []ComposeStep
	Out        Ref // F32 [Heads, DK, DV]; may equal From; absent = not returned
}

// ComposeStep is one step of a ComposeJob. T and S are both present or both absent. If they
// are absent, the step leaves the state unchanged and only stores it in Before.
type ComposeStep struct {
	T     Ref // Scalar [Heads] F32; Diagonal [Heads, DK]; Dense [Heads, DK, DK]
	TType DType
	S     Ref // [Heads, DK, DV]
	SType DType
	// TPacked and SPacked mean that T or S is a packed part of numbers of TType or SType,
	// see Packer. Only the T of a dense transition can be packed. Malformed bytes are
	// ErrInvalid. Devices with their own memory detect only a part that is too short; other
	// malformed parts give wrong numbers there.
	TPacked, SPacked bool
	// Before, if present, receives the F32 state before this step.
	Before Ref
	// Rotation, if set, rotates S along its key axis before S is added (HYPIC Eq. 7; only
	// for scalar transitions).
	Rotation *Rotation
}

// Rotation is one rotation, which is the same for every row.
type Rotation struct {
	Dims        int  // leading dimensions that rotate; even
	Interleaved bool // pairs (2i, 2i+1); false = pairs (i, i+Dims/2)
	Cos, Sin    []float32
}

// RotateJob copies rows of [Heads, Dim] elements to their destination and rotates the
// leading dimensions of each head. Source rows are contiguous.
type RotateJob struct {
	Rows  int
	Heads int
	Dim   int
	Type  DType
	Src   Ref // [Rows, Heads, Dim]
	// SrcPacked means that Src is a packed part (kernel.OpenRows) of rows of Type.
	// Accelerators return ErrUnavailable for it.
	SrcPacked bool
	// Turn is the rotation of every row; nil = plain copy. If PerRow is set instead, row i
	// is rotated to position PerRow.Position+i.
	Turn   *Rotation
	PerRow *RowRotation
	Dst    Scatter
}

// RowRotation rotates pair k of row i by the angle (Position+i)*InvFreq[k].
type RowRotation struct {
	Dims        int
	Interleaved bool
	Position    int
	InvFreq     []float64 // len Dims/2
}

// Scatter is the destination of rows. If Rows is present, they are stored there
// contiguously. Otherwise they are stored in the blocks of an engine's block table. With t
// = FirstRow+i, head h of row i is at byte
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
	FirstRow    int   // position in the table at which row 0 is stored
	BlockStride int64 // bytes
	RowStride   int64 // bytes
	HeadStride  int64 // bytes
}
