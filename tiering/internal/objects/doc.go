// Package objects is the catalogue of a store: segments and checkpoints in memory and
// their copies in HBM, the lookups that find them, their users, their charges to pools
// and tenants, and what the policies know of them. It moves no bytes, and the only
// decision that it makes is which copies are dropped for others. Its owner fills, leases,
// writes, promotes and evicts objects.
//
// A Set has no lock: each method is called with its owner's lock held. It asks the lower
// tier only for what that answers from memory.
//
// Code that changes a count of an object (leases, operations, its fill, its write) calls
// Set.Account to update the accounts; this frees memory that is no longer used. life.go
// documents the life cycle of an object.
//
// Invariant: an object's pages are allocated exactly once and freed exactly once, after
// the last lease, operation and copy that touches them has ended.
package objects
