// Package order synchronizes work on a GPU between two processes by sequence
// numbers in device memory that both have mapped.
//
// A page holds two slots, 64 bytes apart so that neither shares a line with the
// other:
//
//	off +0    client's slot: u64, written by the client only
//	off +64   daemon's slot: u64, written by the daemon only
//
// Both start at 0 and ascend; the first number is 1. A number means "all work that I
// enqueued before has ended and its writes are visible". Each side writes its slot
// in stream order (Streams.Signal), or from the host after that work has ended
// (Page.Signal). Each side waits in stream
// order (Streams.Wait), which costs the host nothing, or on the host with a
// deadline (Page.Wait).
//
// # Rules
//
// Store after compute. The number that announces bytes is written by the stream
// that wrote the bytes, after them. A write from the host without waiting for that
// stream would announce missing bytes.
//
// Load before reuse. Memory that a peer may still read is reused only when the
// peer's slot has reached the number after its reads. A message on the socket only
// means that the reads are enqueued.
//
// No wait for a number that is not enqueued. A waiting stream blocks everything
// after the wait, an engine's next step too, and only the number ends the wait: no
// deadline, no signal, no kill of the peer. So a stream waits only for a number
// whose write the peer has enqueued or, on the daemon's side, will make when a
// point is reached that is enqueued already. The daemon never makes an engine's
// stream wait: it waits on its host, with the request's deadline, and its reply
// comes after its last access. Engines wait for the daemon's slot only for a signal
// that they requested by naming such a point. Two sides that each wait first for
// the other's next number would block forever; the rule makes that impossible,
// since every wait points back in the order of enqueuing.
//
// # A dead peer
//
// When a process dies its streams end, and their numbers are never written. Then
// the survivor writes Released into the slot that its own streams
// wait for, which passes every wait for any number. The daemon does so when a
// connection ends, for waiters in the client's process; a client does so when it
// finds the daemon's end of the socket closed. A wait that has passed therefore
// means "reached, or the peer is gone"; the connection shows which. A client's own
// write has to get past the waiting streams: no more than MostWaiting may wait.
// Released is final: it is larger than all numbers, and Page.Signal never
// overwrites it. The writer of a slot may be broken: a client that writes a number
// too early, or into the daemon's slot, only damages its own reads.
//
// # Devices without 64-bit operations on streams
//
// There a number in a slot only means that an event was recorded, and a pair of
// events is waited for, see Events. It orders less: a stream can wait only for an
// event recorded before the wait was enqueued, so the host has to read the number
// first.
//
// Comparison is the driver's for CU_STREAM_WAIT_VALUE_GEQ, of the 64-bit
// difference as a signed number. It is why Released is 1<<63-1 and not 1<<64-1,
// which that comparison takes for -1: less than every number.
package order
