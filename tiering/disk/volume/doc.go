// Package volume is the open directory of a disk tier: its lock, its format, the files of
// profiles, the slabs and the catalogue. Package disk decides which entries are stored in it.
//
//	LOCK               locked (flock) by the process that has the directory open
//	FORMAT             version and store id; a directory of another version is refused
//	KEY                secret that seals extents, readable for the daemon's user only
//	index/             the catalogue: rows, last uses, counters, generations
//	profiles/<digest>  canonical bytes of each model's profile
//	slabs/000001.slab  blocks of 4 KiB: a header, then extents in whole granules
//
// Profiles are files next to the catalogue, not rows in it. A lost catalogue can be rebuilt
// from slabs and profiles; without profiles no digest of an extent could be checked.
//
// All methods may be called concurrently, except Close, which is called last, and the
// methods that exchange the catalogue (exchange.go). Every call except SlabBytes may hang
// as long as the disk does. The operations that a tier waits for are timed (Operations).
package volume
