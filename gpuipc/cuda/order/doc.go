// Package order ties work on a GPU in one process to work in another, by sequence
// numbers in device memory that both have mapped.
//
// A page holds two slots, 64 bytes apart so that neither shares a line with the
// other:
//
//	off +0    client's slot: u64, written by the client only
//	off +64   daemon's slot: u64, written by the daemon only
//
// Both begin at 0 and ascend; the first number is 1. A number says "all that I
// enqueued before has ended and what it wrote can be seen". Each side writes its
// slot in stream order (Streams.Signal), or from the host when nothing of what
// the number speaks of runs any more (Page.Signal). Each side waits in stream
// order (Streams.Wait), which costs the host nothing, or on the host with a
// deadline (Page.Wait).
//
// # What both sides keep to
//
// Store after compute. The number that announces bytes is written by the stream
// that wrote the bytes, after them. To write it from the host without having
// waited for that stream announces bytes that are not there.
//
// Load before reuse. Memory that a peer may still read is given to somebody else
// only when the peer's slot has reached the number that stands behind its reads.
// That the peer said on the socket that it is done says only that it enqueued.
//
// No wait for what nobody enqueued. A stream that waits holds everything behind
// it, an engine's next step too, and nothing but the number ends the wait: no
// deadline, no signal, no kill of the peer. So a wait goes on a stream only
// for a number whose write the peer has enqueued or, on the daemon's side, is
// bound to make when a point is reached that is enqueued already. The daemon for
// its part never makes an engine's stream wait: it waits on its host, with the
// request's deadline, and its reply comes after its last access. Engines wait for
// the daemon's slot only for a signal they asked for by naming such a point.
// Two sides that each wait first for the other's next number stop for ever; the
// rule makes that impossible, since every wait points back in the order in which
// things were enqueued.
//
// # A dead peer
//
// A process that dies takes its streams along, and their numbers are never
// written. Then the survivor writes Released into the slot that its own streams
// wait for, which passes every wait for any number. The daemon does so when a
// connection ends, for waiters in the client's process; a client does so when it
// finds the daemon's end of the socket closed. A wait that has passed therefore
// means "reached, or nobody is left who would": who needs to know which asks the
// connection. A client's own write has to get past the streams that wait: no more than MostWaiting may.
// Released is final: it is larger than all numbers, and Page.Signal
// never writes over it. What a slot says is the word of a process that may be
// broken: a client that writes a number too early, or into the daemon's slot,
// harms what it reads itself and nobody else.
//
// # Devices without 64-bit operations on streams
//
// There a number in a slot says only that an event was recorded, and a pair of
// events does the waiting, see Events. It orders less: a stream can wait only for
// what was recorded before the wait was enqueued, so that the host has to have
// read the number first.
//
// Comparison is the driver's for CU_STREAM_WAIT_VALUE_GEQ, of the 64-bit
// difference as a signed number. It is why Released is 1<<63-1 and not 1<<64-1,
// which that comparison takes for -1: less than every number.
package order
