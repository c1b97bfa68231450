package slab

import (
	"fmt"
	"unsafe"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// BlockBytes is the unit of every transfer: offsets, lengths and buffer addresses are
// multiples of it. No known disk requires more; one that does refuses O_DIRECT and is
// used through the page cache.
const BlockBytes = 4096

// FS is one directory of files. Names contain no folders.
type FS interface {
	// Create creates a file of allocated zero bytes. A name that exists is an error;
	// after an error there is no such file. Neither file nor name is synced. ErrNoSpace:
	// no room.
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

// File is an open file of fixed size. A range that is not whole blocks, or not in the
// file, is tiering.ErrInvalid and nothing is done.
type File interface {
	// ReadAt fills all buffers, in order, starting at off. io.ErrUnexpectedEOF: the file
	// ended early. After an error the contents of the buffers are undefined.
	ReadAt(bufs [][]byte, off int64) error
	// WriteAt writes all buffers, in order, starting at off. After an error the range
	// holds any mixture of old and new blocks.
	WriteAt(bufs [][]byte, off int64) error
	// Sync returns when everything that WriteAt accepted before is on the disk, in a file
	// that its name leads to; otherwise the error is ErrMissing. After an error nothing
	// written since the last Sync can be relied on, and retrying proves nothing: the
	// kernel reports an error once.
	Sync() error
	// Bytes returns the size of the file.
	Bytes() int64
	// Direct reports whether transfers bypass the page cache.
	Direct() bool
	Close() error
}

// checkTransfer refuses what O_DIRECT would, on any file system: a caller that works on
// one works on all.
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
