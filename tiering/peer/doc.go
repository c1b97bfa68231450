// Package peer fetches segments and checkpoints from other daemons, and serves them to
// these. Peers is a tier.Remote over the members of a cluster; Server answers them from
// a store.
//
// Peers asks an Index which member may hold an object, looks it up there (find), and
// reads its bytes by ranges over several connections straight into the memory that it is
// given (read). A find pins the digests of one source: every chunk that comes is compared
// with these, and another member goes on only if it has the very same ones. Nothing that
// a member says is believed beyond what can be checked: the shape is that of the profile,
// token ids have the segment's key, bytes have their digests. What a member computed from
// these tokens cannot be checked, so members have to be trusted as far as that.
//
// Requests are HTTP/1.1 with binary bodies (wire.go):
//
//	POST /peer/v1/find     names ─► for each: not here, later, or its description
//	POST /peer/v1/read     name, digests' pin, rank, range ─► these bytes
//	POST /peer/v1/holders  tags ─► who is believed to hold each (learn.go)
//
// Connections are TLS with what the member's configuration says, and plain only where
// Config.Insecure says so. Who may connect to a Server is for the listener to decide.
//
// A checkpoint that extends others is sent as one node that begins behind what the asker
// has (flatten.go), or at the first token: rows of all, states of the last.
//
// A Server reads under leases of a session of its own, so that what it sends stays in
// memory until it is sent, and promotes what is on disk only. Both sides are bounded:
// requests at once, bytes asked for at once, time without progress, and what a message
// may take.
//
// The server is a fasthttp handler: with net/http in its place 64 MiB came at 0.92 of the
// rate (median of five runs in turns, 0.62 to 1.05, on a busy machine). Where TLS is
// terminated, tls.Config.DynamicRecordSizingDisabled should be set: bodies are long.
//
// Memory belongs to the caller of Read and to the store; neither side keeps any of it.
// All methods may be called at once.
package peer
