// Package link is one connection of a client to one start of a daemon: the
// socket, the calls in flight on it, and the memory that came with it.
//
//   - Attachment is the connection, from Dial until the daemon has hung up and the
//     last lease is released. Callers of Do read the socket for each other; a
//     reply whose caller has left is read by a goroutine that ends when nothing of
//     the kind is left, and what it granted is given back.
//   - Call is a request and its reply, from a Pool.
//   - Staging hands out the memory that requests carry bytes in.
//   - PendingWrite is a request into engine memory that nobody waits for any more.
//
// What the requests mean is the client's matter. An Attachment never panics over
// what a daemon says, and every call ends at its deadline; any number of
// goroutines may call.
package link
