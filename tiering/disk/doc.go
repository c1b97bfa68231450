// Package disk is the tier of segments and checkpoints that outlives the process. Their
// bytes are in slab files (package slab) as extents (package extent), with one row each
// in a catalogue (package catalog). It implements tiering.Tier; the store decides what is
// stored and what is promoted.
//
// # Why slabs next to a catalogue
//
// A key-value store writes every value more than once: into its log, into a table, and
// again whenever tables are merged. It reads a value as a whole through its cache. In
// Pebble, values of 1 to 64 MiB reached 30 to 130 MB/s with 2 to 4 times the bytes
// written and 4 to 15 s of processor time per GB, inline or separated, on a disk capable
// of 1.6 GB/s. Written once, bypassing the page cache, into files allocated beforehand,
// they reached 0.3 GB/s at 1 MiB with a sync each, 1.2 GB/s without, and 1.0 to 1.4 GB/s
// from 16 MiB on, at 1.0 times the bytes and 0.2 to 0.6 s per GB. Pebble is good at many
// small rows that exist completely or not at all, and so it has the catalogue. The
// figures are of one machine with two cores; splicectl bench repeats the comparison.
//
// # Directory
//
//	LOCK               held (flock) by the process that has it open
//	FORMAT             version and store id; another version is refused by name
//	KEY                what extents are sealed with, for the daemon's user alone
//	index/             the catalogue: rows, last uses, counters, generations
//	profiles/<digest>  canonical bytes of each model's profile
//	slabs/000001.slab  blocks of 4 KiB: a header, then extents in whole granules
//
// Profiles are next to the catalogue, not in it: without them no digest of an extent
// could be checked after the catalogue is lost.
//
// # Order of writes
//
//	write   profile (synced, once) ─► slab (file and name synced) ─► header and payload
//	        ─► row, in a batch ─► "logged" ─► fdatasync of slabs, sync of the
//	        catalogue's log ─► "synced"
//	forget  from memory ─► row deleted, in a batch ─► sync ─► last reader gone ─► space free
//
// After a crash a row may lack its bytes, or name those of an earlier owner. That costs a
// miss: each read compares name, generation and the digest of every chunk. Generations
// are never reused, not even after a crash. Bytes without a row are free space. With each
// sync the catalogue records the generation up to which all bytes are synced. When the
// directory is opened, entries above that mark are suspect, since power loss may have
// taken their bytes. Lookups find them, but at no level, until they were read; storing
// one again writes it again. All others count as logged, and as synced after the first
// sync.
//
// # Levels
//
// Logged: pwrite and the write of the catalogue's log have returned, so the kernel has
// both, and a killed process loses neither. Synced: the disk has both. One sync serves
// all waiters and raises everything that was logged before it; it happens at the latest
// after Config.SyncEvery. After a failed sync, everything written since the previous one
// is forgotten: the kernel reports an error once, and the next sync would claim success.
//
// # Space
//
// An entry occupies whole granules, in one run or a few. Any free granule serves any
// entry, so the waste is less than one granule per entry, one per slab, and less than one
// slab at the end of the budget. Nothing is compacted.
//
// # States
//
//	opening ──► ok ◄──► full                 growth was refused: entries make room for entries
//	   ▲         │ ◄──► paused               writes fail: nothing is admitted, a file is tried out
//	   │         ├────► failed               the catalogue has failed: as paused
//	   │         │         │ the disk takes writes again: opened anew
//	   ├─────────┼─────────┘
//	   └─────────┴────► missing              removed or renamed: what is at its path is opened
//	missing, refused, locked, version, unreadable, foreign ──► opening   tried again after RetryMin, 2·RetryMin, … RetryMax
//
// Reads continue in ok, full, paused and failed. An entry that could not be read twice is
// forgotten; after many failures in a row, lookups find nothing for a while.
//
// # Locks and memory
//
// Tier.mu guards all state of entries. It is held for arithmetic and maps only: never
// across I/O, a device call, a callback or a log line. It is taken under the store's
// lock. volume.growing and volume.profiles are held across I/O, and are taken before
// Tier.mu.
//
// The memory of an object that is being written belongs to the store until the callback
// of Start, which comes after the last read of it; that of a Read's destination until
// Read returns. Pages of the arena are transferred in place. The last, partial block of a
// rank goes through a temporary block, so that the disk does not get the bytes after it.
//
// Invariant: a granule is free, or belongs to one entry that is admitted, live or
// leaving.
//
// Invariant: every checkpoint that is live has its parent live.
package disk
