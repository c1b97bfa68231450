// Package disk is the tier of segments and checkpoints that outlives the process:
// large bytes in slab files (package slab) in the form of extents (package
// extent), and a row for each in a catalogue (package catalog). It implements
// tiering.Tier; what is kept and what is promoted, the store decides.
//
// # Why slabs beside a catalogue
//
// A store of keys and values writes every value more than once: into its log, into
// a table, and again whenever tables are merged; and it reads a value as a whole
// through its cache. Put into Pebble, values of 1 to 64 MiB reached 30 to 130 MB/s
// with 2 to 4 times the bytes written and 4 to 15 s of processor time a GB, whether
// inline or separated, on a disk that takes 1.6 GB/s. Written once, around the page
// cache, into files that were allocated before, they reached 0.3 GB/s at 1 MiB with
// a sync each, 1.2 GB/s without, and 1.0 to 1.4 GB/s from 16 MiB on, at 1.0 times the
// bytes and 0.2 to 0.6 s a GB. What Pebble is good at, many small rows that are there
// as a whole or not at all, is the catalogue. The figures are of one machine with
// two cores; splicectl bench repeats the comparison.
//
// # A directory
//
//	LOCK               held (flock) by the process that has it open
//	FORMAT             version and store id; another version is refused by name
//	KEY                what extents are sealed with, for the daemon's user alone
//	index/             the catalogue: rows, last uses, counters, generations
//	profiles/<digest>  canonical bytes of each model's profile
//	slabs/000001.slab  blocks of 4 KiB: a header, then extents in whole granules
//
// Profiles lie beside the catalogue, not in it: without them no digest of an
// extent could be checked once the catalogue is lost.
//
// # Order of writes
//
//	write   profile (synced, once) ─► slab (file and name synced) ─► header and payload
//	        ─► row, in a batch ─► "logged" ─► fdatasync of slabs, sync of the
//	        catalogue's log ─► "synced"
//	forget  from memory ─► row deleted, in a batch ─► sync ─► last reader gone ─► space free
//
// A row that a crash leaves without its bytes, or with the bytes of an earlier
// owner, costs a miss: each read compares name, generation and the digest of every
// chunk. Generations are never given twice, also not after a crash. Bytes without a
// row are free space. With each sync the catalogue notes up to which generation all
// bytes are synced. Entries beyond that mark are suspect when the directory is
// opened, since power loss may have taken their bytes: they are found, but at no
// level, until they were read; who puts one again has it written again. All others
// count as logged, and as synced after the first sync.
//
// # Levels
//
// Logged: pwrite and the write of the catalogue's log have returned, so the kernel
// has both, and a killed process loses neither. Synced: the disk has both. A sync is
// one for all who wait, and raises everything that was logged before it; at the
// latest it comes after Config.SyncEvery. After a sync that failed, what was written
// since the one before is forgotten: the kernel tells an error once, and the next
// sync would claim success.
//
// # Space
//
// An entry takes whole granules, in one run or a few. Any free granule serves any
// entry, so what is wasted is less than one granule for each entry, one for each
// slab, and less than one slab at the end of the budget. Nothing is compacted.
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
// Reads go on in ok, full, paused and failed. An entry that could not be read twice
// is forgotten; after many in a row, nothing is found for a while.
//
// # Locks and memory
//
// Tier.mu guards everything that is known of entries. It is held for arithmetic and
// maps only: never across I/O, a call of the device, a callback or a log line. It is
// taken under the store's lock. volume.growing and volume.profiles are held across
// I/O, and Tier.mu inside them; nobody who holds Tier.mu takes them.
//
// The memory of an object that is written belongs to the store until the callback
// of Start, which comes after the last read of it; that of a Read's destination until
// Read returns. Pages of the arena go to the disk in place. The last, partial block
// of a rank goes through a block of our own, so that the disk does not get what lies
// behind it.
//
// Invariant: a granule is free, or belongs to one entry that is admitted, live or
// leaving.
//
// Invariant: every checkpoint that is live has its parent live.
package disk
