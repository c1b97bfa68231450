// Package hbm keeps copies of a store's objects in the memory of accelerators: an
// inclusive cache above memory for each device. It creates the region, brings copies into
// it, verifies them on the device, and drops them when the device is lost, which does not
// affect copies on other devices. Package objects tracks what is copied and which copies
// lookups find, and chooses the copies that are dropped for room.
//
// A copy is one rank's share of an object, on one device: each rank of an engine has its
// own GPU, and engines of one profile may have several for the same rank. Attached
// engines determine which device a rank reads. Clients can write what they import, so
// nothing is ever copied back: a copy ends by being dropped, and the store reads HBM only
// for a request that asks for it, never for anything that outlives the request.
//
// Invariant: a copy is found only while its object is whole in memory with the digests
// that the copy was verified against, or is in the lower tier as the entry that was there
// when the object left memory.
//
// Invariant: every byte of a copy that is found was hashed by the device in place, and
// had the object's digests, before the copy was found.
//
// Invariant: memory in HBM that is leased, written or used by an operation is freed after
// that ends, whatever has become of its object or of the device.
//
// A Cache shares its owner's lock. Methods documented so are called with it, the others
// without.
package hbm
