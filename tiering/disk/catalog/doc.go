// Package catalog is the index of a disk tier: it records the entries, their locations
// and their last uses. Pebble stores it in a separate directory. The package makes no
// decisions: the tier writes the slabs and decides the order of writes.
//
// A commit is one batch of Pebble. When an unsynced commit returns, the kernel has it: it
// survives a crash of the process, but not of the machine. When a synced commit returns, the
// disk has it and all earlier commits. After a crash, the catalogue holds all commits up to
// some point in their order and none after it; each is there as a whole or not at all.
//
// The file SYNCED next to Pebble's files distinguishes damage from a crash (mark.go): if
// synced bytes of Pebble's log or MANIFEST are missing or changed, Open returns
// tier.ErrCorrupt before Pebble truncates the file.
//
// An error of the disk ends the catalogue, never the process. When the disk is full,
// read-only or broken, the catalogue fails: every call returns ErrFailed with the cause,
// and nothing more reaches the disk. The caller closes the catalogue and opens it again;
// everything acknowledged as synced is then there. If commits were waiting for Pebble to
// make room, Pebble cannot be closed properly, and about 30 MiB of memory are never freed.
//
// All methods may be called concurrently. The caller makes sure that only one process at
// a time has a directory open.
package catalog
