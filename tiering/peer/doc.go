// Package peer fetches segments and checkpoints from other daemons, and serves them to
// other daemons. Peers is a tier.Remote over the members of a cluster. Server answers the
// requests of members from a store.
//
// Peers looks up in an Index which members may have an object, asks one of them for its
// description (find), and reads its bytes in ranges over several connections directly
// into the given memory (read). A find fixes the digests that one member reports: every
// received chunk is compared with them, and another member may continue a read only if it
// has exactly the same digests. Of a member's answer, everything possible is checked: the
// shape agrees with the profile, the token ids have the segment's key, and the bytes have
// their digests. It cannot be checked that a member has computed the state correctly from
// these tokens, so members are trusted in that.
//
// Requests are HTTP/1.1 with binary bodies (wire.go):
//
//	POST /peer/v1/find     names ─► for each: not here, ask later, or its description
//	POST /peer/v1/read     name, hash of the digests, rank, range ─► the bytes
//	POST /peer/v1/holders  tags ─► members believed to hold each (learn.go)
//
// Connections use TLS as configured for the member, and plain TCP only if Config.Insecure
// allows it. The listener of a Server decides who may connect.
//
// A checkpoint that extends others is sent as a single checkpoint (flatten.go). It begins
// where the client's base checkpoint ends, or at the first token. It has the rows of the
// whole chain, and the states of its last checkpoint.
//
// A Server leases objects in its own session, so that they stay in memory until they
// are sent. It reads objects that are only on disk into memory first. Both sides limit
// concurrent requests, requested bytes, time without progress, and message sizes.
//
// The server is a fasthttp handler: with net/http instead, 64 MiB arrived at 0.92 of the
// rate (median of five alternating runs, 0.62 to 1.05, on a busy machine). Listeners
// should set tls.Config.DynamicRecordSizingDisabled, since bodies are long.
//
// Memory belongs to the caller of Read and to the store. This package keeps no reference
// to it after a call. All methods may be called concurrently.
package peer
