// Package server serves the engine socket. It has the connections, their requests, and the handler
// of each operation. Segments and checkpoints belong to package tiering.
// Access control of clients, error codes and views for operators have separate packages next to
// this one.
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
// serving: requests are started and answered. draining: no request is started or answered, and
// running work finishes; leases stay, since the client may still read the leased pages. leaving:
// like draining, but leases are released. lingering: all work has ended and the client was sent end
// of file; its leases stay until it releases them, for at most MaxLeaseTTL. gone: all work has
// ended and all leases are released. closed: the last reader has freed everything.
//
// leave: the client closed its end or died, or the daemon stops. drop: the connection ends for any
// other reason; the client may be alive and unaware of it. drained: all work has ended, and no
// lease is held. held: all work has ended, but leases are held. close: the last reader is about to
// return.
//
// The table is in life.go, and a test compares the picture's arrows with it. With the
// build tag invariants, every state change is followed by checks.
//
// # Path of a request
//
// The reader of a connection is the only goroutine that receives from it. A poller reads many
// connections in turn. A connection has a dedicated reader until hello, at its end, and while few
// connections make requests. The reader answers a short request itself. Every other request is put
// in flight: it is counted, it can be canceled, and it owns a copy of its body, a deadline and a
// reservation of memory. A long request is a job. If a worker is free and the connection has no
// other request in flight, the reader runs the job itself, and another goroutine becomes the
// reader. Otherwise the job waits in the queue, where users and their connections take turns. A
// request that waits for a disk, or for the client's stream, waits in a separate goroutine and
// occupies no worker.
//
// task.go has the phases of a request and the table of permitted changes. One function ends a
// request and releases what it owns, in whatever way it ends.
package server
