package slab

import (
	"fmt"
	"unsafe"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// BlockBytes is the unit of every transfer: offsets, lengths and buffer addresses are
// multiples of it. No known disk requires larger units; a disk that does refuses O_DIRECT
// and is used through the page cache.
const BlockBytes = 4096

// FS is one directory of files. Names contain no folders.
type FS interface {
	// Create creates a file of allocated zero bytes. If the name exists, that is an error.
	// After any other error there is no such file. Neither the file nor its name is synced.
	// ErrNoSpace means that there is no room.
	Create(name string, bytes int64) (File, error)
	// Open opens a file for reading and writing, or only for reading if the file system
	// is mounted read-only: a write then returns unix.EROFS.
	Open(name string) (File, error)
	Remove(name string) error
	// List returns the sorted names of the files.
	List() ([]string, error)
	// Free returns the bytes that are available on the file system.
	Free() (int64, error)
	// Sync makes creations and removals durable.
	Sync() error
}

// File is an open file of fixed size. For a range that is not whole blocks or not in the
// file, calls return tier.ErrInvalid and transfer nothing.
type File interface {
	// ReadAt fills all buffers, in order, starting at off. io.ErrUnexpectedEOF means that
	// the file ended early. After an error the contents of the buffers are undefined.
	ReadAt(bufs [][]byte, off int64) error
	// WriteAt writes all buffers, in order, starting at off. After an error the range may
	// hold any mixture of old and new blocks.
	WriteAt(bufs [][]byte, off int64) error
	// Sync returns when everything written before the call is on the disk. ErrMissing means
	// that the file is not found under its name any more. After an error, all bytes written
	// since the last Sync may be lost. The success of a later Sync proves nothing, because
	// the kernel reports an error only once.
	Sync() error
	// Bytes returns the size of the file.
	Bytes() int64
	// Direct reports whether transfers bypass the page cache.
	Direct() bool
	Close() error
}

// checkTransfer returns tier.ErrInvalid for a transfer that O_DIRECT would refuse. All
// file systems check this, so that a caller that works on one of them works on all.
func checkTransfer(verb, name string, size int64, bufs [][]byte, off int64) (bytes int64, err error) {
	if off < 0 || off%BlockBytes != 0 {
		return 0, fmt.Errorf("%s %s: offset %d: %w", verb, name, off, tier.ErrInvalid)
	}
	for i, b := range bufs {
		if len(b) == 0 || len(b)%BlockBytes != 0 || uintptr(unsafe.Pointer(unsafe.SliceData(b)))%BlockBytes != 0 {
			return 0, fmt.Errorf("%s %s: buffer %d of %d bytes at %p is not whole blocks: %w",
				verb, name, i, len(b), unsafe.SliceData(b), tier.ErrInvalid)
		}
		bytes += int64(len(b))
	}
	if bytes > size-off {
		return 0, fmt.Errorf("%s %s: %d bytes at %d of %d: %w", verb, name, bytes, off, size, tier.ErrInvalid)
	}
	return bytes, nil
}
