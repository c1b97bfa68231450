// Package tiering gives bytes their meaning: it stores segments and checkpoints in pools
// of memory, lets clients fill and lease them, and turns plans over leased segments into
// jobs of a gpuipc.Device.
//
// A Store owns one arena region of the device, shared by a public pool (segments) and a
// private pool (checkpoints) with separate budgets. A client acts through a Session;
// closing it releases every lease and reservation of that client, and nothing else.
// Staging, slots and engine memory belong to the caller, who passes them as gpuipc.Ref
// and keeps them mapped until the call returns. The socket, its codes and its deadlines
// are left to the daemon, the choice of victims to package policy.
//
// A Store consists of parts that share a catalog; type Store lists them.
//
// All methods of Store and Session may be called concurrently. One mutex guards the
// catalogue. Critical sections look things up and count, each over a few rows (holdRows,
// objects.EvictRows). They never copy, hash, log or call the device, and call a Tier only
// for what it answers from memory: decide under the lock, act outside, record the result
// under it. In between the object is in use, so that a release, an eviction or the death
// of a client cannot give its pages to another object: the last user frees the pages.
//
// An object may be in memory, in the lower tier or in both, and only the store moves it.
// It is written down after its publication, ahead of its eviction, when a commit asks for
// it, or by Flush. An object that the lower tier has is simply dropped from memory.
// Outside the node it may be at a tier.Remote (remote.go), which is read only. A
// promotion brings it up when a client acquires or loads it, or after a match has named
// it. Goroutines of Run carry out promotions and cleaning, those of the tier the writes.
// Only AwaitAcquire, AwaitLoad, Durable.Wait, Flush and Close wait for either.
//
// With HBM, copies of cached objects are also in the memory of accelerators (package
// hbm). Goroutines of Run make them after an acquire or a load that wants them there, and
// verify them on the device. They are dropped, never written back. A plan runs on the
// device that its leases are on. Losing an accelerator loses its copies and nothing else.
//
// A buffer holds rows of recent tokens together with a state. It belongs to its session
// like a lease, and its memory is that of an object that no lookup finds.
//
// Advice on what to store (package advise), learnt costs (package costs) and the log of
// decisions (package decision) have their own locks and touch no object.
//
// Policies choose what is evicted from memory. They track all published objects and know
// which are not evictable: those that are leased, filled, written or read, the ancestors
// of such an object, and nodes that more than one other extends. A checkpoint that one
// other extends loses only its states. Each decision is logged with its reason and value.
//
// Package objects has the catalogue, the lookups, the accounts and the life cycle of an
// object; package transfer documents that of a transfer. Transfer engines move
// bytes: promotions into memory, copies into HBM (package hbm) and writes into the lower
// tier; a fourth sends copies to outlets.
//
// Invariant: an object that a lookup finds as a hit has every chunk of every part of
// every rank, each with the digest that its writer stated.
//
// Invariant: a stripped checkpoint is found by no lookup, is not read by the lower tier
// and has its rows; its holes reach no device.
//
// Invariant: the bytes of a tenant with a quota in HBM, in memory and in the lower tier
// together never exceed it, to the byte, whenever the lock is free. A tier that opens
// with more than that gives it up with the next sweep or reservation.
//
// Invariant: an object's pages are allocated exactly once and freed exactly once, after
// the last lease, operation and copy that touches them has ended.
package tiering
