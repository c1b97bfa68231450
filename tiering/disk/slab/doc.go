// Package slab stores the bytes of the disk tier in slab files of one size. They are
// allocated when they are created, read and written without the page cache, and divided
// into granules. The contents of a run of granules, and who may still need it, are left
// to the packages above.
//
//	FS, File    a directory of slab files: OpenDir (O_DIRECT, or buffered where
//	            that is refused), OverVFS (Pebble's vfs, for crash tests)
//	Faults      an FS around another one that fails, tears and flips on demand
//	Space       which granules are free; memory only
//	Set         the slab files of a directory with their headers; transfers over
//	            runs, several requests at a time
//	Buffers     a bounded stock of aligned memory
//
// A slab file consists of blocks of 4 KiB:
//
//	block 0                  header: magic, version, store, number, sizes, sum
//	rest of granule 0        never used
//	granules 1, 2, …         allocated by Space
//
// Buffers belong to the caller, who must not touch them until a call returns, even with
// an error: no call leaves a transfer running. Everything here may be used concurrently,
// except Close, which is called once and last.
package slab
