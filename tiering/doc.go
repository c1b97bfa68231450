// Package tiering gives bytes their meaning: it keeps segments and checkpoints
// in pools of memory, lets clients fill and lease them, and turns plans over
// leased segments into the jobs of a gpuipc.Device.
//
// A Store owns one arena region of the device, shared by a public pool
// (segments) and a private pool (checkpoints) with budgets of their own. What a
// client does goes through a Session; closing it gives back every lease and
// reservation of that client, and nothing else. Staging, slots and engine memory
// belong to the caller, who passes them as gpuipc.Ref and keeps them mapped
// until the call returns. The socket, its codes and its deadlines are left to
// the daemon, what leaves a full pool to package policy.
//
// All methods of Store and Session may run at once. One mutex guards the
// catalogue; critical sections look things up and count, each over a few rows
// (holdRows, evictRows). They never copy, hash, log or call the device, nor a Tier but
// for what it answers from memory: decide under the lock, act outside, note the result under it.
// Between the two an object is held, so that a release, an eviction or the death of a
// client cannot give its pages to somebody else: pages are freed by whoever lets go
// last.
//
// An object may lie in memory, in the lower tier or in both; the store alone moves
// it. Down it goes behind its publication, ahead of its eviction, at a commit's
// wish or with Flush, and what the tier has need only be dropped from memory. Beyond
// the node it may lie at a tier.Remote (beyond.go), which is read only. Up
// it comes by a promotion, when somebody acquires or loads it or a match has named
// it. Promotions and cleaning are the work of Run's goroutines, writes that of the
// tier's; only AwaitAcquire, AwaitLoad, Durable.Wait, Flush and Close wait for
// either.
//
// With HBM copies of what is held lie in the memory of accelerators as well (package hbm).
// They are made behind an acquire or a load that wants them there, by goroutines of
// Run, and verified where they lie; they are dropped, never written back. A plan runs
// on the device that its leases lie on. An accelerator that is lost takes the copies
// with it and nothing else.
//
// A buffer is rows of recent tokens over states that it holds. It belongs to its
// session like a lease, and its memory is that of an object that no lookup finds.
//
// Advice on what to store (package advise), learnt costs (package costs) and the log
// of decisions (package decision) have locks of their own and touch no object.
//
// What leaves memory is asked of policies, which hold all that is published and
// are told what may not leave: what is leased, filled, written or read, what such
// an object extends, and nodes that more than one other extends. A checkpoint that
// one other extends gives back its states only. Each decision is noted with its reason and value.
//
// What is held, how it is found and what it costs is kept by package objects, with the
// life of an object; that of a transfer is drawn in package transfer.
// Three engines of that move bytes: promotions into memory (promote.go), copies into
// HBM (package hbm) and writes into the lower tier (write.go).
//
// Invariant: an object that a lookup finds as a hit has every chunk of every
// part of every rank, each with the digest that its writer stated.
//
// Invariant: a stripped checkpoint is found by no lookup, is not read by the lower
// tier and has its rows; its holes reach no device.
//
// Invariant: what a tenant with a quota holds in HBM, in memory and in the lower tier
// together is never more than that, to the byte, whenever the lock is free. A tier
// that comes up holding more gives it up with the next sweep or reservation.
//
// Invariant: an object's pages are allocated exactly once and freed exactly
// once, after the last lease, operation and copy that touches them has ended.
package tiering
