// Package order synchronizes the work of two processes on one GPU. They exchange sequence
// numbers in device memory that both have mapped.
//
// A page has two slots. They are 64 bytes apart, so that they are in different cache lines:
//
//	off +0    client's slot: u64, written by the client only
//	off +64   daemon's slot: u64, written by the daemon only
//
// Both slots start at 0 and only grow; the first number is 1. A number means "all work that
// I enqueued before has ended, and its writes are visible". Each side writes its own slot
// in stream order (Streams.Signal), or from the host after the work has ended
// (Page.Signal). Each side waits in stream order (Streams.Wait), which costs the host
// nothing, or on the host with a deadline (Page.Wait).
//
// # Rules
//
// Store after compute. The number that announces bytes must be written by the stream that
// wrote the bytes, after these bytes. A host that writes the number without waiting for
// this stream announces bytes that are not there yet.
//
// Load before reuse. Memory that the peer may still read must not be reused before the
// peer's slot has reached the number that the peer writes after its reads. A message on the
// socket only means that the reads are enqueued.
//
// No wait for a number that is not enqueued. A waiting stream blocks everything that is
// enqueued after the wait, such as an engine's next step. Only the number ends the wait: no
// deadline, no signal and no kill of the peer does. So a stream may wait only for a number
// whose write the peer has enqueued. A client's stream may also wait for a number that the
// daemon will write when work that is already enqueued has ended. The daemon never makes an
// engine's stream wait: the daemon waits on its host, with the deadline of the request, and
// replies after its last access. An engine waits for the daemon's slot only if it requested
// this signal and named the work after which it comes. If two sides first waited for each
// other's next number, both would block forever. The rule makes that impossible, since
// every wait is for something that was enqueued earlier.
//
// # A dead peer
//
// When a process dies, its streams end and its next numbers are never written. The survivor
// then writes Released into the slot for which its own streams wait. This ends every wait
// for any number. The daemon does so when a connection ends, for streams in the client's
// process; a client does so when it finds that the daemon has closed the socket. So the end
// of a wait means "reached, or the peer is gone", and the connection shows which. No more
// than MostWaiting streams of a client may wait at once, so that the client's own write of
// Released can still run. Released is final: it is larger than all numbers, and Page.Signal
// never overwrites it. The writer of a slot may be broken. A client that writes a number
// too early, or writes into the daemon's slot, only damages its own reads.
//
// # Devices without 64-bit operations on streams
//
// On such a device, a number in a slot only means that an event was recorded, and the waits
// are for a pair of events, see Events. This gives a weaker order: a stream can wait only
// for an event that was recorded before the wait was enqueued, so the host has to read the
// number first.
//
// Numbers are compared as the driver does for CU_STREAM_WAIT_VALUE_GEQ: by their 64-bit
// difference as a signed number. So Released is 1<<63-1. The comparison would take 1<<64-1
// for -1, which is less than every number.
package order
