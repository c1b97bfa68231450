// Package link is one connection of a client to one start of a daemon: the socket, the calls
// in flight, and the memory that the connection maps.
//
//   - Attachment is the connection, from Dial until the daemon has hung up and the last lease is
//     released. Callers of Do read the socket for each other. A goroutine, the reaper, reads
//     replies whose callers have returned and gives back the leases and reservations in them.
//     The reaper ends when no such reply is outstanding.
//   - Call is a request and its reply, from a pool.
//   - Staging allocates the shared memory in which requests pass bytes to the daemon.
//   - PendingWrite is an abandoned request that may still write to engine memory.
//
// Package connector knows the meaning of requests; package link does not. An Attachment never
// panics because of a reply, and every call ends at its deadline. All methods may be called
// concurrently.
package link
