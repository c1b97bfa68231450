// Package peer fetches segments and checkpoints from other daemons, and serves them to
// other daemons. Peers is a tier.Remote over the members of a cluster; Server answers
// them from a store.
//
// Peers asks an Index which member may have an object, looks it up there (find), and
// reads its bytes in ranges over several connections directly into the given memory
// (read). A find pins the digests of one source: every received chunk is compared with
// these, and another member may continue only if it has exactly the same digests.
// Whatever can be checked of a member's answer is checked: the shape is that of the
// profile, token ids have the segment's key, bytes have their digests. What a member
// computed from these tokens cannot be checked, so members have to be trusted to that
// extent.
//
// Requests are HTTP/1.1 with binary bodies (wire.go):
//
//	POST /peer/v1/find     names ─► for each: not here, later, or its description
//	POST /peer/v1/read     name, digests' pin, rank, range ─► these bytes
//	POST /peer/v1/holders  tags ─► who is believed to hold each (learn.go)
//
// Connections use TLS as configured for the member, and plain TCP only if Config.Insecure
// allows it. Who may connect to a Server is decided by the listener.
//
// A checkpoint that extends others is sent as one node that begins where the client's
// base ends (flatten.go), or at the first token: rows of all, states of the last.
//
// A Server reads under leases of a session, so that objects stay in memory until they are
// sent, and promotes objects that are only on disk. Both sides are bounded: in concurrent
// requests, requested bytes, time without progress, and message sizes.
//
// The server is a fasthttp handler: with net/http instead, 64 MiB arrived at 0.92 of the
// rate (median of five alternating runs, 0.62 to 1.05, on a busy machine). Where TLS is
// terminated, tls.Config.DynamicRecordSizingDisabled should be set, since bodies are
// long.
//
// Memory belongs to the caller of Read and to the store; neither side keeps any of it.
// All methods may be called concurrently.
package peer
