package gpuipc

import "github.com/zeebo/xxh3"

// ChunkBytes is the unit of digests. An object of n bytes has Chunks(n) chunks. All have
// ChunkBytes bytes, except the last, which may be shorter. Chunks are counted in the
// object, across its extents.
const ChunkBytes = 1 << 20

// Chunks returns the number of chunks of an object of n bytes.
func Chunks(n int64) int { return int((n + ChunkBytes - 1) / ChunkBytes) }

// DigestBytes returns the digest of one chunk: XXH3-64 with seed 0. It detects damage and
// mistakes, but not deliberate collisions.
func DigestBytes(b []byte) uint64 { return xxh3.Hash(b) }

// AppendDigests appends the digests of an object's chunks, in order.
func AppendDigests(digests []uint64, object []byte) []uint64 {
	for at := 0; at < len(object); at += ChunkBytes {
		digests = append(digests, DigestBytes(object[at:min(at+ChunkBytes, len(object))]))
	}
	return digests
}

// FirstDifference returns the index of the first digest that differs between two lists of equal
// length; -1 = none.
func FirstDifference(a, b []uint64) int {
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return -1
}
