// Package volume is the directory of a disk tier, opened: its lock, its format, the
// files of profiles, and the slabs and the catalogue beside them. What entries are
// and which of them stay, package disk decides.
//
//	LOCK               held (flock) by the process that has the directory open
//	FORMAT             version and store id; another version is refused by name
//	KEY                what extents are sealed with, for the daemon's user alone
//	index/             the catalogue: rows, last uses, counters, generations
//	profiles/<digest>  canonical bytes of each model's profile
//	slabs/000001.slab  blocks of 4 KiB: a header, then extents in whole granules
//
// Profiles lie beside the catalogue, not in it: a lost catalogue can be made again
// from slabs and profiles, but without profiles no digest could be checked.
//
// All methods may run at once, apart from Close, which comes last, and from those
// that exchange the catalogue. Every call but FreeBytes and SlabBytes may hang with
// the disk; the operations that a tier waits for are timed (Operations).
package volume
