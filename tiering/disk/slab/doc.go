// Package slab stores the bytes of the disk tier in slab files. A slab file is allocated
// when it is created, is read and written without the page cache, and is divided into
// granules. The packages above decide what a run of granules contains and when it is freed.
//
//	FS, File    a directory of slab files: OpenDir (with O_DIRECT, or buffered if
//	            the system refuses that), OverVFS (Pebble's vfs, for crash tests)
//	Space       which granules are free; in memory only
//	Set         the slab files of a directory with their headers; transfers over
//	            runs, several requests at a time
//
// A slab file consists of blocks of 4 KiB:
//
//	block 0                  header: magic, version, store, number, sizes, sum
//	rest of granule 0        never used
//	granules 1, 2, …         allocated by Space
//
// The caller owns all buffers, but must not touch them until the call returns. When it
// returns, even with an error, no transfer is running. All functions and methods may be
// called concurrently, except Close, which is called once and last.
package slab
