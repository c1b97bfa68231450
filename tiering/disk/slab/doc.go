// Package slab keeps the bytes of the disk tier: slab files of one size that are
// allocated when they are created, written and read around the page cache, and
// given out in granules. What lies in a run of granules, and who may still need
// it, is left to the packages above.
//
//	FS, File    a directory of slab files: OpenDir (O_DIRECT, or buffered where
//	            that is refused), OverVFS (Pebble's vfs, for crash tests)
//	Faults      an FS around another one that fails, tears and flips on demand
//	Space       which granules are free; memory only
//	Set         the slab files of a directory with their headers; transfers over
//	            runs, several requests at a time
//	Buffers     a bounded stock of aligned memory
//
// A slab file is blocks of 4 KiB:
//
//	block 0                  header: magic, version, store, number, sizes, sum
//	rest of granule 0        never used
//	granules 1, 2, …         given out by Space
//
// Buffers belong to the caller, who leaves them alone until a call returns, also
// when it returns an error: no call leaves a transfer behind. Everything here may
// be used by many goroutines at once, apart from Close, which is called once and
// last.
package slab
