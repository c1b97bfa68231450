// Package hub is a private network for tests and benchmarks: network namespaces, each with
// an Ethernet interface, joined by a switch whose links lose, delay and drop frames. It
// replaces netem, which many kernels lack.
//
//	namespace ── TAP ── port ─┐
//	namespace ── TAP ── port ─┼─ Hub: learns addresses; each pair of ports has a link
//	namespace ── TAP ── port ─┘  in each direction, and each link a Rule
//
// Link decides whether and when a frame arrives, given the time; Hub moves frames. A
// process is put into a namespace by Namespace.Start, a socket by opening it within
// Namespace.Do. Nothing has a name outside this process, so nothing outlives it.
//
// It needs Linux, CAP_NET_ADMIN, CAP_SYS_ADMIN and /dev/net/tun: Available reports missing
// ones. All calls are safe for concurrent use.
package hub
