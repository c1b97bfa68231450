// Package seqpacket carries frames and descriptors over SOCK_SEQPACKET unix sockets with
// blocking system calls.
//
// With a blocking read on both ends, a small request takes about half the time that it takes
// with Go's net package, because no poller is involved in waking the caller (see BenchmarkEcho).
// In return, each blocked call occupies a thread. Such a call ends only with a message, with its
// timeout, or with Close.
//
// Frames keep their boundaries. Send may be called concurrently, and so may Recv; each message
// goes to one of the callers. Descriptors that Recv returns belong to the caller.
package seqpacket
