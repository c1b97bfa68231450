// Package server serves the engine socket: the connections on it, the jobs that
// their requests become, and what each request does. What segments and checkpoints
// are is tiering's; which clients may connect, what a code is and what people see
// are packages of their own beside this one.
//
// # The life of a connection
//
//	          drop               held
//	serving ---------> draining ---------> lingering
//	   |                 |   |                 |
//	   | leave     leave |   | drained         | leave
//	   v                 |   v                 v
//	leaving <------------+   +--------------> gone ---------> closed
//	   |                                       ^      close
//	   +---------------------------------------+
//	              drained, held
//
// serving: requests are begun and answered. draining: nothing is begun or answered,
// running work ends; leases stay, the client may still read. leaving: the same
// without leases. lingering: no work is left and the client was sent end of file;
// leases stay until it lets go, MaxLeaseTTL at most. gone: neither work nor leases
// are left. closed: the last reader has taken it apart.
//
// leave: the client closed its end or died, or the daemon stops. drop: anything
// else that ends a connection, after which the client may live and not know.
// drained and held: the work has ended, without leases and with. close: the last
// reader is about to return.
//
// The table is in life.go, and a test compares the picture's arrows with it. With
// the build tag invariants every change is followed by checks.
//
// # The way of a request
//
// The reader of a connection is the goroutine that receives from it, one at a time:
// one of its own until hello, at the end, and while few connections make requests,
// else a poller's, which reads many connections in turn. A short request is answered by
// the reader. A long one is a job: it runs on the reader while a worker is free and
// the connection has no other, and another reader takes over; else it waits in
// the queue, where users and their connections take turns. One that waits for a disk, or for the
// client's stream, waits in a goroutine of its own and keeps no worker.
package server
