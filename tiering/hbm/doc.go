// Package hbm keeps copies of a store's objects in the memory of accelerators: for each
// device an inclusive cache above memory. It creates the device's region, brings copies
// into it, verifies them on the device, and drops them when the device is lost. Losing a
// device does not affect copies on other devices. Package objects records which copies
// exist and which of them lookups find, and chooses which copies to drop for room.
//
// A copy is one rank's share of an object, on one device. Each rank of an engine has its
// own GPU, and engines of one profile may have several GPUs for the same rank. The attached
// engines determine which devices a rank reads. Clients can write to the memory that they
// import, so nothing is ever copied back from HBM: copies are only dropped. The store reads
// HBM only for a request that asks for it, never for a result that outlives the request.
//
// Invariant: a copy is found only while its object is cached elsewhere. Either the object
// is whole in memory with the digests against which the copy was verified. Or the lower
// tier still has the entry that it had when the object left memory.
//
// Invariant: before a copy is found, the device has hashed every byte of it in place, and
// the digests were those of the object.
//
// Invariant: memory in HBM that is leased, written or used by an operation is freed after
// the lease, write or operation ends, whatever happens to its object or to the device.
//
// A Cache shares its owner's lock. Methods whose comment says so are called with the lock
// held, all others without it.
package hbm
