// Package hub is a network of this process's own for tests and benchmarks: network
// namespaces, each with an Ethernet interface, joined by a switch whose links lose, delay
// and cut what passes. It stands in for netem, which many kernels lack.
//
//	namespace ── TAP ── port ─┐
//	namespace ── TAP ── port ─┼─ Hub: learns who is where; each pair of ports has a link
//	namespace ── TAP ── port ─┘  in each direction, and each link a Rule
//
// Link decides what becomes of a frame, and is told the time; Hub moves frames. A process
// is put into a namespace by Namespace.Start, a socket by opening it within Namespace.Do.
// Nothing has a name outside this process, so nothing outlives it.
//
// It needs Linux, CAP_NET_ADMIN, CAP_SYS_ADMIN and /dev/net/tun: Available says what is
// missing. All calls may run at once.
package hub
