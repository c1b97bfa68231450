// Package hbm keeps copies of what a store holds in the memory of accelerators: an
// inclusive cache above memory for each of them. It makes the region, brings copies into
// it, verifies them where they lie, and drops them when the device is lost, which costs
// the copies of other devices nothing. What is copied, which
// copies lookups find and which make room is kept by package objects, with everything
// else that is held.
//
// A copy is one rank's share of an object, on one device: each rank of an engine has a
// GPU of its own, and engines of one profile may have several for the same rank. Which
// device a rank reads is learnt from who attached. Clients can write what they import, so nothing is ever copied back
// down: a copy leaves by being dropped, and the store reads HBM for a request that
// asks for it, never for anything that outlives the request.
//
// Invariant: a copy is found only while its object is whole in memory with the
// digests that the copy was verified against, or lies in the lower tier as the
// entry that was there when the object left memory.
//
// Invariant: every byte of a copy that is found was hashed by the device where it
// lies, and had the object's digests, before the copy was found.
//
// Invariant: what is leased, written or used by an operation in HBM is freed after
// that ends, whatever has become of its object or of the device.
//
// A Cache shares its owner's lock; what says so is called with it, the rest without.
package hbm
