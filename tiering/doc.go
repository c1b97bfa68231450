// Package tiering stores segments and checkpoints in pools of memory, lets clients fill and
// lease them, and turns plans over leased segments into jobs of a gpuipc.Device.
//
// A Store owns one arena region of the device. A public pool (segments) and a private pool
// (checkpoints) share it and have separate budgets. A client acts through a Session. Closing
// a Session releases all leases and reservations of that client, and nothing else. Staging,
// slots and engine memory belong to the caller, who passes them as gpuipc.Ref and keeps them
// mapped until the call returns. The daemon handles the socket, its codes and its deadlines.
// Package policy chooses which objects are evicted.
//
// A Store is a facade. Its parts are packages below tiering/internal: catalog (what all share),
// move, fill and serve. None of them uses a later one.
//
// All methods of Store and Session may be called concurrently. One mutex guards the catalog.
// A critical section looks things up and counts them, a few rows at a time (catalog.HoldRows,
// objects.EvictRows). It never copies, hashes, logs or calls the device. It calls a Tier only
// for answers that the Tier has in memory. Code therefore decides under the lock, acts
// without the lock, and takes the lock again to record the result. While code acts on an
// object without the lock, the object counts as in use, so that a release, an eviction or the
// death of a client cannot give its pages to another object: the last user frees the pages.
//
// An object may be in memory, in the lower tier or in both, and only the store moves it. The
// store writes an object to the lower tier after its publication, ahead of its eviction, when
// a commit asks for it, or in Flush. An object that is also in the lower tier is evicted from
// memory without a write. An object may also be outside the node, at a tier.Remote,
// which the store only reads. A promotion reads an object into memory when a
// client acquires or loads it, or after a match has named it. Goroutines of Run carry out
// promotions and cleaning; goroutines of the tier carry out the writes. Only AwaitAcquire,
// AwaitLoad, Durable.Wait, Flush and Close wait for promotions or writes.
//
// With HBM, copies of cached objects are also in the memory of accelerators (package hbm).
// Goroutines of Run make such a copy after an acquire or a load asks for it, and verify it on
// the device. Copies are dropped, never written back. A plan runs on the device that its
// leases are on. Losing an accelerator loses its copies and nothing else.
//
// A buffer holds rows of recent tokens together with a state. It belongs to its session
// like a lease. Its memory is allocated like an object's memory, but no lookup finds it.
//
// Advice on what to store (package advise), learnt costs (package costs) and the log of
// decisions (package decision) have their own locks and touch no object.
//
// Policies choose which objects are evicted from memory. They track all published objects and
// know which of them are not evictable: objects that are leased, filled, written or read,
// ancestors of such objects, and checkpoints that several others extend. A checkpoint that
// exactly one other extends loses only its states. Each decision is logged with its reason
// and value.
//
// Package objects has the objects, their names, accounts and life cycle;
// package transfer documents the life cycle of a transfer. Four transfer engines read objects
// into memory, write them to the lower tier, send copies to outlets, and search outside the
// node. A further engine per device copies objects into HBM (package hbm).
//
// Invariant: an object that a lookup finds as a hit has every chunk of every part of every
// rank, each with the digest that its writer stated.
//
// Invariant: no lookup finds a stripped checkpoint, and no write to the lower tier reads it.
// Its rows are complete, and no device reads the places of its freed states.
//
// Invariant: whenever the lock is free, the bytes of a tenant with a quota in HBM, memory and
// the lower tier together do not exceed the quota, to the byte. If a tier opens with more
// than that, the next sweep or reservation frees the excess.
//
// Invariant: an object's pages are allocated exactly once and freed exactly once, after the
// last lease, operation and copy that touches them has ended.
package tiering
