// Package hub is a private network for tests and benchmarks: network namespaces, each with
// an Ethernet interface, joined by a switch whose links lose, delay and drop frames. It
// replaces netem, which many kernels lack.
//
//	namespace ── TAP ── port ─┐
//	namespace ── TAP ── port ─┼─ Hub: learns addresses; each pair of ports has a link
//	namespace ── TAP ── port ─┘  in each direction, and each link a Rule
//
// Link decides whether and when a frame arrives, given the current time; Hub moves frames.
// Namespace.Start runs a process in a namespace. A socket that is opened within Namespace.Do
// belongs to the namespace. Nothing has a name outside this process, so nothing remains after it
// ends.
//
// The package needs Linux, CAP_NET_ADMIN, CAP_SYS_ADMIN and /dev/net/tun; Available reports
// which of these is missing. All calls are safe for concurrent use.
package hub
