// Package catalog is the index of a disk tier: which entries there are, where
// they lie and when they were used last, in a directory of its own, kept by
// Pebble. It decides nothing; who writes slabs, and in which order, is left to
// the tier.
//
// A commit is one batch of Pebble. When an unsynced one returns, the kernel has
// it: it survives the end of our process, not that of the machine. When a synced
// one returns, the disk has it, and everything that was committed before it. After
// a crash the rows are those of a prefix of the commits, in the order in which
// they were made; a commit is there as a whole or not at all.
//
// Damage is told from a crash by the file SYNCED beside Pebble's (mark.go): a
// directory in which bytes of the log or of the MANIFEST that were synced are gone or
// changed is refused as tiering.ErrCorrupt, before Pebble cuts them off.
//
// Trouble ends a catalogue, never the process: when its disk is full, read-only
// or broken, it has failed, every call answers ErrFailed beside the cause, and
// nothing of it reaches the disk any more. Close it and open another one; what
// was acknowledged as synced is there again. Where commits were waiting for Pebble
// to make room, it cannot be wound up, and some 30 MiB of it stay in memory.
//
// All methods may run at once, Close only after the others. The caller sees to it
// that one process at a time has a directory open.
package catalog
