package slab

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/zeebo/xxh3"
)

// FuzzSlabHeader: a slab's header is read, and written again to the bit where it has
// nothing behind its fields, or refused by kind. Since nobody guesses a checksum, each
// input is tried with its own made right, too.
func FuzzSlabHeader(f *testing.F) {
	block := make([]byte, BlockBytes)
	h := header{number: 7, store: StoreID{1}, bytes: 1 << 20, granule: 4096}
	h.put(block)
	f.Add(bytes.TrimRight(block[:sumOff], "\x00"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, in []byte) {
		b := make([]byte, BlockBytes)
		copy(b, in)
		for range 2 {
			h, err := parseHeader(b)
			switch {
			case err == nil:
				again := make([]byte, BlockBytes)
				h.put(again)
				if back, err := parseHeader(again); err != nil || back != h {
					t.Fatalf("%+v was read, %+v written again: %v", h, back, err)
				}
			case !errors.Is(err, ErrHeader) && !errors.Is(err, ErrVersion) && !errors.Is(err, ErrUnfinished):
				t.Fatal(err)
			}
			binary.LittleEndian.PutUint64(b[sumOff:], xxh3.Hash(b[:sumOff]))
		}
	})
}
