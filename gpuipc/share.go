package gpuipc

import (
	"context"
	"errors"
	"os"
)

// Way says how memory of an accelerator is passed to another process.
type Way uint8

const (
	// WayDescriptor is one POSIX descriptor for each chunk (CUDA VMM).
	WayDescriptor Way = 1
	// WayHandle is one 64-byte CUDA IPC handle for each chunk.
	WayHandle Way = 2
)

// UUID identifies a device independently of a process's device order.
type UUID [16]byte

// Chunk is one physically contiguous allocation of a region.
type Chunk struct {
	Bytes  int64    // usable bytes
	File   *os.File // for WayDescriptor
	Handle [64]byte // for WayHandle: names a whole allocation
	Off    int64    // for WayHandle: offset of the chunk in the allocation, in bytes
}

// Share has the handles with which another process maps a region of an accelerator. The
// process maps the chunks one after the other. The receiver owns the files.
type Share struct {
	Way    Way
	Device UUID
	Chunks []Chunk
}

// Bytes returns the size of all chunks.
func (s *Share) Bytes() (n int64) {
	for i := range s.Chunks {
		n += s.Chunks[i].Bytes
	}
	return n
}

// Close closes the files.
func (s *Share) Close() error {
	var errs []error
	for i := range s.Chunks {
		if f := s.Chunks[i].File; f != nil {
			errs = append(errs, f.Close())
			s.Chunks[i].File = nil
		}
	}
	return errors.Join(errs...)
}

// SharedRegion is a region that is passed to other processes as a Share. Its Export returns
// ErrUnavailable, because a Handle is for memory that a host can map.
type SharedRegion interface {
	Region
	// Device returns the UUID of the device that has the memory.
	Device() UUID
	// Share returns handles for one more client. It returns ErrUnavailable if this memory
	// cannot be shared in this way.
	Share(way Way) (Share, error)
}

// Accelerator is a device with its own memory. Its regions are SharedRegions. Its Import
// always returns ErrUnavailable; use ImportShare.
//
// Operations run on the accelerator's own streams and have ended when the call returns.
// Failures that are not the caller's fault (a lost device, a driver call that does not
// return) are ErrUnavailable. After such a failure every later call is ErrUnavailable too.
type Accelerator interface {
	Device
	UUID() UUID
	// ImportShare maps memory that a client owns, for reading and writing. It takes over
	// the files, also if it fails. It returns ErrUnavailable if the driver does not answer
	// before ctx ends.
	ImportShare(ctx context.Context, s Share) (Region, error)

	// AttachHost registers a region of the host device as pinned memory for Upload and
	// Download. The caller must call the returned function detach once, before it closes
	// the region. detach waits for running copies.
	AttachHost(r Region) (detach func() error, err error)
	// Upload copies src, in an attached host region, to dst on this device. Download copies
	// from this device to an attached host region. If digests is not nil, it gets the
	// digest of each chunk of the destination; its length must be Chunks(length).
	Upload(ctx context.Context, dst, src Ref, digests []uint64) error
	Download(ctx context.Context, dst, src Ref, digests []uint64) error

	// ComposeAll and RotateAll run several jobs, such as the jobs of all layers, in as few
	// launches as possible. The jobs must be independent: no job may write what another
	// reads or writes.
	ComposeAll(ctx context.Context, jobs []ComposeJob) error
	RotateAll(ctx context.Context, jobs []RotateJob) error
}
