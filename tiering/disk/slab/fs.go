package slab

import (
	"fmt"
	"unsafe"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// BlockBytes is the unit of every transfer: offsets, lengths and addresses of
// buffers are multiples of it. No disk we know asks for more; one that does
// refuses O_DIRECT and is used through the page cache.
const BlockBytes = 4096

// FS is one directory of files. Names have no folders.
type FS interface {
	// Create makes a file whose bytes are allocated and zeros. A name that exists
	// is an error; after an error there is no such file. Neither file nor name is
	// synced. No room is ErrNoSpace.
	Create(name string, bytes int64) (File, error)
	// Open opens a file for reading and writing, or where the file system is
	// mounted read-only for reading: a write is then unix.EROFS.
	Open(name string) (File, error)
	Remove(name string) error
	// List names the files, sorted.
	List() ([]string, error)
	// Free is how many bytes the file system would still give us.
	Free() (int64, error)
	// Sync makes creations and removals last.
	Sync() error
}

// File is an open file of fixed size. What is not a whole number of blocks, or
// not in the file, is tiering.ErrInvalid and nothing is done.
type File interface {
	// ReadAt fills all buffers, in order, from off on. io.ErrUnexpectedEOF: the
	// file ended early. After an error the buffers hold anything.
	ReadAt(bufs [][]byte, off int64) error
	// WriteAt writes all buffers, in order, from off on. After an error the
	// range holds any mixture of blocks old and new.
	WriteAt(bufs [][]byte, off int64) error
	// Sync returns when everything that WriteAt accepted before is on the disk, in a
	// file that its name leads to; else the error is ErrMissing.
	// After an error none of what was written since the last Sync may be counted
	// on, and trying again proves nothing: the kernel tells an error once.
	Sync() error
	// Bytes is the size of the file.
	Bytes() int64
	// Direct says that transfers pass the page cache by.
	Direct() bool
	Close() error
}

// checkTransfer refuses what O_DIRECT would, whatever the file system: a caller
// that works on one works on all.
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
