// Package disk is the tier that keeps segments and checkpoints on disk, so that they
// outlive the process. Each stored object is an entry: its bytes are an extent (package
// extent) in slab files (package slab), and a catalogue (package catalog) has one row for
// it. The package implements tier.Tier. The store decides which objects are written and
// which are read back into memory.
//
// # Why slabs next to a catalogue
//
// A key-value store writes every value more than once: into its log, into a table, and
// again whenever tables are merged. It reads a value as a whole through its cache. In
// Pebble, values of 1 to 64 MiB reached 30 to 130 MB/s with 2 to 4 times the bytes
// written and 4 to 15 s of processor time per GB, inline or separated, on a disk capable
// of 1.6 GB/s. Slab files are allocated beforehand, and values are written to them once,
// bypassing the page cache. Values of 1 MiB reached 0.3 GB/s with a sync each and 1.2
// GB/s without; values from 16 MiB on reached 1.0 to 1.4 GB/s. The disk wrote 1.0 times
// the bytes, and a GB took 0.2 to 0.6 s of processor time. Pebble is good at many small
// rows that exist completely or not at all, so it stores the catalogue. The figures are
// from one machine with two cores; splicectl bench repeats the comparison.
//
// # Directory
//
//	LOCK               locked (flock) by the process that has the directory open
//	FORMAT             version and store id; a directory of another version is refused
//	KEY                secret that seals extents, readable for the daemon's user only
//	index/             the catalogue: rows, last uses, counters, generations
//	profiles/<digest>  canonical bytes of each model's profile
//	slabs/000001.slab  blocks of 4 KiB: a header, then extents in whole granules
//
// Profiles are files next to the catalogue, not rows in it. If the catalogue is lost,
// they are needed to check the digests of the extents.
//
// # Order of writes
//
//	write   profile (synced, once) ─► slab (file and name synced) ─► header and payload
//	        ─► row, in a batch ─► "logged" ─► fdatasync of slabs, sync of the
//	        catalogue's log ─► "synced"
//	forget  from memory ─► row deleted, in a batch ─► sync ─► last reader gone ─► space free
//
// A generation is the number of one write of an entry. Generations are never reused, not
// even after a crash. After a crash, the bytes of a row may be missing, or its space may
// still hold the bytes of an earlier entry. That costs a miss, because each read compares
// name, generation and the digest of every chunk. Bytes without a row are free space.
// With each sync the catalogue records the generation up to which all bytes are synced.
// When the directory is opened, entries of later generations are suspect, since power
// loss may have taken their bytes. Lookups find a suspect entry, but it has no level
// (memory only) until it was read; storing the object again writes it again. All other
// entries count as logged, and as synced after the first sync.
//
// # Levels
//
// An entry is logged when pwrite of its bytes and the write of the catalogue's log have
// returned. The kernel then has both, so a killed process loses neither. An entry is
// synced when the disk has both. One sync serves all waiters and makes every entry synced
// that was logged before it; it happens at the latest after Config.SyncEvery. After a
// failed sync, every entry written since the previous sync is forgotten: the kernel
// reports an error only once, and the next sync would claim success.
//
// # Space
//
// The unit of space is a granule of Config.GranuleBytes. An entry occupies whole
// granules, in one run of adjacent granules or a few. Any free granule serves any entry,
// so the waste is small: less than one granule per entry, one granule per slab for its
// header, and less than one slab at the end of the budget. Nothing is compacted.
//
// # States
//
//	opening ──► ok ◄──► full                 growth was refused: entries make room for entries
//	   ▲         │ ◄──► paused               writes fail: nothing is admitted, and writing is tested
//	   │         ├────► failed               the catalogue has failed: otherwise like paused
//	   │         │         │ the disk takes writes again: reopened
//	   ├─────────┼─────────┘
//	   └─────────┴────► missing              removed or renamed: the directory now at its path is opened
//	missing, refused, locked, version, unreadable, foreign ──► opening   tried again after RetryMin, 2·RetryMin, … RetryMax
//
// Reads continue in ok, full, paused and failed. An entry is forgotten when two attempts
// to read it fail. After many failed reads in a row, lookups find nothing for a while.
//
// # Locks and memory
//
// Tier.mu guards all state of entries. It is held only for arithmetic and map operations:
// never across I/O, a device call, a callback of a write or a log line. The store may
// hold its own lock while it takes Tier.mu. mount.growing and the lock of
// volume.Volume.profiles are held across I/O, and are taken before Tier.mu.
//
// The store keeps the memory of an object that is being written until Start's callback is
// called, which happens after the last read of that memory. It keeps the destination of a
// Read until Read returns. Arena pages are transferred in place. The last, partial block
// of a rank goes through a temporary block, so that the bytes that follow it in the arena
// are not written to disk.
//
// Invariant: a granule is free, or belongs to one entry that is admitted, live or
// leaving.
//
// Invariant: the parent of every live checkpoint is live.
package disk
