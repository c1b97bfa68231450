// Package objects is the catalog of a store. It has the segments and checkpoints in memory
// and their copies in HBM, the lookups that find them, the counts of their users, their
// charges to pools and tenants, and the policies that rank them. It moves no bytes. The
// only decision that it makes is which copies in HBM to drop for other copies. Its owner,
// the store, fills, leases, writes, promotes and evicts objects.
//
// A Set has no lock: each method is called with its owner's lock held. It asks
// the lower tier only for answers that the tier has in memory.
//
// Code that changes a count of an object (leases, operations, its fill, its write) calls
// Set.Account afterwards. That updates the accounts and frees memory that is no longer
// used. life.go documents the life cycle of an object.
//
// Invariant: an object's pages are allocated exactly once and freed exactly once, after
// the last lease, operation and copy that touches them has ended.
package objects
