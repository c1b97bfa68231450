package slab

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"github.com/zeebo/xxh3"
)

// Version is the format version of slab files that this package writes, and the only one
// it reads.
const Version = 1

// StoreID identifies the directory of one disk tier.
type StoreID [16]byte

func (id StoreID) String() string { return fmt.Sprintf("%x", id[:]) }

// header is the first block of a slab: offset, length and meaning of each field, in bytes
// and little-endian. All other bytes are zero.
//
//	   0  8  magic "SPLCSLAB"
//	   8  4  version
//	  12  4  number
//	  16 16  store
//	  32  8  bytes of the file
//	  40  8  granule
//	4088  8  xxh3 of all bytes before it
//
// Invariant: magic, version and sum are at these offsets in every version, so that a
// header of another version can be distinguished from a damaged one.
type header struct {
	number  uint32
	store   StoreID
	bytes   int64
	granule int64
}

var magic = [8]byte{'S', 'P', 'L', 'C', 'S', 'L', 'A', 'B'}

const sumOff = BlockBytes - 8

// put writes the header to a block.
func (h *header) put(block []byte) {
	clear(block)
	copy(block, magic[:])
	binary.LittleEndian.PutUint32(block[8:], Version)
	binary.LittleEndian.PutUint32(block[12:], h.number)
	copy(block[16:], h.store[:])
	binary.LittleEndian.PutUint64(block[32:], uint64(h.bytes))
	binary.LittleEndian.PutUint64(block[40:], uint64(h.granule))
	binary.LittleEndian.PutUint64(block[sumOff:], xxh3.Hash(block[:sumOff]))
}

// parseHeader parses a block written by put, or returns why it is invalid.
func parseHeader(block []byte) (h header, err error) {
	if len(block) != BlockBytes {
		return h, fmt.Errorf("%d bytes: %w", len(block), ErrHeader)
	}
	if AllZero(block) {
		return h, fmt.Errorf("zeros: %w", ErrUnfinished)
	}
	if !bytes.Equal(block[:len(magic)], magic[:]) {
		return h, fmt.Errorf("magic %q, not %q: %w", block[:len(magic)], magic[:], ErrHeader)
	}
	if sum, want := xxh3.Hash(block[:sumOff]), binary.LittleEndian.Uint64(block[sumOff:]); sum != want {
		return h, fmt.Errorf("sum %016x, stored %016x: %w", sum, want, ErrHeader)
	}
	if v := binary.LittleEndian.Uint32(block[8:]); v != Version {
		return h, fmt.Errorf("version %d, this release reads version %d: %w", v, Version, ErrVersion)
	}
	h.number = binary.LittleEndian.Uint32(block[12:])
	copy(h.store[:], block[16:])
	h.bytes = int64(binary.LittleEndian.Uint64(block[32:]))
	h.granule = int64(binary.LittleEndian.Uint64(block[40:]))
	return h, nil
}

// AllZero reports whether all bytes of b are 0.
func AllZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// check compares an intact header with the header expected in its file. It checks the
// store first, because the other errors only matter for slabs of this store.
func (h *header) check(want header) error {
	switch {
	case h.store != want.store:
		return fmt.Errorf("store %v, not %v: %w", h.store, want.store, ErrStore)
	case h.number != want.number:
		return fmt.Errorf("it is slab %d, under another's name: %w", h.number, ErrHeader)
	case want.bytes < 2*want.granule:
		return fmt.Errorf("%d bytes, less than two granules of %d: %w", want.bytes, want.granule, ErrSize)
	case h.bytes != want.bytes:
		return fmt.Errorf("%d bytes, its header says %d: %w", want.bytes, h.bytes, ErrSize)
	case h.granule != want.granule:
		return fmt.Errorf("granule %d, not %d: %w", h.granule, want.granule, ErrGranule)
	}
	return nil
}

// fileName returns the name of a slab's file.
func fileName(n uint32) string { return fmt.Sprintf("%06d.slab", n) }

// fileNumber returns the number in a slab's file name; false for any other name.
func fileNumber(name string) (uint32, bool) {
	digits, _ := strings.CutSuffix(name, ".slab")
	n, err := strconv.ParseUint(digits, 10, 32)
	if err != nil || n == 0 || fileName(uint32(n)) != name {
		return 0, false
	}
	return uint32(n), true
}
