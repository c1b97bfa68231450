package gpuipc

import (
	"context"
	"errors"
	"os"
)

// Way is a way for memory of an accelerator to cross the process border.
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
	File   *os.File // WayDescriptor
	Handle [64]byte // WayHandle: names a whole allocation
	Off    int64    // WayHandle: offset of the chunk in the allocation
}

// Share has what another process needs to map a region of an accelerator: its
// chunks, to be mapped one after the other. The receiver owns the files.
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

// SharedRegion is a region that leaves the process as a Share. Its Export
// returns ErrUnavailable: a Handle is for memory that a host can map.
type SharedRegion interface {
	Region
	// Device returns the UUID of the device with the memory.
	Device() UUID
	// Share returns handles for one more client. ErrUnavailable: this memory
	// cannot be shared in this way.
	Share(way Way) (Share, error)
}

// Accelerator is a device with its own memory. Its regions are SharedRegions.
// Its Import always returns ErrUnavailable; use ImportShare.
//
// Operations run on their own streams and have ended when the call returns.
// Failures that are not the caller's (a lost device, a driver call that does
// not return) are ErrUnavailable, and so is everything after them.
type Accelerator interface {
	Device
	UUID() UUID
	// ImportShare maps memory that a client owns, for reading and writing. It
	// owns the files in any case, and returns ErrUnavailable if the driver
	// does not answer before ctx ends.
	ImportShare(ctx context.Context, s Share) (Region, error)

	// AttachHost registers a region of the host device as pinned memory for
	// Upload and Download. detach, which is called once and before the region
	// is closed, waits for running copies.
	AttachHost(r Region) (detach func() error, err error)
	// Upload copies src, of an attached host region, to dst, of this device;
	// Download copies the other way. With digests, len Chunks(length), they
	// store the digest of each chunk of the destination.
	Upload(ctx context.Context, dst, src Ref, digests []uint64) error
	Download(ctx context.Context, dst, src Ref, digests []uint64) error

	// ComposeAll and RotateAll run jobs, such as those of all layers, in as
	// few launches as possible. The jobs are independent: none writes what
	// another reads or writes.
	ComposeAll(ctx context.Context, jobs []ComposeJob) error
	RotateAll(ctx context.Context, jobs []RotateJob) error
}
