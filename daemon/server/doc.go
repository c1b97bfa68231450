// Package server serves the engine socket: its connections, the jobs created by their
// requests, and the effect of each request. Segments and checkpoints belong to package
// tiering. Access control of clients, error codes and views for operators have separate
// packages next to this one.
//
// # States of a connection
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
// serving: requests are started and answered. draining: no request is started or
// answered, and running work finishes; leases stay, since the client may still read.
// leaving: the same without leases. lingering: no work is left and the client was sent
// end of file; leases stay until it releases them, at most MaxLeaseTTL. gone: neither
// work nor leases are left. closed: the last reader has freed everything.
//
// leave: the client closed its end or died, or the daemon stops. drop: anything else that
// ends a connection; the client may be alive and unaware of it. drained and held: the work
// has ended, without and with leases. close: the last reader is about to return.
//
// The table is in life.go, and a test compares the picture's arrows with it. With the
// build tag invariants, every state change is followed by checks.
//
// # Path of a request
//
// The reader of a connection is the one goroutine that receives from it. It is a dedicated
// goroutine until hello, at the end, and while few connections make requests; otherwise it
// is a poller's, which reads many connections in turn. The reader answers a short request
// itself. A long one is a job. It runs on the reader while a worker is free and the
// connection has no other job, and another reader takes over. Otherwise it waits in the
// queue, where users and their connections take turns. A job that waits for a disk, or for
// the client's stream, waits in a separate goroutine and occupies no worker.
package server
