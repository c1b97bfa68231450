// Package volume is the open directory of a disk tier: its lock, its format, the files of
// profiles, the slabs and the catalogue. Package disk defines the entries and decides
// which of them stay.
//
//	LOCK               held (flock) by the process that has the directory open
//	FORMAT             version and store id; another version is refused by name
//	KEY                what extents are sealed with, for the daemon's user alone
//	index/             the catalogue: rows, last uses, counters, generations
//	profiles/<digest>  canonical bytes of each model's profile
//	slabs/000001.slab  blocks of 4 KiB: a header, then extents in whole granules
//
// Profiles are next to the catalogue, not in it: a lost catalogue can be rebuilt from
// slabs and profiles, but without profiles no digest could be checked.
//
// All methods may be called concurrently, except Close, which comes last, and those that
// exchange the catalogue. Every call but FreeBytes and SlabBytes may hang with the disk;
// the operations that a tier waits for are timed (Operations).
package volume
