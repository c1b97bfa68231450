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
// catalogue; critical sections look things up and count, they never copy, hash,
// log or call the device or a Tier: decide under the lock, act outside, settle
// under it. Between the two an object is held, so that a release, an eviction or
// the death of a client cannot give its pages to somebody else: pages are freed
// by whoever lets go last.
//
//	reserve ──► filling ──► published ──► unlinked ──► free
//	               │  all parts of       evicted or       last lease and
//	               │  all ranks          removed          operation ended
//	               └──► unlinked: abort, client death, wrong digest, expiry
//
// Invariant: an object that a lookup finds as a hit has every chunk of every
// part of every rank, each with the digest that its writer stated.
//
// Invariant: an object's pages are allocated exactly once and freed exactly
// once, after the last lease, operation and copy that touches them has ended.
package tiering
