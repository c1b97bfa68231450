// Package catalog is the index of a disk tier: its entries, where they are and when they
// were used last. Pebble stores it in a separate directory. It makes no decisions;
// writing slabs, and in which order, is left to the tier.
//
// A commit is one batch of Pebble. When an unsynced one returns, the kernel has it: it
// survives the end of the process, not that of the machine. When a synced one returns,
// the disk has it, and everything that was committed before it. After a crash the rows
// are those of a prefix of the commits, in the order in which they were made; a commit is
// there as a whole or not at all.
//
// The file SYNCED next to Pebble's files distinguishes damage from a crash (mark.go): if
// synced bytes of the log or of the MANIFEST are missing or changed, the directory is
// refused as tiering.ErrCorrupt, before Pebble cuts them off.
//
// Problems end a catalogue, never the process. When its disk is full, read-only or
// broken, it has failed: every call returns ErrFailed with the cause, and nothing more
// reaches the disk. Close it and open another one; everything acknowledged as synced is
// there again. If commits were waiting for Pebble to make room, it cannot be closed
// properly, and about 30 MiB of it stay in memory.
//
// All methods may be called concurrently, Close only after the others. The caller makes
// sure that only one process at a time has a directory open.
package catalog
