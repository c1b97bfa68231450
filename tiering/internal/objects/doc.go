// Package objects is what a store holds: segments and checkpoints in memory and their
// copies in HBM, how lookups find them, who uses them, what they cost the pools and the
// tenants, and what the policies are told of them. It moves no bytes and decides nothing
// but which copies make room for others: its owner fills, leases, writes and promotes
// objects, and evicts them.
//
// A Set has no lock, and each of its methods is called with that of its owner. It asks
// the lower tier only for what that answers from memory.
//
// Whoever changes a count of an object (leases, operations, its fill, its write) has
// Set.Account bring the accounts up to date; memory that nothing holds any more is free
// after that. The life of an object is drawn in life.go.
//
// Invariant: an object's pages are allocated exactly once and freed exactly once, after
// the last lease, operation and copy that touches them has ended.
package objects
