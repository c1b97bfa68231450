// Package seqpacket carries frames and descriptors over SOCK_SEQPACKET unix
// sockets with blocking system calls.
//
// A blocking read on both ends answers a small request in about half the time
// that Go's net package needs, because no poller stands between the wake-up and
// the caller (see BenchmarkEcho). The price is one thread per blocked call, and
// that a call ends only by a message, its time-out, or Close.
//
// Frames keep their boundaries. Send may be called by several goroutines at
// once, and so may Recv, each message going to one of them. Descriptors that
// Recv returns belong to the caller.
package seqpacket
